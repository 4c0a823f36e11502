"""`python -m asyncrl.launch`: makes the runs of a grid of settings and seeds (`asyncrl.contrib.experiments`)."""

import sys

from asyncrl.commands.main import main
from asyncrl.runtime.reader import run_for_a_reader

if __name__ == "__main__":
    run_for_a_reader(lambda: main(["launch", *sys.argv[1:]]))
