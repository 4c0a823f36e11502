"""The benchmark's command line: its own flags, and flags of training, which every run gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveInt

from asyncrl.analysis.benchmark.variants import Mode
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import option, option_flags, parse_options, split_flags
from asyncrl.config.settings import all_settings, read_mapping
from asyncrl.config.value_types import GivenPath, NonNegativeFloat, PositiveFloat
from asyncrl.storage.locating import locate

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
    "progress": "the output of each run goes to a file",
}
"""Settings of training that the benchmark sets itself, with what the user can do instead."""

_A_LIST = ", one or several separated by commas"
_COUNTS = f"whole numbers greater than 0 or auto{_A_LIST}"

_Split = BeforeValidator(lambda text: [part.strip() for part in text.split(",") if part.strip()])
_InferenceMode = Annotated[str, Field(pattern="^(auto|local|central)$")]
_Counts = Annotated[tuple[Annotated[str, Field(pattern="^(auto|[1-9][0-9]*)$")], ...], _Split]


class OwnOptions(BaseModel):
    """The benchmark's own flags, and flags of training that it reads as lists; an empty list leaves the setting."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    output: GivenPath | None = option(
        None, "folder for runs, results, report and plots; a benchmark that it holds is continued [default bench/ENV]"
    )
    json_path: GivenPath | None = option(None, "file to write all figures to, in addition to the report", flag="json")
    modes: Annotated[tuple[Mode, ...], _Split, Field(min_length=1)] = option(
        ("sync", "async"),
        "list of what to compare: sync, async, sampling (collecting without training), hogwild [default sync,async; "
        "hogwild with --backend=hogwild]",
        f"sync, async, sampling or hogwild{_A_LIST}",
    )
    inference_modes: Annotated[tuple[_InferenceMode, ...], _Split] = option(
        (),
        "list of where the policy runs: local, central [default as for training]",
        f"auto, local or central{_A_LIST}",
    )
    num_ranks: Annotated[tuple[PositiveInt, ...], _Split, Field(min_length=1)] = option(
        (1,),
        "list of numbers of ranks that train together under torchrun, such as 1,2,4; each rank has --num_workers "
        "workers, and auto is resolved for the largest number [default 1]",
        f"whole numbers greater than 0{_A_LIST}",
    )
    num_workers: _Counts = option(
        (), "list of numbers of rollout workers, such as 1,2,4 [default as for training]", _COUNTS
    )
    num_envs_per_worker: _Counts = option(
        (), "list of numbers of environments in each worker [default as for training]", _COUNTS
    )
    seeds: PositiveInt = option(3, "number of seeds; each seed is one round of all measurements [default 3]")
    thresholds: Annotated[tuple[float, ...], _Split] = option(
        (),
        "list of returns, such as 100,200: report the time and steps to reach each [default: half and nine tenths of "
        "the way to the highest return that every run reached]",
        f"numbers{_A_LIST}",
    )
    warm_up_s: NonNegativeFloat = option(25.0, "seconds after the first step that throughput leaves out [default 25]")
    measure_s: NonNegativeFloat = option(30.0, "seconds of throughput to measure after that; 0 for none [default 30]")
    simulate_s: PositiveFloat = option(10.0, "seconds of each measurement of pure simulation [default 10]")
    from_run: Annotated[Path, AfterValidator(locate)] | None = option(
        None, "trained run, by path or name: measure throughput with its policy and settings"
    )
    record_steps: PositiveInt = option(1000, "steps of each environment to record for --from_run [default 1000]")
    episodes: NonNegativeInt = option(20, "evaluation episodes after each learning run; 0 for none [default 20]")
    config: GivenPath | None = option(None, "YAML file with settings of training")
    preset: str | None = option(None, "preset of training settings, or none")

    @property
    def measures_throughput(self) -> bool:
        """Whether the benchmark has runs with learning rate 0."""
        return self.measure_s > 0


FLAGS = option_flags(OwnOptions)


@dataclass(frozen=True)
class BenchmarkOptions:
    """Values of the command line.

    Attributes:
        own: the benchmark's own flags.
        first_seed: first of the seeds, which follow one another.
        learns: whether to train to `--train_for_env_steps` with the real settings, too.
        train_flags: flags of training that every run gets.
    """

    own: OwnOptions
    first_seed: int
    learns: bool
    train_flags: tuple[str, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(range(self.first_seed, self.first_seed + self.own.seeds))


def read_options(argv: Sequence[str]) -> BenchmarkOptions:
    """Reads the command line. Values of training flags are checked later, with the rest of their run.

    Raises:
        UsageError: every problem of the command line, one line each.
    """
    settings = all_settings()
    texts, wrong = split_flags(argv, settings, FLAGS)
    problems = [str(problem) for problem in wrong]
    problems += [f"--{name} cannot be set here: {INSTEAD[name]}." for name in texts if name in INSTEAD]
    if texts.get("backend") == "hogwild" or texts.get("algo") == "a3c":
        if "backend" in texts and "modes" in texts:
            problems.append("--backend=hogwild means --modes=hogwild: give only one of them.")
        texts.setdefault("modes", "hogwild")
    names = {flag.name for flag in FLAGS}
    own, refused = parse_options(OwnOptions, {name: text for name, text in texts.items() if name in names})
    problems += refused
    seed = texts.get("seed", "0")
    if not seed.isdigit():
        problems.append(f"--seed={seed} is not possible: expected a whole number, the first seed.")
    learns = "train_for_env_steps" in texts
    if own is not None:
        problems += _contradictions(own, learns, texts)
    if problems or own is None:
        raise UsageError(*problems)
    own_names = names - {"config", "preset"} | {"backend", "seed"}
    passed = [f"--{name}={text}" for name, text in texts.items() if name not in own_names]
    if own.from_run is not None:
        path = own.from_run / "config.yaml"
        # A run that has no unit of actions among its settings acts in the environment's own.
        unit = [] if "action_unit" in read_mapping(path) else ["--action_unit=raw"]
        passed = [f"--config={path}", "--preset=none", *unit, *passed]
    return BenchmarkOptions(own, int(seed), learns, tuple(passed))


def _contradictions(own: OwnOptions, learns: bool, texts: Mapping[str, str]) -> list[str]:
    problems = []
    if own.from_run is None and "env" not in texts and own.config is None:
        problems.append("--env is required: give the environment to measure with, such as --env=Humanoid-v5.")
    if own.thresholds and not learns:
        problems.append("--thresholds needs runs that learn: give --train_for_env_steps=N.")
    if not learns and not own.measures_throughput:
        problems.append("--measure_s=0 leaves nothing to measure: give --train_for_env_steps=N too.")
    if own.from_run is not None:
        if learns or not own.measures_throughput:
            problems.append(
                "--from_run measures throughput only: leave out --train_for_env_steps and give --measure_s."
            )
        if own.config is not None or own.preset is not None:
            problems.append("--from_run takes the settings of that run: leave out --config and --preset.")
        if not (own.from_run / "config.yaml").is_file():
            problems.append(f"--from_run={own.from_run} is not the folder of a run: it has no config.yaml.")
    return problems
