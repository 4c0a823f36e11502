"""The runs whose rows are checked: each combination of what can decide where a row ends up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymnasium.vector import AutoresetMode
from killing import Killer
from ledger_envs import count_started
from row_checks import Counts, check_lag, check_on_policy, check_replay
from run_helper import MODES, PARALLEL_MODES, SMALL, FinishedRun, run

from asyncrl.envs.probe import probe
from asyncrl.envs.spec import EnvSpec
from asyncrl.observers.reports import RestartReport

ENV = "ledger_envs:Ledgered-v0"
NUM_KILLED = 2

_ON_POLICY: dict[str, Any] = {
    "train_for_env_steps": 1000,
    "learning_rate": 0.003,
    "normalize_input": True,
    "normalize_returns": True,
}
# All passes are made, over log-probabilities as the workers wrote them.
_PPO: dict[str, Any] = {**_ON_POLICY, "ppo_objective": "clip", "target_kl": None}
_A2C: dict[str, Any] = {**_ON_POLICY, "backend": "hogwild", "algo": "a2c", "num_epochs": 1}
_SAC: dict[str, Any] = {
    "algo": "sac",
    "num_envs_per_worker": 2,
    "batch_size": 32,
    "replay_size": 20_000,
    "warmup_env_steps": 200,
    "updates_per_env_step": 0.25,
    "lr_schedule": "constant",
    "learning_rate": 0.001,
    "max_grad_norm": 0.0,
    "precision": "float32",
    "train_for_env_steps": 700,
}
LEARNERS: dict[str, dict[str, Any]] = {
    "ppo": _PPO,
    "sac": {**_SAC, "save_replay": True},
    "a2c-synced": {**_A2C, "hogwild_mode": "synced"},
    "a2c-shared": {**_A2C, "hogwild_mode": "shared"},
    "a2c-gradients": {**_A2C, "hogwild_mode": "gradients"},
    "ppo-synced": {**_PPO, "backend": "hogwild", "batch_size": 16, "hogwild_mode": "synced"},
    "ppo-shared": {**_PPO, "backend": "hogwild", "batch_size": 16, "hogwild_mode": "shared"},
    "hogwild-sac": {**_SAC, "backend": "hogwild"},
}
HOGWILD_MODES = ("serial", "async-local")
AUTORESETS = (None, *AutoresetMode)


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        learner: one of `LEARNERS`.
        mode: one of `run_helper.MODES`.
        autoreset: mode of the vectorized environments; None for environments that are stepped one by one.
        rnn_type: the recurrent core's type, empty for none.
        killed: role whose processes are killed, or none.
        n_step: of SAC.
        drops_old: whether some trajectories become too old to be trained on.
    """

    learner: str
    mode: str
    autoreset: AutoresetMode | None = None
    rnn_type: str = ""
    killed: str = ""
    n_step: int = 1
    drops_old: bool = False

    def __str__(self) -> str:
        parts = [self.learner, self.mode]
        parts += [] if self.autoreset is None else [self.autoreset.name]
        parts += [self.rnn_type] if self.rnn_type else []
        parts += [f"{self.n_step}-step"] if self.n_step > 1 else []
        parts += ["drops-old"] if self.drops_old else []
        parts += [f"{self.killed}-killed"] if self.killed else []
        return ":".join(parts)

    @property
    def is_off_policy(self) -> bool:
        """Whether it learns from a replay."""
        return self.learner.endswith("sac")

    @property
    def has_gate(self) -> bool:
        """Whether the run ends only after all environments have made steps: workers may start at different times."""
        return self.killed != "" or self.mode.startswith("async")

    def spec(self, folder: Path) -> EnvSpec:
        """What the environment is. To find out a few steps are made, whose ledgers are in `folder`."""
        kwargs = {"folder": str(folder)}
        if self.autoreset is None:
            return probe(ENV, kwargs)
        return probe(ENV, {**kwargs, "autoreset_mode": self.autoreset.value}, env_backend="gym_vector")

    def settings(self, folder: Path) -> dict[str, Any]:
        """Settings of the run, whose ledgers are in `folder`."""
        kwargs: dict[str, Any] = {"folder": str(folder)}
        settings = dict(LEARNERS[self.learner])
        if self.has_gate:
            kwargs["gate"] = str(folder / "gate")
            settings |= {"max_restarts": 100}
        if self.killed:  # a ledger cannot tell whether a life ended where its episode was shortened
            settings["stagger_episodes"] = False
        if self.autoreset is not None:
            kwargs["autoreset_mode"] = self.autoreset.value
            settings["env_backend"] = "gym_vector"
        if self.mode.endswith("central"):
            settings |= {"worker_num_splits": 2, "num_inference_workers": 2}
        if self.rnn_type:
            settings |= {"use_rnn": True, "rnn_type": self.rnn_type, "rnn_size": 6}
            settings["recurrence"] = 2 if self.rnn_type == "gru" else "auto"
        if self.is_off_policy:
            settings["n_step"] = self.n_step
        elif self.mode.startswith("async") and self.learner == "ppo":
            settings["batch_size"] = 40  # a dataset ends in the middle of a slot
        if self.drops_old:
            settings |= {"max_policy_lag": 10, "num_batches_to_accumulate": 4}
        return {**settings, "env_kwargs": kwargs}


