"""A study of Optuna in a shared folder: its trials, who runs them, and what becomes of those of a dead process.

A trial's attributes `run`, `seed`, `flags` and `owner` say which run it is and which process makes it. Optuna decides
what to try and what to prune. Its journal is a file that several machines may append to.
"""

from __future__ import annotations

import contextlib
import os
import uuid
import warnings
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from asyncrl.config.errors import UsageError
from asyncrl.config.flags import format_value
from asyncrl.contrib.experiments.objective import Objective
from asyncrl.contrib.experiments.ownership import SILENCE_S, Owner
from asyncrl.contrib.experiments.search_space import SearchSpace, read_space

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial, Trial

Sampler = Literal["tpe", "cmaes", "random"]
Pruner = Literal["median", "hyperband", "none"]

DEFINITION = "study.yaml"
_JOURNAL = "journal.log"
_NAME = "sweep"
_STATES = {"RUNNING": "running", "COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}


@dataclass(frozen=True)
class Definition:
    """What all processes of a study agree on.

    Attributes:
        flags: settings of all trials, as flags of training.
        space: content of the file of the search space.
        objective: what is optimized.
        sampler: how the next settings are chosen.
        pruner: how runs that are stopped early are chosen.
        seed: seed of the sampler, and of the first trial's run.
    """

    flags: tuple[str, ...]
    space: Mapping[str, Any]
    objective: Objective
    sampler: Sampler = "tpe"
    pruner: Pruner = "median"
    seed: int = 0

    @property
    def search_space(self) -> SearchSpace:
        return read_space(self.space, "The search space")


def require_optuna(sampler: Sampler) -> None:
    """Raises UsageError, with what to install, if a package is missing."""
    for package in ("optuna", *(("cmaes",) if sampler == "cmaes" else ())):
        try:
            __import__(package)
        except ImportError:
            text = (
                f'A sweep needs {package}, which is not installed: pip install -e ".[sweep]", or pip install {package}'
            )
            raise UsageError(text) from None


def read_definition(folder: Path) -> Definition | None:
    """The definition of the study in a folder; None without a file.

    Raises:
        UsageError: the file cannot be read.
    """
    path = folder / DEFINITION
    if not path.exists():
        return None
    try:
        saved = yaml.safe_load(path.read_text(encoding="utf-8"))
        objective = Objective(**saved.pop("objective"))
        return Definition(**{**saved, "flags": tuple(saved["flags"]), "objective": objective})
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} cannot be read as the definition of a study: {error}.") from error


def define(folder: Path, definition: Definition) -> bool:
    """Saves the definition of a new study, or checks that it is the one of the study in the folder.

    Returns:
        Whether the study is new.

    Raises:
        UsageError: the study in the folder has another definition.
    """
    folder.mkdir(parents=True, exist_ok=True)
    values = asdict(definition)
    temporary = folder / f".{DEFINITION}_{uuid.uuid4().hex}"
    temporary.write_text(yaml.safe_dump({**values, "flags": list(definition.flags)}, sort_keys=False), encoding="utf-8")
    try:
        os.link(temporary, folder / DEFINITION)  # fails if there is one, also if another machine makes it now
        return True
    except FileExistsError:
        saved = read_definition(folder)
        assert saved is not None
        before = asdict(saved)
        differing = [name for name in values if values[name] != before[name]]
        if differing:
            each = "; ".join(f"{name}: {_shown(before[name])}, now {_shown(values[name])}" for name in differing)
            raise UsageError(
                f"The study {folder} was started with another definition ({each}). Give the same command as then, only "
                "--study to continue it as it is, or another --study."
            ) from None
        return False
    finally:
        temporary.unlink()


@dataclass(frozen=True)
class Result:
    """A trial that has ended or runs.

    Attributes:
        number: its number in the study.
        run: name of its run's folder.
        state: complete, pruned, failed or running.
        value: its objective; None unless it is complete.
        flags: the searched settings.
        reason: why it was pruned or failed.
    """

    number: int
    run: str
    state: str
    value: float | None
    flags: tuple[str, ...]
    reason: str | None


