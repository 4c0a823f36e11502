"""The fixtures of these tests."""

from contrib.experiments.pretending import pretends as pretends
from unread_pipe import unread as unread
