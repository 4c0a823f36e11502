"""The fixtures of these tests."""

import pytest
import quick_probe
from command import start as start
from unread_pipe import unread as unread

from asyncrl.envs import probe


@pytest.fixture(autouse=True)
def quick_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments are examined in forks of this process; commands that are not started quickly examine as usual."""
    monkeypatch.setattr(probe, "subprocess", quick_probe.SUBPROCESS)
