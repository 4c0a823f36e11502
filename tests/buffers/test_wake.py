"""A wake-up is never lost and never blocks its sender."""

from __future__ import annotations

import fcntl
import resource
from collections.abc import Iterator

import pytest

from asyncrl.buffers.messages import Waker
from asyncrl.config import host


@pytest.fixture(params=["eventfd", "pipe"])
def waker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Waker]:
    if request.param == "pipe":
        monkeypatch.setattr(host, "IS_LINUX", False)
    waker = Waker()
    yield waker
    waker.close()


def test_a_wake_up_before_the_wait_ends_it_and_ends_only_one(waker: Waker) -> None:
    waker.wake()
    waker.wake()
    assert waker.wait(30.0)
    assert not waker.wait(0.0)


def test_a_process_may_have_more_files_open_than_select_takes() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 3000)), hard))
    low = Waker()
    waker = Waker(*(fcntl.fcntl(fd, fcntl.F_DUPFD, 1500) for fd in (low._read_fd, low._write_fd)))
    low.close()
    assert not waker.wait(0.001)
    waker.wake()
    assert waker.wait(30.0)
    waker.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.timeout(20)
def test_a_sender_never_blocks_though_nobody_listens(waker: Waker) -> None:
    for _ in range(20_000):
        waker.wake()
    assert waker.wait(30.0)
