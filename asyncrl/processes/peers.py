"""The connection of a rank's runner to the runners of the other ranks: settings from rank 0, and signs of life.

A rank 0 that starts writes a new token into torchrun's store, and answers the other ranks that greet it under this
token; all that the ranks of one attempt say is under it. So what an earlier attempt has left there is never read.

Each runner then increments a counter in the store, and checks that the counters of the others change. A rank that
fails writes the reason there; a rank whose machine is down writes nothing. The learners' exchanges have no time limit,
because a rank may wait long for its environments: the runner ends them. Where the runner itself learns, in serial mode,
it may be such an exchange that never ends; then the heartbeat ends the process.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from asyncrl.processes.children import RunFailed
from asyncrl.processes.signals import STOPPING
from asyncrl.processes.torchrun import RankAddress

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

BEAT_S = 1.0
SILENCE_S = 30.0
"""Time without a response after which a rank counts as dead."""
START_S = 300.0
"""How long a rank may take to connect."""
GREETING_S = 2.0
"""How long to wait for rank 0's answer before its token is read again."""
UNHEARD_S = 60.0
"""How long a runner that learns may leave the failure of another rank unread: then it waits for that rank for ever."""
LOST_OTHERS = "lost the connection to the other ranks during an exchange"
EXPLANATION_S = 5.0
"""How long to wait for the reason of another rank's failure."""
LEAVE_S = 5.0
"""How long an ending rank waits for a store that may not answer."""
LAST_SAVE_S = 300.0
"""How long the rank with the store waits at its end for the others, which may still save."""
_LONGEST_INTERVAL_S = 2.0
_FIRST_BEATS_S = 0.1  # between beats until all others have been heard
_POLL_S = 0.02
_LOST_STORE = "the store of the run's ranks has not answered for"
_NOT_FAILED = (0, *(128 + number for number in STOPPING))


def open_store(address: RankAddress, part: str) -> Store:
    """Connects to the store of a run's ranks; each `part` has separate keys.

    Raises:
        RunFailed: the store does not answer.
    """
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    return PrefixStore(f"{address.meeting}/{part}", _connect(address))


