"""The roles of learning from a replay in stripes.

    rollout worker --rows--> its stripes --sampled batches--> learner --published weights--> whoever acts, evaluation

With central inference the acting policy answers in a mailbox of one action for each environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from asyncrl.buffers.inference_buffer import InferenceBuffer
from asyncrl.buffers.messages import Waker
from asyncrl.buffers.replay import ReplayLimits, ReplayStripes
from asyncrl.config.algorithms import imported
from asyncrl.learner.worker import LearnerWorker
from asyncrl.modes.learner_parts import LearnerParts, build_replay_loop
from asyncrl.modes.replay.mode import replay_of
from asyncrl.modes.roles import ActingRoles, Exchange
from asyncrl.processes.own_settings import with_own_settings
from asyncrl.rollout.env_group import HostEnvGroup
from asyncrl.rollout.sinks import Sink
from asyncrl.run.setup import RunSetup
from asyncrl.storage.checkpoint import load


class ReplayRoles(ActingRoles):
    """Workers that write rows into their stripes, and a learner that samples them."""

    def prepare(self, setup: RunSetup) -> None:
        if setup.resume_from is not None:
            replay = load(setup.resume_from, with_replay=True).replay
            if replay is not None:
                _stripes(setup).restore(replay)

    def inference_buffer(self, setup: RunSetup) -> InferenceBuffer:
        return _stripes(setup)

    def sink_maker(
        self, setup: RunSetup, worker_idx: int, groups: Mapping[int, HostEnvGroup], learners: Sequence[Waker]
    ) -> Callable[[int, HostEnvGroup], Sink]:
        stripes, limits = _stripes(setup), ReplayLimits(setup.arena)
        if setup.steps_at_restart is not None:
            for split_idx in groups:
                stripes.close_episodes(split_idx)
        make_sink = imported(replay_of(setup.plan).kind.sink)
        return lambda split_idx, group: make_sink(split_idx, group, stripes, limits, learners[0])

    @with_own_settings
    def learner(
        self, setup: RunSetup, waker: Waker, workers: Sequence[Waker], look: Callable[[], None] | None = None
    ) -> tuple[LearnerWorker, Exchange | None]:
        parts = LearnerParts.begin(setup)
        loop, _ = build_replay_loop(parts, replay_of(setup.plan), _stripes(setup), waker, workers)
        return parts.worker(loop), None


def _stripes(setup: RunSetup) -> ReplayStripes:
    """The replay of a run, of its kind."""
    stripes: ReplayStripes = imported(replay_of(setup.plan).kind.stripes)(setup.arena)
    return stripes
