"""`python -m asyncrl.push`: uploads a run to the Hugging Face Hub (`asyncrl.contrib.hub`)."""

from asyncrl.commands.main import run_module

if __name__ == "__main__":
    run_module("push")
