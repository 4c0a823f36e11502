"""The input of every role: settings, plan, spaces, and shared memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.control import PoliciesControl, RunControl, WorkerDeaths
from asyncrl.buffers.layout import opponent_prefix, policy_prefix
from asyncrl.config.algorithms import imported
from asyncrl.config.fixed_settings import OF_NETWORKS, fixed_changes
from asyncrl.config.hyperparameters import NO_CHANGES, Hyperparameters
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner.state import LearnerState
from asyncrl.models.sizes import weights_block_size
from asyncrl.modes.choice import arena_specs, mode_of
from asyncrl.modes.mode import Mode
from asyncrl.processes.own_settings import with_own_settings
from asyncrl.processes.seeding import attempt_seed, rank_seed, role_seed
from asyncrl.processes.torchrun import RankAddress
from asyncrl.rollout.policy_mapping import specs_of_policies
from asyncrl.storage import checkpoint
from asyncrl.storage.locating import policy_folder, source_of_policy


@dataclass(frozen=True)
class RunSetup:
    """The input of every role: settings, plan, spaces and the arena. Children receive it as a start-up argument.

    Attributes:
        checkpoints: the run's folder of checkpoints.
        resume_from: the checkpoint from which the run resumes; None for a new run.
        first_env_steps: environment steps of the run before this start.
        rank: address of this rank; None without torchrun.
        hyperparameters: changes that observers made before this start, in a resumed run.
        steps_at_restart: environment steps since this start when the process that gets this was restarted; None if it
            was not.
        policy_idx: of several policies, or one and its opponents, the one that this setup is for (`for_policy`,
            `for_opponent`); None for the whole run.
        policy_starts: where each of several policies resumes from, and its environment steps before this start.
        hyperparameters_of_policies: of each of several policies, as `hyperparameters`.
        attempts: how often the run, and then what runs inside it, was started again: a pool, a process. A successor may
            begin at the same step, so the steps do not tell its seeds from those of the process before.
    """

    config: TrainConfig
    plan: ResourcePlan
    spec: EnvSpec
    arena: Arena
    checkpoints: Path
    resume_from: Path | None
    first_env_steps: int
    rank: RankAddress | None = None
    hyperparameters: Hyperparameters = NO_CHANGES
    steps_at_restart: int | None = None
    policy_idx: int | None = None
    policy_starts: tuple[tuple[Path | None, int], ...] = ()
    hyperparameters_of_policies: tuple[Hyperparameters, ...] = ()
    attempts: tuple[int, ...] = (0,)

    @classmethod
    @with_own_settings
    def create(
        cls,
        config: TrainConfig,
        plan: ResourcePlan,
        spec: EnvSpec,
        checkpoints: Path,
        resume_from: Path | None = None,
        rank: RankAddress | None = None,
        first_env_steps: int | None = None,
        hyperparameters: Hyperparameters | None = None,
        policy_starts: Sequence[tuple[Path | None, int]] = (),
        attempt: int = 0,
    ) -> RunSetup:
        """Allocates the arena of a run, all slots free.

        Args:
            config: the run's settings.
            plan: the resources resolved from them.
            spec: the environment's spaces.
            checkpoints: the run's folder of checkpoints.
            resume_from: the checkpoint from which the run resumes.
            rank: address of this rank; None without torchrun.
            first_env_steps: environment steps of the run before; by default those of the checkpoint.
            hyperparameters: changes that are in effect; by default those of the checkpoint.
            policy_starts: see the class; by default several policies start at step 0.
            attempt: 0 for the first attempt of this session, another number for each that follows a failure.
        """
        if hyperparameters is None:
            hyperparameters = checkpoint.load_hyperparameters(resume_from, config)
        if first_env_steps is None:
            first_env_steps = 0 if resume_from is None else checkpoint.saved_env_steps(resume_from)
        mode = mode_of(plan)
        specs = specs_of_policies(spec, config.maps_policies, plan.num_policies)
        sizes = [weights_block_size(own, config.for_policy(idx)) for idx, own in enumerate(specs)]
        arena = Arena.create(arena_specs(spec, plan, sizes, mode.shared_sizes(spec, config)))
        setup = cls(
            config,
            plan,
            spec,
            arena,
            checkpoints,
            resume_from,
            first_env_steps,
            rank,
            hyperparameters,
            attempts=(attempt,),
        )
        imported(mode.roles)().prepare(setup)
        if plan.num_policies == 1:
            return setup
        starts = tuple(policy_starts) or ((None, 0),) * plan.num_policies
        changes = tuple(
            checkpoint.load_hyperparameters(path, config.for_policy(idx)) for idx, (path, _) in enumerate(starts)
        )
        return dataclasses.replace(setup, policy_starts=starts, hyperparameters_of_policies=changes)

    def for_policy(self, policy_idx: int) -> RunSetup:
        """The setup of the roles of one policy: its settings and spaces, its part of the arena, its checkpoints."""
        if self.plan.num_policies == 1:
            return dataclasses.replace(self, policy_idx=0) if self.plan.num_opponents > 0 else self
        resume_from, env_steps = self.policy_starts[policy_idx]
        return dataclasses.replace(
            self,
            config=self.config.for_policy(policy_idx),
            spec=specs_of_policies(self.spec, self.config.maps_policies, self.plan.num_policies)[policy_idx],
            arena=self.arena.scoped(policy_prefix(policy_idx)),
            checkpoints=policy_folder(self.checkpoints, policy_idx),
            resume_from=resume_from,
            first_env_steps=env_steps,
            hyperparameters=self.hyperparameters_of_policies[policy_idx],
            policy_idx=policy_idx,
        )

    def for_opponent(self, number: int) -> RunSetup:
        """The setup of one opponent, of the policy's settings: its part of the arena."""
        arena = self.arena.scoped(opponent_prefix(number))
        return dataclasses.replace(self, arena=arena, policy_idx=self.plan.num_policies + number)

    @property
    def learner_config(self) -> TrainConfig:
        """The settings, with the hyperparameters that are in effect when training begins."""
        return self.hyperparameters.apply_to(self.config)

    @property
    def mode(self) -> Mode:
        """The way in which the run runs."""
        return mode_of(self.plan)

    @property
    def control(self) -> RunControl:
        """The words of requests and progress: of one policy, or of the whole run."""
        num_workers, num_policies = self.plan.num_workers, self.plan.num_policies
        if num_policies == 1 or self.policy_idx is not None:
            return RunControl(self.arena, num_workers)
        controls = [RunControl(self.arena.scoped(policy_prefix(idx)), num_workers) for idx in range(num_policies)]
        return PoliciesControl(self.arena, num_workers, controls)

    def for_restart(self, number: int) -> RunSetup:
        """The setup of a process that replaces a dead one, for the restart `number` of that process, from 1 on."""
        steps = self.control.total_steps
        return dataclasses.replace(self, steps_at_restart=steps, attempts=(*self.attempts, number))

    @property
    def seed(self) -> int:
        """Seed of environments, exploration and sampling, different in each rank and attempt.

        Initial weights do not use it.
        """
        own_seed = rank_seed(self.config.seed, self.policy_idx or (0 if self.rank is None else self.rank.rank))
        return attempt_seed(own_seed, self.attempts)

    def global_seed(self, role: str, index: int = 0) -> int:
        """Seed of the global generators in the process of a role, see `role_seed`."""
        return role_seed(self.seed, role, index, self.seed_steps)

    def with_policy_seed(self, config: TrainConfig) -> TrainConfig:
        """Settings with which each of several policies has initial weights and an order of minibatches of its own."""
        return config.model_copy(update={"seed": rank_seed(config.seed, self.policy_idx or 0)})

    @property
    def seed_steps(self) -> int:
        """Environment steps from which seeds are derived too, so that a successor repeats no random numbers."""
        return self.first_env_steps + (self.steps_at_restart or 0)

    @property
    def worker_deaths(self) -> WorkerDeaths:
        """The words of dead rollout workers."""
        has_server, has_slots = self.plan.num_inference_workers > 0, self.mode.learner_grants_slots
        return WorkerDeaths(self.arena, has_server, has_slots)

    def server_of(self, worker_idx: int) -> int:
        """Index of the inference worker that serves a rollout worker with all its splits."""
        return worker_idx % self.plan.num_inference_workers

    def served_by(self, server_idx: int) -> list[int]:
        """Indices of the rollout workers that an inference worker serves."""
        return [worker for worker in range(self.plan.num_workers) if self.server_of(worker) == server_idx]


