"""`asyncrl plot`: draws a run, compares runs, or shows the speed-up of more workers or ranks."""

from asyncrl.commands.plot import main as main
from asyncrl.processes.reader import run_for_a_reader

if __name__ == "__main__":
    run_for_a_reader(main)
