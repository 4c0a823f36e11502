"""`python -m asyncrl.benchmark`: compares sync and async in speed, returns, lag, time, CPU and memory."""

from asyncrl.commands.benchmark import main as main
from asyncrl.processes.reader import run_for_a_reader

if __name__ == "__main__":
    run_for_a_reader(main)