def has_same_networks(state: Mapping[str, Any], config: TrainConfig, spec: EnvSpec) -> bool:
    """Whether all networks of a checkpoint with this state have the tensors that the run has."""
    before = TrainConfig.from_saved(state["config"])
    is_same = not any(change.name in OF_NETWORKS for change in fixed_changes(before, config))
    is_same &= before.is_off_policy or before.algorithm.make_learner == config.algorithm.make_learner
    return is_same and EnvSpec.from_data(state["spec"]).shape_of_networks == spec.shape_of_networks


def state_to_begin_with(setup: RunSetup) -> LearnerState | None:
    """The learner's state at the start, from a checkpoint of this run or from `init_from`; None without either.

    A resumed run keeps its current learning rate, unless the user has changed the rate or the schedule. A new run takes
    everything except the learning rate; from other networks what fits.
    """
    config, is_whole = setup.config, True
    if setup.resume_from is not None:
        saved = checkpoint.load(setup.resume_from)
        before = saved.state["config"]
        is_same = (before["learning_rate"], before["lr_schedule"]) == (config.learning_rate, config.lr_schedule)
    elif config.init_from is not None:
        path = source_of_policy(config.init_from, config.num_policies, setup.policy_idx or 0)
        saved, is_same = checkpoint.load(path), False
        is_whole = bool(saved.optimizer) and has_same_networks(saved.state, config, setup.spec)
    else:
        return None
    scalars = dict(saved.state) if is_same else {**saved.state, "learning_rate": setup.learner_config.learning_rate}
    return LearnerState(dict(saved.model), dict(saved.optimizer), scalars, is_whole)
