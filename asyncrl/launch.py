"""`python -m asyncrl.launch`: makes the runs of a grid of settings and seeds (`asyncrl.contrib.experiments`)."""

from asyncrl.commands.main import run_module

if __name__ == "__main__":
    run_module("launch")
