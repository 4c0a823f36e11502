"""Ends a process that would start a run while it imports the user's script or module, which has no main guard."""

from __future__ import annotations

import multiprocessing
import os

EXIT_OF_IMPORTED_MAIN = 97
IN_PROBE = "ASYNCRL_PROBE"
"""Environment variable of the process that checks the environment, and of all that it starts."""
NO_MAIN_GUARD = (
    "The script starts training when it is imported, and each process of the run imports it. Put the call under "
    'if __name__ == "__main__":'
)


def refuse_to_run_while_imported() -> None:
    """Ends a process of a run that imports code which starts another run. Who started the process explains the code.

    A child imports the main module before it imports its target. The check of the environment imports the
    environment's module, and its run would check the environment again, and so on.
    """
    if IN_PROBE in os.environ or getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(EXIT_OF_IMPORTED_MAIN)
