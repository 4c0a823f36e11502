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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from asyncrl.buffers.control import RunControl
from asyncrl.buffers.weights import Publication, WeightsChannel
from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.errors import ENVIRONMENT_EXCEPTIONS, EnvironmentFailed, environment_traceback
from asyncrl.envs.interface import give_training_info
from asyncrl.envs.spec import EnvSpec
from asyncrl.evaluation.episodes import EvaluationResult, evaluate, make_checked_env
from asyncrl.inference.policy import Policy
from asyncrl.models.factory import make_acting_model
from asyncrl.models.flat import FlatParameters, block_size, read_block
from asyncrl.observers.reports import CheckpointReport, EvaluationFailed, EvaluationReport, Report
from asyncrl.processes.own_settings import with_own_settings
from asyncrl.processes.seeding import Stream, derive_seed
from asyncrl.storage import checkpoint

POLL_S = 0.2
_LOOK_EVERY_S = 0.2

log = logging.getLogger(__name__)


class Abandoned(Exception):
    """The run was asked to stop during an evaluation."""


class PublishedPolicy:
    """A fixed copy of a policy, which changes only when `read` is called.

    Attributes:
        config: settings of the policy.
        spec: spaces of the environment.
        weights: the published weights.
        model: the copy.
    """

    @with_own_settings
    def __init__(self, config: TrainConfig, spec: EnvSpec, weights: WeightsChannel) -> None:
        self.config, self.spec, self.weights = config, spec, weights
        self.model = make_acting_model(spec, config).eval()
        self._flat = FlatParameters(self.model, with_grad=False)
        self._block = np.empty(block_size(self.model), dtype=np.float32)

    @with_own_settings
    def read(self) -> Publication:
        """Copies the newest weights and statistics, of which there must be some."""
        news = self.weights.read(self._block, 0)
        assert news is not None
        read_block(self.model, self._flat, torch.from_numpy(self._block))
        return news

    def player(self, seed: int) -> Policy:
        """The copy as a player; `seed` is for sampled actions."""
        return Policy(self.model, self.spec, self.config, seed=seed)


@dataclass(frozen=True)
class PublishedTeam:
    """A policy that is played, and those that play other agents of its environment.

    Attributes:
        policy: the policy. Several workers of the process may read it.
        others: by the agent's number, the policies that play agents in its place. Their returns do not count.
        global_seed: see `evaluate`.
    """

    policy: PublishedPolicy
    others: Mapping[int, PublishedPolicy] = field(default_factory=dict)
    global_seed: int = 0

    @property
    def is_published(self) -> bool:
        """Whether all policies have weights."""
        return all(policy.weights.num_publications > 0 for policy in (self.policy, *self.others.values()))

    def read(self) -> Publication:
        """Copies the newest weights of all policies; returns what was copied of the first."""
        for other in self.others.values():
            other.read()
        return self.policy.read()

    def play(
        self,
        control: RunControl,
        look: Callable[[], None] | None,
        *,
        episodes: int,
        num_envs: int = 8,
        make: Callable[[int], gymnasium.Env[Any, Any]] | None = None,
        max_steps: int | None = None,
    ) -> EvaluationResult:
        """Plays the copies that were read, always in the same episodes; arguments are those of `evaluate`.

        Environments have the newest dict of `set_training_info` before their first reset.

        Args:
            control: the words of the whole run in the arena.
            look: called now and then, for a process that has other work too.
            episodes: number of episodes.
            num_envs: environments at the same time.
            make: makes the environments.
            max_steps: longest episode.

        Raises:
            Abandoned: the run was asked to stop.
        """

        def look_around(episodes: int, steps: int) -> None:
            if look is not None:
                look()
            if control.stop_requested:
                raise Abandoned

        def make_told(number: int) -> gymnasium.Env[Any, Any]:
            env = make_checked_env(self.policy.config) if make is None else make(number)
            if told is not None and told.of_observers is not None:
                try:
                    give_training_info(env, told.of_observers)
                except ENVIRONMENT_EXCEPTIONS as error:
                    text = f"An environment failed in set_training_info:\n{environment_traceback(error)}"
                    raise EnvironmentFailed(text) from error
            return env

        told = control.newest_training_info
        config, others = self.policy.config, list(self.others)
        # Not the episodes of `asyncrl evaluate`: the choice of the best checkpoint would bias its result.
        seed = derive_seed(config.seed, Stream.EVALUATION)
        result = evaluate(
            self.policy.player(seed),
            episodes=episodes,
            num_envs=num_envs,
            seed=seed,
            deterministic=config.eval_deterministic,
            report=look_around,
            report_every_s=_LOOK_EVERY_S,
            make=make_told,
            others=[other.player(seed + number) for number, other in enumerate(self.others.values(), start=1)],
            choose=lambda agent, _: others.index(agent) + 1 if agent in others else 0,
            max_steps=max_steps,
            global_seed=self.global_seed,
        )
        return result.for_agents([agent for agent in range(self.policy.spec.num_agents) if agent not in others])


