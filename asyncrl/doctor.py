"""`python -m asyncrl.doctor`: shows what it finds on this machine, trains for ten seconds, and says what to change."""

from asyncrl.commands.doctor import main as main
from asyncrl.processes.reader import run_for_a_reader

if __name__ == "__main__":
    run_for_a_reader(main)
