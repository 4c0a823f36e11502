"""`python -m asyncrl.report`: writes one HTML page about runs (`asyncrl.contrib.report`)."""

import sys

from asyncrl.commands.main import main
from asyncrl.runtime.reader import run_for_a_reader

if __name__ == "__main__":
    run_for_a_reader(lambda: main(["report", *sys.argv[1:]]))
