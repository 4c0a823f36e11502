"""`python -m asyncrl.validate`: reports every problem of a run's settings, or shows its plan."""

from asyncrl.commands.validate import main as main
from asyncrl.processes.reader import run_for_a_reader

if __name__ == "__main__":
    run_for_a_reader(main)
