"""`python -m asyncrl.pull`: downloads a run from the Hugging Face Hub (`asyncrl.contrib.hub`)."""

from asyncrl.commands.main import run_module

if __name__ == "__main__":
    run_module("pull")
