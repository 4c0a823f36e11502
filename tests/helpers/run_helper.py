"""Whole runs in a test: small settings, the five ways to run, and what the learner was given."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from asyncrl.algorithms import ppo
from asyncrl.algorithms.losses import GaeResult, Samples
from asyncrl.algorithms.off_policy import Transitions
from asyncrl.buffers.control import RunControl
from asyncrl.buffers.messages import RequestTable
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.machine import Machine
from asyncrl.config.plan import ResourcePlan, resolve
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.factory import make_env
from asyncrl.envs.probe import probe
from asyncrl.envs.spaces import read_spec
from asyncrl.envs.spec import EnvSpec
from asyncrl.evaluation.episodes import evaluate
from asyncrl.inference.policy import load_policy
from asyncrl.learner import on_policy
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.learner.replay_sampler import ReplaySampler
from asyncrl.learner.worker import LearnerOutcome
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.flat import write_block
from asyncrl.modes.choice import find_problems
from asyncrl.modes.hogwild.worker import HogwildSacWorker
from asyncrl.observers.reports import InferenceReport, LearnerReport, Report, RolloutReport
from asyncrl.processes.children import process_context, start_loading_modules
from asyncrl.run import rollout_process, runner
from asyncrl.run.setup import RunSetup
from asyncrl.storage import checkpoint
from asyncrl.storage.checkpoint import Checkpoint

PARALLEL_MODES = ("sync-local", "sync-central", "async-local", "async-central")
MODES = ("serial", *PARALLEL_MODES)
REPLAY_MODES = ("serial", "sync-local", "async-local", "async-central")

SMALL: dict[str, Any] = {
    "num_workers": 2,
    "num_envs_per_worker": 8,
    "rollout": 8,
    "batch_size": 64,
    "num_batches_per_epoch": 2,
    "num_epochs": 4,
    "train_for_env_steps": 4000,
    "learning_rate": 0.01,
    "lr_schedule": "linear_decay",
    "normalize_input": False,
    "encoder_mlp_layers": [16],
    "learner_threads": 1,
    "seed": 1,
}
"""Settings of probe runs: a dataset is one slot of every split, and takes 8 optimizer steps."""

GAMES: dict[str, Any] = {
    "num_envs_per_worker": 4,
    "rollout": 8,
    "num_batches_per_epoch": 1,
    "num_epochs": 4,
    "gamma": 0.9,
    "entropy_loss_coeff": 0.003,
}
"""Settings of runs of `agent_envs`, besides the batch size."""

_TWO_CORES = Machine(cores=2)
_SLOW_PUBLICATION_S = 0.005


@dataclass(frozen=True)
class FinishedRun:
    """A run that has ended, and all that was reported of it."""

    config: TrainConfig
    plan: ResourcePlan
    spec: EnvSpec
    outcome: LearnerOutcome
    reports: list[Report]
    folder: Path

    @property
    def largest_lag(self) -> int:
        """Largest policy lag of any sample at its first use."""
        return max(report.lag.max for report in self.learner_reports if report.lag is not None)

    @functools.cached_property
    def model(self) -> ActorCritic:
        """The trained model, as its checkpoint holds it."""
        assert self.outcome.checkpoint is not None, self.outcome.error
        model = ActorCritic(self.spec, self.config)
        model.load_state_dict(dict(checkpoint.load(Path(self.outcome.checkpoint)).model))
        return model

    @property
    def learner_reports(self) -> list[LearnerReport]:
        """One for each dataset, or a few a second for learning from a replay."""
        return [report for report in self.reports if isinstance(report, LearnerReport)]

    @property
    def dropped_by_workers(self) -> int:
        """Samples that workers reported as dropped, or the pool of workers that died."""
        return sum(report.failures.num_dropped for report in self.reports if isinstance(report, RolloutReport))

    @property
    def inference_reports(self) -> list[InferenceReport]:
        """About one a second of each inference worker."""
        return [report for report in self.reports if isinstance(report, InferenceReport)]

    @property
    def datasets(self) -> list[dict[str, np.ndarray]]:
        """What each learner was given to train on, in its order, if the run was recorded: see `recording`."""
        return [dict(np.load(path)) for path in sorted((self.folder / "datasets").glob("*.npz"))]

    @property
    def served_splits(self) -> list[set[int]]:
        """The splits that each inference worker answered, if the run was recorded."""
        return [set(json.loads(path.read_text())) for path in sorted(self.folder.glob("served-*.json"))]

    @property
    def publications(self) -> dict[int, np.ndarray]:
        """The published blocks of weights by their versions, if the run was recorded."""
        return {int(path.stem): np.load(path) for path in (self.folder / "publications").iterdir()}

    @torch.inference_mode()
    def values(self, *observations: list[float]) -> list[float]:
        """Values of raw observations."""
        obs = self.model.normalize_obs(torch.tensor(observations))
        return self.model.denormalize_value(self.model(obs).normalized_value).tolist()

    @torch.inference_mode()
    def action_parameters(self, *observations: list[float]) -> np.ndarray:
        """Parameters of the policy's distributions on raw observations."""
        return self.model(self.model.normalize_obs(torch.tensor(observations))).action_parameters.numpy()