class Study:
    """The trials of one study, as one of its processes sees them.

    Attributes:
        definition: what all processes agree on.
    """

    def __init__(self, folder: Path, definition: Definition, num_trials: int, num_evaluations: int, owner: Owner):
        """Opens the study, and creates it if it is missing.

        Args:
            folder: the study's folder.
            definition: what all processes agree on.
            num_trials: number of trials after which no other starts.
            num_evaluations: evaluations of one run, for pruning.
            owner: this process.
        """
        import optuna
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        self.definition = definition
        self._space = definition.search_space
        self._distributions = {each.parameter: each.distribution for each in self._space.searched}
        self._num_trials = num_trials
        self._owner = owner
        self._study = optuna.create_study(
            study_name=_NAME,
            storage=optuna.storages.JournalStorage(JournalFileBackend(str(folder.resolve() / _JOURNAL))),
            direction="minimize" if definition.objective.is_minimized else "maximize",
            pruner=_make_pruner(definition.pruner, num_evaluations),
            load_if_exists=True,
        )
        num_known = len(self._study.get_trials(deepcopy=False))
        # Another start with the same seed would draw the same settings again.
        seed = zlib.crc32(f"{definition.seed} {num_known} {owner.name}".encode()) if num_known else definition.seed
        self._study.sampler = _make_sampler(definition.sampler, seed, num_trials)

    def add_first(self, drawn: Mapping[str, Any]) -> None:
        """Makes these the settings of the first trial; the sampler draws those that are missing."""
        self._study.enqueue_trial(dict(drawn))

    @property
    def num_started(self) -> int:
        """Trials that have started on any machine; one that was continued counts once."""
        return len({run for trial in self._trials() if (run := trial.user_attrs.get("run")) is not None})

    @property
    def num_running_elsewhere(self) -> int:
        """Trials that other living processes run."""
        return sum(1 for trial in self._running() if trial.user_attrs.get("owner") != self._owner.name)

    def next_trial(self) -> Trial | None:
        """Starts a trial; None if enough have been started and none waits to be continued."""
        import optuna

        waits = any(trial.state == optuna.trial.TrialState.WAITING for trial in self._trials())
        if not waits and self.num_started >= self._num_trials:
            return None
        trial = self._study.ask(self._distributions)
        run = trial.user_attrs.get("run", f"trial_{trial.number:04d}")
        seed = trial.user_attrs.get("seed", self.definition.seed + trial.number)
        trial.set_user_attr("owner", self._owner.name)
        trial.set_user_attr("seed", seed)
        trial.set_user_attr("flags", list(self._space.flags(trial.params)))
        trial.set_user_attr("run", run)
        return trial

    def continue_dead_trials(self) -> list[str]:
        """Lets trials of dead processes start again with the same settings and run; returns the names of the runs."""
        import optuna

        continued = []
        for trial in self._running():
            attributes = trial.user_attrs
            if "owner" in attributes:
                is_alive = self._owner.is_alive(attributes["owner"])
            else:  # perhaps another process is just starting it
                started = trial.datetime_start or datetime.now()
                is_new = (datetime.now() - started).total_seconds() < SILENCE_S
                is_alive = is_new and self._owner.has_other_owners
            if is_alive:
                continue
            try:
                self._study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
            except (ValueError, optuna.exceptions.UpdateFinishedTrialError):
                continue  # another process was faster
            kept = {name: attributes[name] for name in ("run", "seed", "flags") if name in attributes}
            self._study.enqueue_trial(trial.params, user_attrs=kept)
            continued.append(str(attributes.get("run", f"trial {trial.number}")))
        return continued

    def tell(self, trial: Trial, value: float | None, *, is_pruned: bool = False, reason: str | None = None) -> None:
        """Ends a trial: with a value, or as pruned or failed for a reason."""
        import optuna

        states = optuna.trial.TrialState
        state = states.COMPLETE if value is not None else states.PRUNED if is_pruned else states.FAIL
        with contextlib.suppress(ValueError, optuna.exceptions.UpdateFinishedTrialError):  # taken by another process
            if reason is not None:
                trial.set_user_attr("reason", reason)
            self._study.tell(trial, value, state=state)

    def results(self) -> list[Result]:
        """All trials that have started, each once."""
        by_run = {}
        for trial in self._trials():
            attributes = trial.user_attrs
            # Without flags: killed while it was continued by a version that did not keep them.
            if "run" in attributes and "flags" in attributes and trial.state.name != "WAITING":
                state = _STATES[trial.state.name]
                value = trial.value if state == "complete" else None
                by_run[attributes["run"]] = Result(
                    trial.number, attributes["run"], state, value, tuple(attributes["flags"]), attributes.get("reason")
                )
        return list(by_run.values())

    def best(self, count: int) -> list[Result]:
        """The complete trials with the best values, the best first; of equal settings only one."""
        sign = 1.0 if self.definition.objective.is_minimized else -1.0
        complete = [result for result in self.results() if result.value is not None]
        ordered = sorted(complete, key=lambda result: sign * (result.value or 0.0))
        best: dict[tuple[str, ...], Result] = {}
        for result in ordered:
            best.setdefault(result.flags, result)
        return list(best.values())[:count]

    def importances(self) -> dict[str, float]:
        """The share of each searched setting in the differences of the objective (PED-ANOVA); empty if unknown.

        Source: Watanabe, Bansal and Hutter, PED-ANOVA, 2023.
        """
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = get_param_importances(self._study, evaluator=PedAnovaImportanceEvaluator())
            except (ValueError, RuntimeError):  # too few complete trials, or all equal
                return {}
        names = {each.parameter: each.name for each in self._space.searched}
        return {names[parameter]: share for parameter, share in found.items()}

    def _trials(self) -> list[FrozenTrial]:
        trials: list[FrozenTrial] = self._study.get_trials(deepcopy=False)
        return trials

    def _running(self) -> Iterator[FrozenTrial]:
        return (trial for trial in self._trials() if trial.state.name == "RUNNING")


def _make_sampler(sampler: Sampler, seed: int, num_trials: int) -> optuna.samplers.BaseSampler:
    from optuna import samplers

    num_random = max(4, min(10, num_trials // 4))
    if sampler == "random":
        return samplers.RandomSampler(seed)
    if sampler == "cmaes":
        return samplers.CmaEsSampler(seed=seed, n_startup_trials=num_random, warn_independent_sampling=False)
    # constant_liar: trials that still run count as bad ones, so that neighbours are not tried at the same time.
    return samplers.TPESampler(seed=seed, n_startup_trials=num_random, multivariate=True, constant_liar=True)


def _make_pruner(pruner: Pruner, num_evaluations: int) -> optuna.pruners.BasePruner:
    from optuna import pruners

    if pruner == "none" or num_evaluations < 2:
        return pruners.NopPruner()
    if pruner == "hyperband":
        return pruners.HyperbandPruner(min_resource=1, max_resource=num_evaluations, reduction_factor=3)
    return pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=max(1, num_evaluations // 5))


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(value)
    return str(value) if isinstance(value, dict) else format_value(value)
