"""The roles of environments of tensors: one process steps them and trains, in turn, on the learner's device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from asyncrl.buffers.messages import Waker
from asyncrl.buffers.replay import ReplayLimits
from asyncrl.envs.factory import acting_seed, make_run_vector_env, vector_env_seed
from asyncrl.evaluation.building import build_evaluation_workers, published_teams
from asyncrl.evaluation.videos import VideoWorker
from asyncrl.evaluation.worker import EvaluationWorker
from asyncrl.learner.worker import LearnerLoop
from asyncrl.models.exploration import make_action_noise
from asyncrl.modes.learner_parts import LearnerParts, build_replay_loop, build_trajectory_loop
from asyncrl.modes.roles import Roles, SerialRoles
from asyncrl.modes.tensors.env_group import TensorEnvGroup
from asyncrl.modes.tensors.evaluation import EvaluatingGroup, SimulatorEvaluation
from asyncrl.modes.tensors.replay import DeviceReplay
from asyncrl.modes.tensors.worker import DeviceReplayWorker, DeviceWorker
from asyncrl.run.setup import RunSetup
from asyncrl.storage.checkpoint import load


class TensorRoles(Roles):
    """A worker that shares the model with the learner."""

    def prepare(self, setup: RunSetup) -> None:
        """Nothing is shared with other processes."""

    def serial(self, setup: RunSetup, waker: Waker, look: Callable[[], None]) -> SerialRoles:
        config, plan, parts = setup.config, setup.plan, LearnerParts.begin(setup)
        evaluations: list[EvaluationWorker | VideoWorker] = []
        group = _build_tensor_group(setup, parts.device, evaluations)
        if (info := setup.control.newest_training_info) is not None:
            group.set_training_info(info)
        seed = acting_seed(setup.seed, 0, setup.seed_steps)
        worker: DeviceWorker | DeviceReplayWorker
        loop: LearnerLoop
        if plan.replay is None:
            learner = parts.on_policy_learner()
            worker = DeviceWorker(group, learner, setup.spec, plan, parts.device, seed, setup.control)
            loop = build_trajectory_loop(parts, learner, worker, worker, look, publishes_passes=False)
        else:
            replay = DeviceReplay(setup.spec, plan.num_envs, plan.replay, parts.device)
            saved = None if setup.resume_from is None else load(setup.resume_from, with_replay=True).replay
            if saved is not None:
                replay.restore(saved)
            loop, replay_learner = build_replay_loop(parts, plan.replay, replay, None, [])
            limits = ReplayLimits(setup.arena)
            exploration = make_action_noise(replay_learner.model.distribution, config, 1, plan.num_envs, seed)
            worker = DeviceReplayWorker(
                group, replay_learner, replay, limits, parts.device, seed, setup.control, exploration
            )
        if not evaluations and config.eval_every_env_steps is not None:
            evaluations = build_evaluation_workers(setup)
        return SerialRoles([parts.worker(loop)], [], [worker], evaluations)


def _build_tensor_group(
    setup: RunSetup, device: torch.device, evaluations: list[EvaluationWorker | VideoWorker]
) -> TensorEnvGroup:
    """The simulator; adds its evaluation to `evaluations` if a part of it evaluates."""
    config, plan, spec = setup.config, setup.plan, setup.spec
    env = make_run_vector_env(config, plan.num_envs + plan.num_eval_envs)
    seed = vector_env_seed(setup.seed, 0, setup.seed_steps)
    if plan.num_eval_envs == 0:
        return TensorEnvGroup(env, seed, spec, config.action_mapping, device)
    ((_, team),) = published_teams(setup, "evaluation")
    evaluation = SimulatorEvaluation(
        team, setup.control, setup.checkpoints, setup.first_env_steps, plan.num_eval_envs, device
    )
    evaluations.append(evaluation)
    return EvaluatingGroup(env, seed, spec, config.action_mapping, device, evaluation)
