"""Finds callbacks by name: those that installed packages register, and those of the user's modules."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

from asyncrl.config.errors import UsageError
from asyncrl.config.flags import nearest_hint
from asyncrl.config.user_modules import import_user_module
from asyncrl.observers.observer import Observer

GROUP = "asyncrl.callbacks"
"""Group of entry points: `NAME = "package.module:Class"` in a package's metadata registers the name."""


def load_callbacks(names: Sequence[str]) -> list[Observer]:
    """Returns the callbacks of these names; a class or function is called without arguments.

    Raises:
        UsageError: there is no such callback, or it is no observer.
    """
    loaded = []
    for name in names:
        found = find_callback(name)
        observer = found if isinstance(found, Observer) else found()
        if not isinstance(observer, Observer):
            text = f"--callbacks={name} made {type(observer).__name__}, but an asyncrl.Observer is expected."
            raise UsageError(text)
        loaded.append(observer)
    return loaded


def find_callback(name: str) -> Any:
    """Returns the object with the name `MODULE:Name`, or that of an entry point."""
    module, separator, attribute = name.partition(":")
    if not separator:
        registered = {entry.name: entry for entry in entry_points(group=GROUP)}
        if name in registered:
            return registered[name].load()
        known, hint = ", ".join(sorted(registered)) or "none", nearest_hint(name, registered)
        raise UsageError(f"--callbacks={name}: no package registers it (registered: {known}){hint}. Or MODULE:Name.")
    try:
        found = getattr(import_user_module(module), attribute, None)
    except UsageError as error:
        raise UsageError(f"--callbacks={name}: {error}") from error
    if not (isinstance(found, Observer) or callable(found)):
        raise UsageError(f"--callbacks={name}: the module {module} has no callback {attribute!r}.")
    return found
