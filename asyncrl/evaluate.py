"""`python -m asyncrl.evaluate`: plays a trained policy for a fixed number of episodes and prints its mean return."""

from asyncrl.commands.evaluate import main as main
from asyncrl.processes.ending import end_process
from asyncrl.processes.reader import run_for_a_reader

if __name__ == "__main__":
    run_for_a_reader(main, end_process)
