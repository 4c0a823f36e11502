"""`python -m asyncrl.report`: writes one HTML page about runs (`asyncrl.contrib.report`)."""

from asyncrl.commands.main import run_module

if __name__ == "__main__":
    run_module("report")
