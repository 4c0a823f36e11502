"""`python -m asyncrl.export`: writes a policy to a file that runs without asyncrl (`asyncrl.contrib.export`)."""

from asyncrl.commands.main import run_module

if __name__ == "__main__":
    run_module("export")
