"""`python -m asyncrl.sweep`: searches good settings for an environment (`asyncrl.contrib.experiments`)."""

import sys

from asyncrl.commands.main import main
from asyncrl.runtime.reader import run_for_a_reader

if __name__ == "__main__":
    run_for_a_reader(lambda: main(["sweep", *sys.argv[1:]]))