class Schedule:
    """When something is due that is repeated every so many environment steps.

    After the last environment step the last update still changes the policy, so it is due for the final policy once the
    run has ended.
    """

    def __init__(self, every: int | None, end: int, first_at: int) -> None:
        """Is due never if `every` is None, else first at `first_at` environment steps, and for the policy at `end`."""
        self._every = every
        self._end = end
        self._due_at = first_at
        self._done: tuple[int, int] | None = None  # policy version and steps of the last time

    def is_due(self, newest: Publication, has_ended: bool) -> bool:
        """Whether it is due for the newest weights; `has_ended` says that they are the final ones."""
        if self._every is None:
            return False
        if has_ended:
            return self._done != (newest.version, newest.env_steps)
        return self._due_at <= newest.env_steps < self._end

    def record(self, news: Publication) -> None:
        """Records that it is being done for these weights."""
        self._due_at, self._done = next_multiple(self._every, news.env_steps), (news.version, news.env_steps)


def next_multiple(every: int | None, env_steps: int) -> int:
    """The next multiple of `every` after `env_steps`; 0 for None."""
    return 0 if every is None else (env_steps // every + 1) * every


class EvaluationWorker:
    """Evaluates a copy of a policy every `eval_every_env_steps`, and when an observer requests it."""

    def __init__(
        self, team: PublishedTeam, control: RunControl, checkpoints: Path, env_steps: int, policy_idx: int = 0
    ) -> None:
        """Creates the worker.

        Args:
            team: the policy that is evaluated, and who plays the other agents.
            control: the words of the whole run in the arena.
            checkpoints: the policy's folder of checkpoints.
            env_steps: environment steps so far; evaluations are due at the later multiples of `eval_every_env_steps`.
            policy_idx: number of the policy, for reports.
        """
        self._team, self._policy = team, team.policy
        self._config = config = team.policy.config
        self._policy_idx = policy_idx
        self._num_requests = 0  # requests of observers that were fulfilled
        self._control = control
        self._checkpoints = checkpoints
        self._best = checkpoint.best_return(checkpoints, config)
        self._told: int | None = None  # number of the message of `set_training_info` at the last evaluation
        every = config.eval_every_env_steps
        self._schedule = Schedule(every, config.train_for_env_steps, next_multiple(every, env_steps))

    @property
    def is_due(self) -> bool:
        """Whether the next evaluation is due: by its schedule, or by a request."""
        if not self._team.is_published:
            return False
        if self._control.num_evaluations > self._num_requests:
            return True
        return self._schedule.is_due(self._policy.weights.newest, self._control.ended)

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
        news = self._team.read()
        self._schedule.record(news)
        self._forget_best_of_other_tasks()
        try:
            result = self._team.play(self._control, look, episodes=self._config.eval_episodes)
        except Abandoned:
            return []
        except (EnvironmentFailed, UsageError) as error:
            log.error("%s", error)
            return [EvaluationFailed(in_one_line(error))]
        return self.reports_of(news, result, started)

    def reports_of(self, news: Publication, result: EvaluationResult, started: float) -> list[Report]:
        """The report of an evaluation of these weights, and of the checkpoint if it is the best and is kept."""
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
                num_lost=result.num_lost,
            )
        ]
        if self._config.best_metric == "eval" and (self._best is None or result.mean_reward > self._best):
            reports.append(self._save_best(news, result))
        return reports

    def _forget_best_of_other_tasks(self) -> None:
        """Forgets the best return where environments have been told something new since, such as a harder stage."""
        info = self._control.newest_training_info
        before, self._told = self._told, 0 if info is None else info.num_of_observers
        if before is not None and before != self._told:
            self._best = None

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


def in_one_line(error: Exception) -> str:
    """The first line of an error's text, and the last one of a traceback in it, for one sentence to the user."""
    first, *rest = str(error).rstrip().splitlines() or [""]
    return ": ".join((first.rstrip(":"), *(line.strip() for line in rest[-1:])))
