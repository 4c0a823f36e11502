"""`python -m asyncrl.zoo`: lists the trained policies that come with asyncrl (`asyncrl.contrib.zoo`)."""

from asyncrl.commands.main import run_module

if __name__ == "__main__":
    run_module("zoo")