def run(
    folder: Path,
    mode: str,
    env: str,
    *,
    recorded: bool = False,
    resume_from: Path | None = None,
    policy_starts: Sequence[tuple[Path | None, int]] = (),
    spec: EnvSpec | None = None,
    **settings: Any,
) -> FinishedRun:
    """Trains to the end.

    Args:
        folder: where checkpoints, logs and records go.
        mode: one of `MODES`.
        env: a class of `probe_envs`, or any registered id.
        resume_from: the checkpoint that the run continues from.
        policy_starts: checkpoint and environment steps of each of several policies.
        recorded: keep every dataset; the learner's publications then take their time.
        spec: what the environment is, if it is known.
        settings: what differs from `SMALL`.
    """
    env_id = env if "-v" in env or ":" in env else f"probe_envs:{env}-v0"
    config = TrainConfig(**{"env": env_id, **SMALL, **_mode_settings(mode), **settings})
    spec = spec or _spec_of(config)
    plan = resolve(config, _TWO_CORES, num_agents=spec.num_agents)
    problems = [str(problem) for problem in find_problems(config, plan, _TWO_CORES)]
    assert not problems, problems
    reports: list[Report] = []
    folder.mkdir(parents=True, exist_ok=True)
    setup = RunSetup.create(config, plan, spec, folder / "checkpoints", resume_from, policy_starts=policy_starts)
    try:
        outcome = _run(setup, recorded, folder, reports)
    finally:
        setup.arena.close()
    return FinishedRun(config, plan, spec, outcome, reports, folder)


def _spec_of(config: TrainConfig) -> EnvSpec:
    if config.env_backend != TrainConfig().env_backend:
        return probe(config.env, config.env_kwargs, config.env_start_timeout, env_backend=config.env_backend)
    example = make_env(config.env, config.env_kwargs)
    spec = read_spec(example, config.env, config.image_channels, config.image_keys)
    example.close()
    return spec


def _mode_settings(mode: str) -> dict[str, Any]:
    if mode == "serial":
        return {"serial_mode": True, "async_rl": False}
    timing, _, inference = mode.partition("-")
    return {"async_rl": timing == "async", "inference_mode": inference}


def _run(setup: RunSetup, recorded: bool, folder: Path, reports: list[Report]) -> LearnerOutcome:
    def steer(control: RunControl) -> None:
        pass

    if setup.plan.serial_mode:
        with recording(folder) if recorded else contextlib.nullcontext():
            return runner.run_serial(setup, reports.append, steer)
    context = process_context()
    start_loading_modules(context)
    mains: dict[str, Any] = {"_learner_main": recording_learner_main, "_inference_main": recording_inference_main}
    if setup.plan.hogwild is not None:
        mains = {"rollout_main": recording_rollout_main}
    with mock.patch.multiple(runner, **mains) if recorded else contextlib.nullcontext():
        return runner.run_parallel(setup, context, lambda role: folder / f"{role}.log", reports.append, steer)


def recording_learner_main(setup: RunSetup, *args: Any) -> LearnerOutcome:
    """The learner's process, recorded."""
    with recording(setup.checkpoints.parent):
        return runner._learner_main(setup, *args)


def recording_rollout_main(setup: RunSetup, *args: Any) -> None:
    """The process of a Hogwild worker, recorded."""
    with recording(setup.checkpoints.parent):
        rollout_process.rollout_main(setup, *args)


def recording_inference_main(setup: RunSetup, server_idx: int, *args: Any) -> None:
    """An inference worker's process, which keeps which splits it answered."""
    served: set[int] = set()
    answer = RequestTable.answer

    def recording_answer(table: RequestTable, split_idx: int) -> None:
        served.add(split_idx)
        answer(table, split_idx)

    with mock.patch.object(RequestTable, "answer", recording_answer):
        runner._inference_main(setup, server_idx, *args)
    (setup.checkpoints.parent / f"served-{server_idx}.json").write_text(json.dumps(sorted(served)))


