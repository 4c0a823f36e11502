"""Evaluation during training: whole episodes of a fixed policy, while training continues.

consumes  published weights and statistics, one consistent block
produces  evaluation reports, and the best checkpoint if evaluations choose it
waits     until enough environment steps were trained; it checks every POLL_S seconds
stops     when the run has ended and its last evaluation is done, or when the run was asked to stop
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch

from asyncrl.buffers.control import RunControl
from asyncrl.buffers.weights import Publication, WeightsChannel
from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.errors import EnvironmentFailed
from asyncrl.envs.spec import EnvSpec
from asyncrl.evaluation.episodes import EvaluationResult, evaluate
from asyncrl.models.factory import make_acting_model
from asyncrl.models.flat import FlatParameters, block_size, read_block
from asyncrl.monitoring.reports import CheckpointReport, EvaluationFailed, EvaluationReport, Report
from asyncrl.policy import Policy
from asyncrl.runtime import checkpoint
from asyncrl.runtime.seeding import Stream, derive_seed

POLL_S = 0.2
_LOOK_EVERY_S = 0.2

log = logging.getLogger(__name__)


class _Abandoned(Exception):
    """The run was asked to stop during an evaluation."""


class PublishedPolicy:
    """A fixed copy of a policy, which changes only when `read` is called.

    Attributes:
        config: settings of the policy.
        spec: spaces of the environment.
        weights: the published weights.
        model: the copy.
    """

    def __init__(self, config: TrainConfig, spec: EnvSpec, weights: WeightsChannel) -> None:
        self.config, self.spec, self.weights = config, spec, weights
        self.model = make_acting_model(spec, config).eval()
        self._flat = FlatParameters(self.model, with_grad=False)
        self._block = np.empty(block_size(self.model), dtype=np.float32)

    def read(self) -> Publication:
        """Copies the newest weights and statistics, of which there must be some."""
        news = self.weights.read(self._block, 0)
        assert news is not None
        read_block(self.model, self._flat, torch.from_numpy(self._block))
        return news

    def player(self, seed: int) -> Policy:
        """The copy as a player; `seed` is for sampled actions."""
        return Policy(self.model, self.spec, self.config, seed=seed)


class EvaluationWorker:
    """Evaluates a copy of a policy every `eval_every_env_steps`, and when an observer requests it."""

    def __init__(
        self,
        policy: PublishedPolicy,
        control: RunControl,
        checkpoints: Path,
        env_steps: int,
        policy_idx: int = 0,
        others: Mapping[int, PublishedPolicy] | None = None,
    ) -> None:
        """Creates the worker.

        Args:
            policy: the policy that is evaluated. Other workers of the process may read it too.
            control: the words of the whole run in the arena.
            checkpoints: the policy's folder of checkpoints.
            env_steps: environment steps so far; evaluations are due at the later multiples of `eval_every_env_steps`.
            policy_idx: number of the policy, for reports.
            others: by the agent's number, the policies that play agents in its place. Their returns do not count.
        """
        self._policy = policy
        self._config = policy.config
        self._policy_idx = policy_idx
        self._others = dict(others or {})
        self._every = policy.config.eval_every_env_steps
        self._num_requests = 0  # requests of observers that were fulfilled
        self._weights = policy.weights
        self._control = control
        self._checkpoints = checkpoints
        self._best = checkpoint.best_return(checkpoints)
        self._due_at = self._next_after(env_steps)
        self._evaluated: tuple[int, int] | None = None  # policy version and steps of the last evaluation

    @property
    def is_due(self) -> bool:
        """Whether the next evaluation is due: at its number of steps, by a request, or of the final policy.

        After the last environment step the last update still changes the policy, so the final policy is evaluated once
        the run has ended.
        """
        if any(policy.weights.num_publications == 0 for policy in (self._policy, *self._others.values())):
            return False
        env_steps = self._weights.newest.env_steps
        if self._control.num_evaluations > self._num_requests:
            return True
        if self._every is None:
            return False
        if self._control.ended:
            return self._evaluated != (self._weights.newest.version, env_steps)
        return self._due_at <= env_steps < self._config.train_for_env_steps

    @property
    def is_over(self) -> bool:
        """Whether the worker has nothing left to evaluate."""
        return self._control.stop_requested or (self._control.ended and not self.is_due)

    def run(self, look: Callable[[], None] | None = None) -> list[Report]:
        """Evaluates the newest weights; `look` is called now and then, for a process that has other work too.

        Returns the result or the failure, and the checkpoint that was saved; nothing if the run was asked to stop.
        """
        started = time.monotonic()
        self._num_requests = self._control.num_evaluations
        news = self._policy.read()
        for other in self._others.values():
            other.read()
        self._due_at, self._evaluated = self._next_after(news.env_steps), (news.version, news.env_steps)

        def look_around(episodes: int, steps: int) -> None:
            if look is not None:
                look()
            if self._control.stop_requested:
                raise _Abandoned

        # Not the episodes of `python -m asyncrl.evaluate`: the choice of the best checkpoint would bias its result.
        seed = derive_seed(self._config.seed, Stream.EVALUATION)
        try:
            result = evaluate(
                self._policy.player(seed),
                episodes=self._config.eval_episodes,
                seed=seed,
                deterministic=self._config.eval_deterministic,
                report=look_around,
                report_every_s=_LOOK_EVERY_S,
                others=[other.player(seed + number) for number, other in enumerate(self._others.values(), start=1)],
                choose=lambda agent, _: list(self._others).index(agent) + 1 if agent in self._others else 0,
            )
        except _Abandoned:
            return []
        except (EnvironmentFailed, UsageError) as error:
            log.error("%s", error)
            return [EvaluationFailed(str(error).partition("\n")[0].rstrip(":"))]
        if self._others:
            own = [agent for place, agent in enumerate(self._policy.spec.agents) if place not in self._others]
            result = result.of_agents(own)
        reports: list[Report] = [
            EvaluationReport(
                env_steps=news.env_steps,
                policy_version=news.version,
                mean_reward=result.mean_reward,
                std_reward=result.std_reward,
                mean_ep_length=result.mean_ep_length,
                episodes=len(result.returns),
                wall_s=time.monotonic() - started,
                policy_idx=self._policy_idx,
            )
        ]
        if self._config.best_metric == "eval" and (self._best is None or result.mean_reward > self._best):
            reports.append(self._save_best(news, result))
        return reports

    def _next_after(self, env_steps: int) -> int:
        return 0 if self._every is None else (env_steps // self._every + 1) * self._every

    def _save_best(self, news: Publication, result: EvaluationResult) -> CheckpointReport:
        """Saves the evaluated policy, without an optimizer: the learner has trained on since."""
        state = {
            "env_steps": int(news.env_steps),
            "policy_version": int(news.version),
            "config": self._config.model_dump(mode="json"),
            "spec": self._policy.spec.to_data(),
        }
        content = checkpoint.Checkpoint(self._policy.model.state_dict(), {}, state)
        try:
            path = checkpoint.save_best(self._checkpoints, content, int(news.env_steps), result.mean_reward)
        except checkpoint.CheckpointError as error:
            log.error("%s", error)
            folder = str(self._checkpoints)
            return CheckpointReport(folder, int(news.env_steps), str(error), "best", policy_idx=self._policy_idx)
        self._best = result.mean_reward
        return CheckpointReport(str(path), int(news.env_steps), None, "best", result.mean_reward, self._policy_idx)
