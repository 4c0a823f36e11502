"""An environment given as a callable: its name, and the callable itself where the name cannot be imported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from asyncrl.config.errors import UsageError

MakesEnv = Callable[..., Any]


class EnvMaker(str):
    """`module:name` of a callable that cannot be imported by that name, such as one of a notebook, with the callable.

    Files contain the name only, so that reading one never runs code.
    """

    make: MakesEnv

    def __new__(cls, make: MakesEnv) -> EnvMaker:
        maker = super().__new__(cls, _name(make))
        maker.make = make
        return maker

    def pickled(self) -> bytes:
        """The callable for another process, by value if no other process can import it.

        Raises:
            UsageError: it cannot be pickled.
        """
        import cloudpickle  # type: ignore[import-untyped]  # Gymnasium requires it

        try:
            return bytes(cloudpickle.dumps(self.make))
        except Exception as error:
            raise UsageError(
                f"The environment's callable {self} cannot be sent to other processes ({error}): define it at the top "
                "level of a module, without objects that cannot be pickled."
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        return unpickled, (self.pickled(),)


def unpickled(content: bytes) -> EnvMaker:
    """Reads the bytes of `EnvMaker.pickled`, which must come from a process of the same run."""
    import cloudpickle

    return EnvMaker(cloudpickle.loads(content))


def as_env(given: str | MakesEnv) -> str:
    """The name of an environment: an id, or `module:name` of a callable; an `EnvMaker` if that cannot be imported."""
    if isinstance(given, str):
        return given
    module, _, path = (name := _name(given)).partition(":")
    is_importable = module != "__main__" and find_callable(module, path) is given
    return name if is_importable else EnvMaker(given)


def find_object(module: str, path: str) -> Any:
    """The object at a path of names in an imported module; None if it has none there."""
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def find_callable(module: str, path: str) -> MakesEnv | None:
    found = find_object(module, path)
    return found if callable(found) else None


def _name(make: MakesEnv) -> str:
    while hasattr(make, "func"):  # functools.partial
        make = make.func
    named = make if hasattr(make, "__qualname__") else type(make)
    return f"{named.__module__}:{named.__qualname__}"
