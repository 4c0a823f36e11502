"""Runners of several ranks, here two of one process: what they tell one another, and how a death is noticed."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from asyncrl.processes import peers
from asyncrl.processes.children import RunFailed
from asyncrl.processes.peers import LOST_OTHERS, Peers
from asyncrl.processes.signals import StopAtOnce
from asyncrl.processes.torchrun import RankAddress
from asyncrl.run import session as run_session

LIMIT_S = 20.0


@pytest.fixture
def join(free_port: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Peers]:
    """Makes one of two ranks, which beats fast."""
    monkeypatch.setattr(peers, "BEAT_S", 0.02)
    monkeypatch.setattr(peers, "_LONGEST_INTERVAL_S", 0.1)  # a process that gets no core is not a silence
    return lambda rank: Peers(RankAddress(rank, 2, rank, 2, "127.0.0.1", free_port, has_store=True, meeting="test"))


def failure_seen_by(peer: Peers) -> str:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            peer.check()
        except RunFailed as failure:
            return failure.summary
        time.sleep(0.01)
    raise AssertionError("nothing was noticed")


def wait_for_beats(*ranks: Peers) -> None:
    """Waits until each of these has heard the other rank."""
    deadline = time.monotonic() + LIMIT_S
    while not all(rank._beats for rank in ranks) and time.monotonic() < deadline:
        time.sleep(0.01)


def test_all_ranks_hear_what_the_first_one_says_first(join: Callable[[int], Peers]) -> None:
    with join(0) as first, join(1) as second:
        first.send_settings({"config": {"env": "A"}, "env_steps": None})
        first.send_settings({"exit_code": 0})
        assert second.receive_settings() == {"config": {"env": "A"}, "env_steps": None}


def test_a_rank_that_fails_is_named_with_its_reason(join: Callable[[int], Peers]) -> None:
    with join(0) as first:
        with join(1) as second:
            second.explain(RunFailed("the environment is broken"))
        seen = failure_seen_by(first)
        assert seen.startswith("rank 1 on ")
        assert seen.endswith("failed: the environment is broken")
        # A lost connection is what this looks like elsewhere.
        explained = first.explain(RunFailed(f"learner: rank 0 {LOST_OTHERS}"))
        assert explained.summary == f"{seen} (here: learner: rank 0 {LOST_OTHERS})"


@pytest.mark.parametrize(("exit_code", "has_failed"), [(0, False), (128 + signal.SIGTERM, False), (2, True)])
def test_an_exit_code_says_whether_a_rank_has_failed(
    exit_code: int, has_failed: bool, join: Callable[[int], Peers]
) -> None:
    with join(0) as first:
        with join(1) as second:
            second.record_exit_code(exit_code)
        assert (first._store.check(["left/1"]), first._store.check(["failed/1"])) == (not has_failed, has_failed)
        if has_failed:
            assert failure_seen_by(first).endswith("failed: ended with exit code 2")


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), StopAtOnce("Second SIGTERM", 143)], ids=repr)
def test_a_rank_that_is_stopped_at_once_ends_those_that_wait_for_it(
    stop: KeyboardInterrupt, join: Callable[[int], Peers], monkeypatch: pytest.MonkeyPatch
) -> None:
    with join(0) as first:
        monkeypatch.setattr(
            run_session, "next_rank", lambda: dataclasses.replace(first.address, rank=1, meeting="test")
        )
        with pytest.raises(KeyboardInterrupt), run_session.Session(lambda: pytest.fail("reads no settings")):
            raise stop
        assert failure_seen_by(first).endswith("failed: was stopped at once")


def test_a_rank_that_has_left_is_not_missed_and_one_that_falls_silent_is(
    join: Callable[[int], Peers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "SILENCE_S", 0.5)
    with join(0) as first:
        second = join(1)
        wait_for_beats(first)
        second._is_leaving.set()  # its machine is gone: no beat, and no word
        assert "rank 1 has not responded for" in failure_seen_by(first)
    left = join(0)
    with join(1) as other:
        other.check()
        leaving = threading.Thread(target=left.__exit__, args=(None, None, None))
        leaving.start()
        time.sleep(1.0)
        other.check()
        assert leaving.is_alive(), "it owns the store that the other one needs"
    leaving.join(LIMIT_S)
    assert not leaving.is_alive()


@pytest.mark.parametrize("how", ["refuses", "stands still"])
def test_a_store_that_does_not_answer_any_more_is_noticed(
    how: str, join: Callable[[int], Peers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "SILENCE_S", 0.5)
    monkeypatch.setattr(peers, "LEAVE_S", 1.0)
    is_over = threading.Event()

    class LostStore:
        """On a machine that has gone: a connection is refused, or what was sent is never answered."""

        def set(self, key: str, value: str) -> None:
            if how == "refuses":
                raise RuntimeError("connection reset by peer")
            is_over.wait(LIMIT_S)

    with join(0) as first:
        answering, first._store = first._store, LostStore()  # type: ignore[assignment]
        seen = failure_seen_by(first)
        assert seen.startswith("the store of the run's ranks has not answered for ")
        assert ("connection reset by peer" in seen) == (how == "refuses")
        left_at = time.monotonic()
        first.__exit__(None, None, None)
        assert not is_over.is_set() and time.monotonic() - left_at < LIMIT_S / 2
        is_over.set()
        first._store = answering


def test_a_rank_that_was_suspended_does_not_take_others_for_silent(
    join: Callable[[int], Peers], monkeypatch: pytest.MonkeyPatch
) -> None:
    skipped_s = 0.0
    now = time.monotonic
    monkeypatch.setattr(peers.time, "monotonic", lambda: now() + skipped_s)
    with join(0) as first, join(1) as second:
        wait_for_beats(first, second)
        for _ in range(5):
            skipped_s += 3600.0
            first.check()
            second.check()
            time.sleep(0.2)
        first.check()
        second.check()
        assert (first._failure, second._failure) == (None, None)
        assert max(first._silences_s[1], second._silences_s[0], first._store_silence_s) < peers.SILENCE_S


def test_settings_may_take_as_long_as_the_first_rank_lives(
    join: Callable[[int], Peers], monkeypatch: pytest.MonkeyPatch
) -> None:
    with join(0) as first, join(1) as second:
        monkeypatch.setattr(peers, "START_S", 0.5)
        sender = threading.Timer(1.0, first.send_settings, [{"config": {}}])
        sender.start()
        assert second.receive_settings() == {"config": {}}


def test_what_an_earlier_attempt_has_left_in_the_store_is_not_read(
    free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "BEAT_S", 0.02)
    monkeypatch.setattr(peers, "GREETING_S", 0.2)
    of_agent = peers._connect(
        RankAddress(0, 2, 0, 2, "127.0.0.1", free_port, has_store=True, meeting=""), is_runner=True
    )

    def join(rank: int) -> Peers:
        return Peers(RankAddress(rank, 2, rank, 2, "127.0.0.1", free_port, has_store=False, meeting="test"))

    with join(0) as first:
        first.send_settings({"attempt": 1})
        with join(1) as second:
            assert second.receive_settings() == {"attempt": 1}
            second.explain(RunFailed("the machine went down"))
        failure_seen_by(first)
    # The second rank is back first: it greets the token of the attempt before until the first rank has a new one.
    found: list[Peers] = []
    waiting = threading.Thread(target=lambda: found.append(join(1)))
    waiting.start()
    time.sleep(0.5)
    assert not found
    with join(0) as first:
        first.send_settings({"attempt": 2})
        waiting.join(LIMIT_S)
        with found[0] as second:
            assert second.receive_settings() == {"attempt": 2}
            assert second.address.meeting == first.address.meeting
            wait_for_beats(first, second)
            first.check()
            second.check()
    del of_agent


def test_a_rank_that_is_started_again_alone_gets_no_answer(
    join: Callable[[int], Peers], monkeypatch: pytest.MonkeyPatch
) -> None:
    with join(0) as first, join(1):
        wait_for_beats(first)
        monkeypatch.setattr(peers, "START_S", 1.0)
        with pytest.raises(RunFailed, match=r"rank 1: rank 0 has not answered for 1 s"):
            join(1)


def test_a_rank_that_starts_after_the_first_one_has_ended_learns_of_it(join: Callable[[int], Peers]) -> None:
    found: list[dict[str, Any]] = []

    def start_late() -> None:
        time.sleep(0.5)
        with join(1) as late:
            found.append(late.receive_settings())

    late = threading.Thread(target=start_late)
    with join(0) as first:
        late.start()
        first.send_settings({"exit_code": 0})
    late.join(LIMIT_S)
    assert found == [{"exit_code": 0}]


UNHEARD = """
import time
from asyncrl.processes import peers
from asyncrl.processes.torchrun import RankAddress

peers.BEAT_S, peers.SILENCE_S, peers.UNHEARD_S = 0.02, 0.5, 0.5
addresses = [RankAddress(rank, 2, rank, 2, "127.0.0.1", {port}, has_store=True, meeting="t") for rank in (0, 1)]
ranks = [peers.Peers(address) for address in addresses]
ranks[0].runner_learns = True
while 1 not in ranks[0]._beats:
    time.sleep(0.01)
ranks[1]._is_leaving.set()
time.sleep(60.0)
"""


def test_a_runner_that_waits_for_a_dead_rank_for_ever_is_ended(free_port: int) -> None:
    done = subprocess.run([sys.executable, "-c", UNHEARD.format(port=free_port)], capture_output=True, text=True)
    assert done.returncode == 1 and "error: rank 1 has not responded for" in done.stderr


def test_a_rank_that_finds_no_store_names_the_address(free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "START_S", 1.0)
    with pytest.raises(RunFailed, match=f"rank 1 cannot reach the store of its run at 127.0.0.1:{free_port}"):
        Peers(RankAddress(1, 2, 1, 2, "127.0.0.1", free_port, has_store=True, meeting="test"))
