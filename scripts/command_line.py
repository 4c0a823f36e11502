"""Values of flags that several scripts take."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def names_in(text: str, known: Sequence[str]) -> list[str]:
    """Splits a list of names at its commas.

    Raises:
        argparse.ArgumentTypeError: one of them is not known.
    """
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")
    return names
