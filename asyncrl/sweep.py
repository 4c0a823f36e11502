"""`python -m asyncrl.sweep`: searches good settings for an environment (`asyncrl.contrib.experiments`)."""

from asyncrl.commands.main import run_module

if __name__ == "__main__":
    run_module("sweep")
