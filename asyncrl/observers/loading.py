"""Finds callbacks by name: those that installed packages register, and those of the user's modules."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

from asyncrl.config.errors import UsageError
from asyncrl.config.flags import nearest_hint
from asyncrl.config.user_modules import import_user_module
from asyncrl.envs.errors import environment_traceback
from asyncrl.observers.observer import Observer, refuse_unknown_events

log = logging.getLogger(__name__)

GROUP = "asyncrl.callbacks"
"""Group of entry points: `NAME = "package.module:Class"` in a package's metadata registers the name."""


def load_callbacks(names: Sequence[str]) -> list[Observer]:
    """Returns the callbacks of these names; a class or function is called without arguments.

    Raises:
        UsageError: there is no such callback, it raises an exception, or it is not an observer of known events.
    """
    loaded = []
    for name in names:
        found = find_callback(name)
        try:
            observer = found if isinstance(found, Observer) else found()
        except Exception as error:
            raise UsageError(f"--callbacks={name} raised an exception:\n{environment_traceback(error)}") from error
        if not isinstance(observer, Observer):
            text = f"--callbacks={name} made {type(observer).__name__}, but an asyncrl.Observer is expected."
            raise UsageError(text)
        refuse_unknown_events(observer)
        loaded.append(observer)
    return loaded


def find_callback(name: str) -> Any:
    """Returns the object with the name `MODULE:Name`, or that of an entry point.

    Raises:
        UsageError: there is no such callback, or it needs arguments.
    """
    module, separator, attribute = name.partition(":")
    if not separator:
        registered = {entry.name: entry for entry in entry_points(group=GROUP)}
        if name in registered:
            return _checked(name, registered[name].load())
        known, hint = ", ".join(sorted(registered)) or "none", nearest_hint(name, registered)
        raise UsageError(f"--callbacks={name}: no package registers it (registered: {known}){hint}. Or MODULE:Name.")
    try:
        found = getattr(import_user_module(module), attribute, None)
    except UsageError as error:
        raise UsageError(f"--callbacks={name}: {error}") from error
    if not (isinstance(found, Observer) or callable(found)):
        raise UsageError(f"--callbacks={name}: the module {module} has no callback {attribute!r}.")
    return _checked(name, found)


def _checked(name: str, found: Any) -> Any:
    if not isinstance(found, Observer):
        try:
            inspect.signature(found).bind()
        except TypeError as error:
            raise UsageError(
                f"--callbacks={name} needs arguments ({error}): give a function or a subclass of your own that makes "
                "it, or pass the object to asyncrl.Trainer."
            ) from error
        except ValueError:
            log.debug("--callbacks=%s has no signature that can be read; it is called as it is", name)
    return found
