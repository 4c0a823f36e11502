"""The fixtures of these tests."""

from pretending import pretends as pretends