@contextlib.contextmanager
def recording(folder: Path) -> Iterator[None]:
    """Keeps what this process trains on and publishes, in files of `folder`.

    datasets/      a file for each dataset: its fields, the learner's version, the weights and statistics with which
                   training began, what GAE made of it, and the minibatches of all epochs one behind the other
    publications/  the published blocks by version
    batches/       all transitions drawn from a replay, one file for a process, and the replays of Hogwild workers

    Publications take a few milliseconds here, so that a slot which was granted before them is filled with old weights.
    """
    datasets, publications, batches = folder / "datasets", folder / "publications", folder / "batches"
    for subfolder in (datasets, publications, batches):
        subfolder.mkdir(exist_ok=True)
    updates, draw, gae = OnPolicyLearner.updates, ppo.Minibatches.draw, on_policy.gae
    publish, sample, close = WeightsChannel.publish, ReplaySampler.sample, HogwildSacWorker.close
    made_of_dataset: dict[str, list[np.ndarray]] = {}
    learners: list[OnPolicyLearner] = []  # of this process; the last one trains
    numbers = itertools.count()

    def keep(name: str, tensor: torch.Tensor) -> None:
        made_of_dataset.setdefault(name, []).append(tensor.detach().numpy().copy())

    def recording_updates(learner: OnPolicyLearner, dataset: Any, env_steps: int) -> Iterator[Any]:
        learners.append(learner)
        made_of_dataset.clear()
        fields = {name: tensor.numpy().copy() for name, tensor in dataset.tensors().items()}
        fields["learner_version"] = np.array(learner.policy_version)
        block = torch.empty(learner.block_size)
        write_block(learner.model, learner._flat, block)
        yield from updates(learner, dataset, env_steps)
        fields |= {name: np.concatenate(parts) for name, parts in made_of_dataset.items()}
        name = f"{os.getpid()}-{next(numbers):08}"
        with (datasets / f"{name}.unfinished").open("wb") as file:
            np.savez(file, **fields, block=block.numpy())
        (datasets / f"{name}.unfinished").rename(datasets / f"{name}.npz")

    def recording_draw(minibatches: ppo.Minibatches) -> list[Samples]:
        drawn = draw(minibatches)
        for batch in drawn:
            keep_minibatch(learners[-1], batch)
        return drawn

    def keep_minibatch(learner: OnPolicyLearner, batch: Samples) -> None:
        is_sample = torch.ones_like(batch.log_prob, dtype=torch.bool) if batch.valid is None else batch.valid
        for name in ("floats", "action", "log_prob", "advantage"):
            keep(f"batch_{name}", getattr(batch, name)[is_sample])
        model, returns = learner.model, batch.normalized_return[is_sample]
        # Units of returns may change between the steps of a Hogwild worker, which converts each minibatch.
        mean, std = getattr(learner, "_units_of_samples", (model.return_mean, model.return_std))
        keep("batch_return", returns * std + mean)
        keep("batch_size", is_sample.sum().view(1))

    def recording_gae(*args: Any, idle: torch.Tensor | None = None) -> GaeResult:
        result = gae(*args, idle=idle)
        keep("estimated_value", args[1])
        keep("advantage", result.advantages)
        keep("return", result.returns)
        return result

    def recording_publish(channel: WeightsChannel, block: np.ndarray, version: int, *rest: Any, **more: Any) -> None:
        np.save(publications / f"{version:08}.npy", block)
        time.sleep(_SLOW_PUBLICATION_S)
        publish(channel, block, version, *rest, **more)

    def recording_sample(sampler: ReplaySampler, *sizes: int) -> list[Transitions]:
        found = sample(sampler, *sizes)
        with (batches / f"{os.getpid()}.drawn").open("ab") as file:
            for batch in found:
                columns = [tensor.numpy().reshape(len(batch.reward), -1) for tensor in batch]
                file.write(np.concatenate(columns, axis=1, dtype=np.float32).tobytes())
        return found

    def recording_close(worker: HogwildSacWorker) -> None:
        columns = {name: np.concatenate(parts) for name, parts in worker._sampler._stripes.content().columns.items()}
        np.savez(batches / f"replay-{worker.worker_idx}.npz", **columns)
        close(worker)

    with (
        mock.patch.object(OnPolicyLearner, "updates", recording_updates),
        mock.patch.object(ppo.Minibatches, "draw", recording_draw),
        mock.patch.object(on_policy, "gae", recording_gae),
        mock.patch.object(WeightsChannel, "publish", recording_publish),
        mock.patch.object(ReplaySampler, "sample", recording_sample),
        mock.patch.object(HogwildSacWorker, "close", recording_close),
    ):
        yield


def mean_return(finished: FinishedRun, episodes: int = 40) -> float:
    """The mean return of the trained policy's deterministic actions."""
    assert finished.outcome.checkpoint is not None
    policy = load_policy(Path(finished.outcome.checkpoint))
    return evaluate(policy, episodes=episodes, deterministic=True).mean_reward


def assert_same_training(first: Checkpoint, second: Checkpoint) -> None:
    """Two checkpoints continue in the same way: all of their state and tensors are equal, but the time they took."""
    assert {**first.state, "elapsed_s": 0} == {**second.state, "elapsed_s": 0}
    for kind in ("model", "optimizer"):
        tensors, others = getattr(first, kind), getattr(second, kind)
        assert tensors.keys() == others.keys()
        assert all(torch.equal(tensor, others[name]) for name, tensor in tensors.items()), kind
