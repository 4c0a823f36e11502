"""`python -m asyncrl.enjoy`: shows a trained policy in a window, or writes a video of it."""

from asyncrl.commands.enjoy import main as main
from asyncrl.processes.ending import end_process
from asyncrl.processes.reader import run_for_a_reader

if __name__ == "__main__":
    run_for_a_reader(main, end_process)
