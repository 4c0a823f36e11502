"""`python -m asyncrl COMMAND`: the same as the command `asyncrl`."""

from __future__ import annotations

from asyncrl.commands.main import main
from asyncrl.processes.reader import run_for_a_reader

if __name__ == "__main__":
    run_for_a_reader(main)