def run_case(case: Case, folder: Path) -> tuple[FinishedRun, Counts]:
    """Makes a run in `folder`, which is empty, and checks all its rows."""
    ledgers, ledgers_of_probe = folder / "ledgers", folder / "ledgers_of_probe"
    ledgers.mkdir()
    ledgers_of_probe.mkdir()
    spec = case.spec(ledgers_of_probe)
    killer = None
    if case.has_gate:
        killer = _killer(case, folder, ledgers)
        killer.start()
    finished = run(folder, case.mode, ENV, recorded=True, spec=spec, **case.settings(ledgers))
    deaths = 0
    if killer is not None:
        killer.join()
        restarts = [report for report in finished.reports if isinstance(report, RestartReport)]
        assert killer.num_killed == len(restarts) == (NUM_KILLED if case.killed else 0)
        assert all("died: SIGKILL, possibly out of memory" in report.text for report in restarts)
        deaths = NUM_KILLED if case.killed == "rollout" else 0
    assert finished.outcome.is_complete and finished.outcome.error is None
    if case.is_off_policy:
        return finished, check_replay(finished, ledgers, case.autoreset, deaths)
    counts = check_on_policy(finished, ledgers, case.autoreset, deaths)
    if case.learner == "ppo":
        check_lag(finished)
    return finished, counts


def _killer(case: Case, folder: Path, ledgers: Path) -> Killer:
    """Opens the gate when all environments have made a step.

    Rollout workers are killed after that, and then one that replaces them makes some, too.
    """
    count, gate = NUM_KILLED if case.killed else 0, ledgers / "gate"
    settings = {**SMALL, **case.settings(ledgers)}
    num_envs = settings["num_workers"] * settings["num_envs_per_worker"]
    if case.killed != "rollout":
        roles = f"{case.killed or 'rollout'}-*.log"
        return Killer(folder, roles, count, gate, may_end=lambda: count_started(ledgers) >= num_envs)
    return Killer(
        folder,
        "rollout-*.log",
        count,
        gate,
        may_start=lambda: count_started(ledgers) >= num_envs,
        may_end=lambda: count_started(ledgers) > num_envs,
    )


def all_cases() -> list[Case]:
    """The whole matrix."""
    cases = []
    for autoreset in AUTORESETS:
        for mode in MODES:
            victims = ["", *_victims(mode)]
            cases += [Case("ppo", mode, autoreset, rnn_type, v) for rnn_type in ("", "gru", "lstm") for v in victims]
            cases += [Case("sac", mode, autoreset, killed=v, n_step=n) for n in (1, 3) for v in victims]
        cases += [Case("ppo", mode, autoreset, drops_old=True) for mode in PARALLEL_MODES if mode.startswith("async")]
        for mode in HOGWILD_MODES:
            victims = ["", *_victims(mode)]
            cases += [
                Case(learner, mode, autoreset, rnn_type, v)
                for learner in ("a2c-synced", "a2c-shared", "a2c-gradients", "ppo-synced", "ppo-shared")
                for rnn_type in ("", "gru")
                for v in victims
            ]
            cases += [Case("hogwild-sac", mode, autoreset, killed=v, n_step=n) for n in (1, 3) for v in victims]
    return cases


def _victims(mode: str) -> list[str]:
    if mode == "serial":
        return []
    return ["rollout", "inference"] if mode.endswith("central") else ["rollout"]
