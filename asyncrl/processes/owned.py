"""Runs a module that ends with the process that started it, even if that process is killed.

    python -m asyncrl.processes.owned OWN STARTERS CORES MODULE ARGUMENT...

OWN and STARTERS are the inherited ends of a socket pair (`lifeline.end_with`), CORES is a list such as 0,1 of the CPU
cores to run on, or all. The rest is what `python -m MODULE ARGUMENT...` would be. The process leads a process group,
which ends with it.
"""

from __future__ import annotations

import os
import runpy
import sys

from asyncrl.processes.lifeline import end_with


def _main() -> None:
    own, starters, cores, module, *arguments = sys.argv[1:]
    end_with(int(own), int(starters))
    if cores != "all" and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, map(int, cores.split(",")))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
