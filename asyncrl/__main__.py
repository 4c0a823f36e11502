"""`python -m asyncrl COMMAND`: the same as the command `asyncrl`."""

from __future__ import annotations

from asyncrl.commands.main import main

if __name__ == "__main__":
    main()
