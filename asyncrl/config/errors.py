"""The error that means: the user can fix this."""

from __future__ import annotations


class UsageError(Exception):
    """A mistake in what the user gave. The command lines print its text, one clear sentence, and exit with 2."""
