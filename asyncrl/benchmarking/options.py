"""The benchmark's command line: its own flags, and the flags of training that it passes on to every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
)

from asyncrl.benchmarking.variants import Mode
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import ExtraFlag, split_flags
from asyncrl.config.problems import refused_value
from asyncrl.config.settings import all_settings
from asyncrl.config.yaml_values import read_mapping
from asyncrl.runtime.locating import locate

FLAGS = (
    ExtraFlag(
        "output",
        "folder for runs, results, report and plots; a benchmark that it holds is continued [default bench/ENV]",
        is_bool=False,
    ),
    ExtraFlag("json", "file to write all figures to, in addition to the report", is_bool=False),
    ExtraFlag(
        "modes",
        "list of what to compare: sync, async, sampling (collecting without training), hogwild [default sync,async; "
        "hogwild with --backend=hogwild]",
        is_bool=False,
    ),
    ExtraFlag(
        "inference_modes", "list of where the policy runs: local, central [default as for training]", is_bool=False
    ),
    ExtraFlag(
        "num_ranks",
        "list of numbers of ranks that train together under torchrun, such as 1,2,4; each rank has --num_workers "
        "workers, and auto is resolved for the largest number [default 1]",
        is_bool=False,
    ),
    ExtraFlag(
        "num_workers", "list of numbers of rollout workers, such as 1,2,4 [default as for training]", is_bool=False
    ),
    ExtraFlag(
        "num_envs_per_worker", "list of numbers of environments in each worker [default as for training]", is_bool=False
    ),
    ExtraFlag("seeds", "number of seeds; each seed is one round of all measurements [default 3]", is_bool=False),
    ExtraFlag(
        "thresholds",
        "list of returns, such as 100,200: report the time and steps to reach each [default none]",
        is_bool=False,
    ),
    ExtraFlag("warm_up_s", "seconds after the first step that throughput leaves out [default 25]", is_bool=False),
    ExtraFlag("measure_s", "seconds of throughput to measure after that; 0 for none [default 30]", is_bool=False),
    ExtraFlag("simulate_s", "seconds of each measurement of pure simulation [default 10]", is_bool=False),
    ExtraFlag(
        "from_run", "trained run, by path or name: measure throughput with its policy and settings", is_bool=False
    ),
    ExtraFlag("record_steps", "steps of each environment to record for --from_run [default 1000]", is_bool=False),
    ExtraFlag("episodes", "evaluation episodes after each learning run; 0 for none [default 20]", is_bool=False),
    ExtraFlag("config", "YAML file with settings of training", is_bool=False),
    ExtraFlag("preset", "preset of training settings, or none", is_bool=False),
)

INSTEAD = {
    "async_rl": "use --modes=sync,async",
    "inference_mode": "use --inference_modes=local,central",
    "serial_mode": "a serial run has no roles to compare",
    "train_dir": "the runs are in --output",
    "experiment": "each run is named after what it measures",
    "restart_behavior": "finished measurements in --output are kept",
    "train_for_seconds": "use --warm_up_s and --measure_s",
    "report_every_s": "the benchmark needs a record every second",
    "with_tensorboard": "throughput is measured without it",
    "profile": "the benchmark always shows where the time goes",
    "quiet": "the output of each run goes to a file",
}
"""Settings of training that the benchmark makes itself, and what to do instead."""

_A_LIST = ", one or several separated by commas"
_EXPECTED = {
    "modes": f"sync, async, sampling or hogwild{_A_LIST}",
    "inference_modes": f"auto, local or central{_A_LIST}",
    "num_ranks": f"whole numbers greater than 0{_A_LIST}",
    "num_workers": f"whole numbers greater than 0 or auto{_A_LIST}",
    "num_envs_per_worker": f"whole numbers greater than 0 or auto{_A_LIST}",
    "seeds": "a whole number greater than 0",
    "thresholds": f"numbers{_A_LIST}",
    "warm_up_s": "a number of seconds, 0 or more",
    "measure_s": "a number of seconds, 0 or more",
    "simulate_s": "a number of seconds greater than 0",
    "record_steps": "a whole number greater than 0",
    "episodes": "a whole number, 0 or more",
}
_LISTS = ("num_workers", "num_envs_per_worker")
_OWN_NAMES = {"json": "json_path"}


def _split(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


_NonNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
_Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
_Split = BeforeValidator(_split)
_InferenceMode = Annotated[str, Field(pattern="^(auto|local|central)$")]
_Count = Annotated[str, Field(pattern="^(auto|[1-9][0-9]*)$")]


class _Own(BaseModel):
    """The benchmark's own flags, and those of training that it reads as lists: empty for what the settings say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    output: Path | None = None
    json_path: Path | None = None
    modes: Annotated[tuple[Mode, ...], _Split, Field(min_length=1)] = ("sync", "async")
    inference_modes: Annotated[tuple[_InferenceMode, ...], _Split] = ()
    num_ranks: Annotated[tuple[PositiveInt, ...], _Split, Field(min_length=1)] = (1,)
    num_workers: Annotated[tuple[_Count, ...], _Split] = ()
    num_envs_per_worker: Annotated[tuple[_Count, ...], _Split] = ()
    seeds: PositiveInt = 3
    thresholds: Annotated[tuple[float, ...], _Split] = ()
    warm_up_s: _NonNegative = 25.0
    measure_s: _NonNegative = 30.0
    simulate_s: _Positive = 10.0
    from_run: Annotated[Path, AfterValidator(locate)] | None = None
    record_steps: PositiveInt = 1000
    episodes: NonNegativeInt = 20


