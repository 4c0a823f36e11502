"""The fixtures of these tests."""

from command import start as start