def _connect(address: RankAddress, *, is_runner: bool = False) -> Store:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    try:
        return TCPStore(
            address.host,
            address.port,
            is_master=is_runner and address.has_store and address.rank == 0,
            timeout=timedelta(seconds=START_S),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except RuntimeError as error:
        where = f"{address.host}:{address.port}"
        raise RunFailed(f"rank {address.rank} cannot reach the store of its run at {where}", str(error)) from None


def _meet(address: RankAddress, store: Store) -> RankAddress:
    """The address with the token of this attempt in its `meeting`.

    Raises:
        RunFailed: rank 0 does not answer, or the store has been lost.
    """
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    own = secrets.token_hex(8)
    if address.rank == 0:
        store.set("token", own)
        return dataclasses.replace(address, meeting=f"{address.meeting}/{own}")
    deadline = time.monotonic() + START_S
    try:
        while time.monotonic() < deadline:
            if not store.check(["token"]):
                time.sleep(_POLL_S)
                continue
            token = store.get("token").decode()
            runners = PrefixStore(f"{token}/runners", store)
            runners.set(f"greeting/{address.rank}", own)
            answer_until = time.monotonic() + GREETING_S
            while time.monotonic() < answer_until:
                if runners.check([f"answer/{address.rank}"]) and runners.get(f"answer/{address.rank}").decode() == own:
                    return dataclasses.replace(address, meeting=f"{address.meeting}/{token}")
                time.sleep(_POLL_S)
    except RuntimeError as error:
        raise RunFailed(f"rank {address.rank} has lost the store of its run", str(error)) from None
    raise RunFailed(f"rank {address.rank}: rank 0 has not answered for {START_S:.0f} s")


class Peers:
    """The other ranks. Rank 0 sends the settings, and every rank reports its outcome.

    Attributes:
        address: of this rank, with a `meeting` that other attempts do not have.
        runner_learns: whether the main thread itself exchanges gradients, and so may wait for a dead rank for ever.
    """

    def __init__(self, address: RankAddress) -> None:
        """Connects, and starts the heartbeat; other ranks wait until rank 0 has answered.

        Raises:
            RunFailed: the store or rank 0 does not answer.
        """
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        store = _connect(address, is_runner=True)  # rank 0 may own it
        self.address = address = _meet(address, PrefixStore(address.meeting, store))
        self.is_first = address.rank == 0
        self.runner_learns = False
        self._has_sent_settings = False
        self._own_failure: str | None = None
        self._store = PrefixStore(f"{address.meeting}/runners", store)
        self._failure: str | None = None
        self._others = [rank for rank in range(address.num_ranks) if rank != address.rank]
        # An interval counts as 2 s at most: a run that was suspended for an hour has heard nothing, and is well.
        self._beats: dict[int, bytes] = {}
        self._answered: set[int] = set()  # whose greeting rank 0 has answered
        self._ended: set[int] = set()  # they have left or failed
        self._silences_s = dict.fromkeys(self._others, 0.0)
        self._looked_at = self._checked_at = self._answered_at = time.monotonic()
        self._store_silence_s = 0.0
        self._failed_at = 0.0
        self._is_heard = False  # `check` has raised the failure
        self._store_error = ""
        self._to_share: bytes | None = None
        self._shared: bytes | None = None
        self._is_leaving = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def send_settings(self, settings: Mapping[str, Any]) -> None:
        """Sends the settings to all other ranks (rank 0); later calls do nothing."""
        if not self._has_sent_settings:
            self._has_sent_settings = True
            self._store.set("run", json.dumps(settings))

    def receive_settings(self) -> dict[str, Any]:
        """Receives the settings from rank 0.

        Raises:
            RunFailed: a rank has failed.
        """
        while not self._store.check(["run"]):  # rank 0 first checks the environment, which may take long
            self.check()
            time.sleep(0.05)
        settings: dict[str, Any] = json.loads(self._store.get("run"))
        return settings

    def share(self, content: bytes | None) -> bytes | None:
        """Returns the last content of rank 0, in other ranks about a second later; never waits for the store.

        Args:
            content: the content of rank 0; other ranks pass what they have.
        """
        if self.is_first:
            self._to_share = content
        return content if self.is_first or self._shared is None else self._shared

    def check(self) -> None:
        """Checks that all others are alive.

        Raises:
            RunFailed: one of them has failed or does not respond, or the store does not respond.
        """
        now = time.monotonic()
        passed_s, self._checked_at = now - max(self._checked_at, self._answered_at), now
        self._store_silence_s += min(max(0.0, passed_s), _LONGEST_INTERVAL_S)
        if self._store_silence_s > SILENCE_S:  # without a network the other thread blocks in a request
            self._fail(f"{_LOST_STORE} {self._store_silence_s:.0f} s{self._store_error}")
        if self._failure is not None:
            self._is_heard = True
            raise RunFailed(self._failure, is_final=True)

    def explain(self, failure: RunFailed) -> RunFailed:
        """Returns the failure to end the run with: if an exchange failed, the reason that another rank reports."""
        deadline = time.monotonic() + (EXPLANATION_S if LOST_OTHERS in failure.summary else 0.0)
        while self._failure is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if self._failure is not None and self._failure != failure.summary:
            failure = RunFailed(f"{self._failure} (here: {failure.summary})", failure.details, failure.exit_code)
        self._own_failure = failure.summary
        return failure

    def record_exit_code(self, exit_code: int, *, was_stopped_at_once: bool = False) -> None:
        """Notes the exit code of this rank, which other ranks are told if it is a failure.

        Args:
            exit_code: after a stop by a signal, all ranks have ended together, and 128 + signal number counts as a
            normal stop.
            was_stopped_at_once: this rank has ended without the others, whose learners may wait for it.
        """
        if was_stopped_at_once:
            self._own_failure = "was stopped at once"
        elif exit_code not in _NOT_FAILED and self._own_failure is None:
            self._own_failure = f"ended with exit code {exit_code}"

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Reports the end or the failure of this rank, and stops the heartbeat.

        The rank that owns the store then waits for the others, which would count the store as lost.
        """
        # Ranks that start later than a short run ends learn from its store that it has ended.
        deadline = time.monotonic() + (SILENCE_S if self.is_first and error is None else 0.0)
        while len(self._answered) < len(self._others) and self._failure is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        self._is_leaving.set()
        self._thread.join(LEAVE_S)
        if self._thread.is_alive():
            return  # the store does not answer, and a second request would wait too
        failure = self._own_failure or (None if error is None else str(error))
        with contextlib.suppress(RuntimeError):
            if failure is None:
                self._store.set(f"left/{self.address.rank}", "")
            else:
                self._store.set(f"failed/{self.address.rank}", f"on {socket.gethostname()} failed: {failure}")
            if self.is_first and self.address.has_store:
                self._wait_for_others()

    def _wait_for_others(self) -> None:
        """Waits until all ranks that have joined have ended or fallen silent, at most `LAST_SAVE_S`."""
        deadline = time.monotonic() + LAST_SAVE_S
        while time.monotonic() < deadline:
            self._check_others(time.monotonic())
            if all(rank in self._ended or self._is_silent(rank) for rank in self._answered):
                return
            time.sleep(BEAT_S)

    def _beat(self) -> None:
        number, lost_s = 0, 0.0
        while not self._is_leaving.wait(BEAT_S if len(self._beats) == len(self._others) else _FIRST_BEATS_S):
            number += 1
            began = time.monotonic()
            try:
                self._store.set(f"beat/{self.address.rank}", str(number))
                self._answer_greetings()
                self._exchange_shared()
                self._check_others(began)
                self._answered_at = time.monotonic()
                self._store_silence_s = lost_s = 0.0
            except RuntimeError as error:
                self._store_error = f": {error}"
                lost_s += time.monotonic() - began + BEAT_S
                if lost_s > SILENCE_S:
                    self._fail(f"{_LOST_STORE} {lost_s:.0f} s{self._store_error}")
            is_late = self._failure is not None and time.monotonic() - self._failed_at > UNHEARD_S
            if self.runner_learns and is_late and not self._is_heard:
                print(f"error: {self._failure}", file=sys.stderr, flush=True)
                os._exit(1)

    def _answer_greetings(self) -> None:
        """Answers (rank 0) those whose heart does not beat yet; of a rank that has begun, a successor has to wait."""
        for rank in (rank for rank in self._others if self.is_first and rank not in self._beats):
            if self._store.check([f"greeting/{rank}"]):
                self._store.set(f"answer/{rank}", self._store.get(f"greeting/{rank}").decode())
                self._answered.add(rank)

    def _exchange_shared(self) -> None:
        if self.is_first and self._to_share is not self._shared:
            self._shared = self._to_share
            self._store.set("shared", base64.b64encode(self._to_share or b"").decode())
        elif not self.is_first and self._store.check(["shared"]):
            content = base64.b64decode(self._store.get("shared"))
            self._shared = self._shared if content == self._shared else content

    def _check_others(self, now: float) -> None:
        passed_s, self._looked_at = min(now - self._looked_at, _LONGEST_INTERVAL_S), now
        for rank in self._others:
            self._silences_s[rank] += passed_s
            if self._store.check([f"left/{rank}"]):
                self._ended.add(rank)
                self._silences_s[rank] = 0.0
            if self._store.check([f"failed/{rank}"]):
                self._ended.add(rank)
                self._fail(f"rank {rank} {self._store.get(f'failed/{rank}').decode()}")
            if self._store.check([f"beat/{rank}"]):
                beat = self._store.get(f"beat/{rank}")
                if beat != self._beats.get(rank):
                    self._beats[rank], self._silences_s[rank] = beat, 0.0
            if self._is_silent(rank):
                self._fail(f"rank {rank} has not responded for {self._silences_s[rank]:.0f} s")

    def _is_silent(self, rank: int) -> bool:
        return self._silences_s[rank] > (SILENCE_S if rank in self._beats else START_S)

    def _fail(self, text: str) -> None:
        if self._failure is None:
            self._failure, self._failed_at = text, time.monotonic()