@dataclass(frozen=True)
class BenchmarkOptions:
    """What to measure.

    Attributes:
        own: the benchmark's own flags.
        first_seed: seeds are this and the ones after it.
        learns: whether to train to `--train_for_env_steps` with the real settings too.
        train_flags: flags of training that every run gets.
    """

    own: _Own
    first_seed: int
    learns: bool
    train_flags: tuple[str, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, one for each round."""
        return tuple(range(self.first_seed, self.first_seed + self.own.seeds))

    @property
    def measures_throughput(self) -> bool:
        """Whether there are runs with learning rate 0."""
        return self.own.measure_s > 0


def read_options(argv: Sequence[str]) -> BenchmarkOptions:
    """Reads the command line; the values of flags of training are checked later, with the rest of their run.

    Raises:
        UsageError: everything that is wrong with it, one line each.
    """
    settings = all_settings()
    given = split_flags(argv, settings, FLAGS)
    problems = [str(problem) for problem in given.problems]
    problems += [f"--{name} cannot be set here: {INSTEAD[name]}." for name in given.texts if name in INSTEAD]
    own = _read_own(_with_modes(given.texts, problems), problems)
    seed = given.texts.get("seed", "0")
    if not seed.isdigit():
        problems.append(f"--seed={seed} is not possible: expected a whole number, the first seed.")
    learns = "train_for_env_steps" in given.texts
    if own is not None:
        problems += _contradictions(own, learns, given.texts)
    if problems or own is None:
        raise UsageError("\n".join(problems))
    passed = [
        f"--{name}={text}"
        for name, text in given.texts.items()
        if (name in settings and name not in (*_LISTS, "backend", "seed")) or name in ("config", "preset")
    ]
    if own.from_run is not None:
        path = own.from_run / "config.yaml"
        # A run that has no unit of actions among its settings acts in the environment's own.
        unit = [] if "action_unit" in read_mapping(path, settings) else ["--action_unit=raw"]
        passed = [f"--config={path}", "--preset=none", *unit, *passed]
    return BenchmarkOptions(own, int(seed), learns, tuple(passed))


def _with_modes(texts: Mapping[str, str], problems: list[str]) -> Mapping[str, str]:
    """What the backend says of modes, said in `modes`."""
    if texts.get("backend") != "hogwild" and texts.get("algo") != "a3c":
        return texts
    if "modes" not in texts:
        return {**texts, "modes": "hogwild"}
    if "backend" in texts:
        problems.append("--backend=hogwild means --modes=hogwild: give only one of them.")
    return texts


def _read_own(texts: Mapping[str, str], problems: list[str]) -> _Own | None:
    known = {flag.name for flag in FLAGS} - {"config", "preset"} | set(_LISTS)
    values = {_OWN_NAMES.get(name, name): text for name, text in texts.items() if name in known}
    try:
        return _Own.model_validate(values)
    except ValidationError as error:
        for item in error.errors():
            name = str(item["loc"][0])
            flag = next((flag for flag, field in _OWN_NAMES.items() if field == name), name)
            problem = refused_value(flag, texts[flag], _EXPECTED.get(flag, "a path"))
            if problem not in problems:
                problems.append(problem)
    return None


def _contradictions(own: _Own, learns: bool, texts: Mapping[str, str]) -> list[str]:
    problems = []
    if own.from_run is None and "env" not in texts and "config" not in texts:
        problems.append("--env is required: give the environment to measure with, such as --env=Humanoid-v5.")
    if own.thresholds and not learns:
        problems.append("--thresholds needs runs that learn: give --train_for_env_steps=N.")
    if not learns and own.measure_s == 0:
        problems.append("--measure_s=0 leaves nothing to measure: give --train_for_env_steps=N too.")
    if own.from_run is not None and (learns or own.measure_s == 0):
        problems.append("--from_run measures throughput only: leave out --train_for_env_steps and give --measure_s.")
    if own.from_run is not None and {"config", "preset"} & set(texts):
        problems.append("--from_run takes the settings of that run: leave out --config and --preset.")
    if own.from_run is not None and not (own.from_run / "config.yaml").is_file():
        problems.append(f"--from_run={own.from_run} is not the folder of a run: it has no config.yaml.")
    return problems
