"""Imports the user's modules, which register environments, networks and algorithms."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

from asyncrl.config.errors import UsageError


def import_user_module(name: str) -> ModuleType:
    """Imports one module from Python's path, where the working directory comes first if it is nowhere else in it.

    Raises:
        UsageError: there is no such module.
    """
    if name in sys.modules:
        return sys.modules[name]
    if not name or name.startswith(".") or "/" in name or name.endswith(".py"):
        raise UsageError(f"{name!r} is not the name of a module: give it as in an import, such as package.module.")
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise
        raise UsageError(
            f"There is no module {name!r} in the working directory {os.getcwd()} or on Python's path."
        ) from error
