"""`python -m asyncrl.pull`: downloads a run from the Hugging Face Hub (`asyncrl.contrib.hub`)."""

import sys

from asyncrl.commands.main import main
from asyncrl.runtime.reader import run_for_a_reader

if __name__ == "__main__":
    run_for_a_reader(lambda: main(["pull", *sys.argv[1:]]))
