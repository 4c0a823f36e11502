"""The benchmark's command line: its own flags, and flags of training, which every run gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveInt

from asyncrl.analysis.benchmark.variants import Mode
from asyncrl.config.flags import option
from asyncrl.config.settings import read_mapping
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


class BenchmarkOptions(BaseModel):
    """The benchmark's own flags, and flags of training that it reads as lists; an empty list leaves the setting.

    Attributes:
        training: texts of the other flags of training, by name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    training: dict[str, str] = {}
    output: GivenPath | None = option(
        None, "folder for runs, results, report and plots; a benchmark that it holds is continued [default bench/ENV]"
    )
    json_path: GivenPath | None = option(None, "file to write all figures to, in addition to the report", flag="json")
    modes: Annotated[tuple[Mode, ...], _Split, Field(min_length=1)] = option(
        (),
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

    @property
    def learns(self) -> bool:
        """Whether to train to `--train_for_env_steps` with the real settings, too."""
        return "train_for_env_steps" in self.training

    @property
    def compared_modes(self) -> tuple[Mode, ...]:
        """`modes`, or what is compared without the flag."""
        return self.modes or (("hogwild",) if _chooses_hogwild(self.training) else ("sync", "async"))

    @property
    def seeds_of_rounds(self) -> range:
        """Seeds of the measurements, which follow one another."""
        first = int(self.training.get("seed", "0"))
        return range(first, first + self.seeds)

    @property
    def train_flags(self) -> tuple[str, ...]:
        """Flags of training that every run gets. Their values are checked later, with the rest of their run."""
        given: dict[str, object] = {"config": self.config, "preset": self.preset}
        if self.from_run is not None:
            given = {"config": self.from_run / "config.yaml", "preset": "none"}
            # A run that has no unit of actions among its settings acts in the environment's own.
            if "action_unit" not in read_mapping(self.from_run / "config.yaml"):
                given["action_unit"] = "raw"
        given |= {name: text for name, text in self.training.items() if name not in ("backend", "seed")}
        return tuple(f"--{name}={value}" for name, value in given.items() if value is not None)


def find_problems(given: Mapping[str, Any], options: BenchmarkOptions | None) -> Iterator[str]:
    """A sentence for each contradiction in what is given; `options` is None if one is refused."""
    training: dict[str, str] = given["training"]
    if _chooses_hogwild(training) and "backend" in training and "modes" in given:
        yield "--backend=hogwild means --modes=hogwild: give only one of them."
    if not (seed := training.get("seed", "0")).isdigit():
        yield f"--seed={seed} is not possible: expected a whole number, the first seed."
    if options is None:
        return
    if options.from_run is None and "env" not in training and options.config is None:
        yield "--env is required: give the environment to measure with, such as --env=Humanoid-v5."
    if options.thresholds and not options.learns:
        yield "--thresholds needs runs that learn: give --train_for_env_steps=N."
    if not options.learns and not options.measures_throughput:
        yield "--measure_s=0 leaves nothing to measure: give --train_for_env_steps=N too."
    if options.from_run is not None:
        if options.learns or not options.measures_throughput:
            yield "--from_run measures throughput only: leave out --train_for_env_steps and give --measure_s."
        if options.config is not None or options.preset is not None:
            yield "--from_run takes the settings of that run: leave out --config and --preset."
        if not (options.from_run / "config.yaml").is_file():
            yield f"--from_run={options.from_run} is not the folder of a run: it has no config.yaml."


def _chooses_hogwild(training: Mapping[str, str]) -> bool:
    return training.get("backend") == "hogwild" or training.get("algo") == "a3c"
