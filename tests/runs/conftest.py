"""The fixtures of these tests."""

from command import start as start
from unread_pipe import unread as unread
