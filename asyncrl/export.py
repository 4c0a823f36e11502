"""`python -m asyncrl.export`: writes a policy to a file that runs without asyncrl (`asyncrl.contrib.export`)."""

import sys

from asyncrl.commands.main import main
from asyncrl.runtime.reader import run_for_a_reader

if __name__ == "__main__":
    run_for_a_reader(lambda: main(["export", *sys.argv[1:]]))
