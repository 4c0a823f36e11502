"""`python -m asyncrl.train`: trains a policy."""

from asyncrl.commands.train import main as main
from asyncrl.processes.reader import run_for_a_reader

if __name__ == "__main__":
    run_for_a_reader(main)
