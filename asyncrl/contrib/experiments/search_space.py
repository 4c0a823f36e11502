"""Search spaces: which settings are searched, and between which values.

settings:
algo: ppo
space:
learning_rate: {low: 1.0e-5, high: 1.0e-2, scale: log}
gamma: {low: 0.9, high: 0.9999, scale: log_to_one}
num_epochs: {low: 1, high: 20}
rollout: {values: [16, 32, 64, 128]}
lr_schedule: {values: [constant, linear_decay]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from asyncrl.config.errors import UsageError
from asyncrl.config.flags import nearest_hint, unknown_name
from asyncrl.config.presets import presets_folder
from asyncrl.config.schema import TrainConfig
from asyncrl.config.settings import all_settings
from asyncrl.contrib.experiments.runs import as_flag

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Scale = Literal["linear", "log", "log_to_one"]
_KEYS = ("settings", "space")
_RANGE_KEYS = ("low", "high", "scale", "values")
_NOT_SEARCHED = ("env", "seed", "train_dir", "experiment", "restart_behavior", "quiet", "num_policies")
_DIGITS = 4


@dataclass(frozen=True)
class SearchedSetting:
    """One setting that is searched: a range of numbers, or a list of values.

    Attributes:
        name: the setting.
        low, high: ends of the range; of a list the first and the last index.
        scale: `log`: equal factors are equally likely; `log_to_one`: equal factors of the distance to 1 are.
        is_whole: whether only whole numbers are meant.
        values: the list; empty for a range. Increasing numbers are searched in their order, other values without one.
    """

    name: str
    low: float = 0.0
    high: float = 0.0
    scale: Scale = "linear"
    is_whole: bool = False
    values: tuple[Any, ...] = ()

    @property
    def parameter(self) -> str:
        """The name of the number or text that the sampler sees."""
        if self.scale == "log_to_one":
            return f"1 - {self.name}"
        return f"index of {self.name}" if self._is_ordered else self.name

    @property
    def distribution(self) -> BaseDistribution:
        """What the sampler draws from."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self._is_ordered:
            return IntDistribution(0, len(self.values) - 1)
        if self.values:
            return CategoricalDistribution([_text(value) for value in self.values])
        if self.is_whole:
            return IntDistribution(int(self.low), int(self.high), log=self.scale == "log")
        if self.scale == "log_to_one":
            return FloatDistribution(_rounded(1.0 - self.high), _rounded(1.0 - self.low), log=True)
        return FloatDistribution(self.low, self.high, log=self.scale == "log")

    def flag(self, drawn: Any) -> str:
        """The setting as a flag of training, for what the sampler has drawn; numbers have four digits."""
        if self._is_ordered:
            return as_flag(self.name, self.values[drawn])
        if self.values or self.is_whole:
            return as_flag(self.name, drawn)
        return as_flag(self.name, _rounded(1.0 - _rounded(drawn), 6) if self.scale == "log_to_one" else _rounded(drawn))

    def drawn(self, value: Any) -> Any:
        """What the sampler would have drawn for a value of the setting; None if that is outside the space."""
        if self.values:
            if value not in self.values:
                return None
            return self.values.index(value) if self._is_ordered else _text(value)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not self.low <= value <= self.high:
            return None
        return _rounded(1.0 - value) if self.scale == "log_to_one" else value

    @property
    def _is_ordered(self) -> bool:
        numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in self.values)
        return len(self.values) > 1 and numbers and list(self.values) == sorted(set(self.values))


@dataclass(frozen=True)
class SearchSpace:
    """A file of a search space.

    Attributes:
        settings: settings that all trials have.
        searched: the settings that are searched.
    """

    settings: Mapping[str, Any]
    searched: tuple[SearchedSetting, ...]

    def flags(self, drawn: Mapping[str, Any]) -> tuple[str, ...]:
        """The searched settings as flags, for what the sampler has drawn."""
        return tuple(each.flag(drawn[each.parameter]) for each in self.searched if each.parameter in drawn)

    def drawn(self, config: TrainConfig) -> dict[str, Any]:
        """What the sampler would have drawn for these settings, without those that are outside the space."""
        found = {each.parameter: each.drawn(getattr(config, each.name, None)) for each in self.searched}
        return {name: value for name, value in found.items() if value is not None}


def space_names() -> list[str]:
    """The search spaces of the package."""
    return sorted(path.stem for path in (presets_folder() / "sweep").glob("*.yaml"))


def find_space(given: str) -> Path:
    """The file of a search space: one of the package by its name, or a path.

    Raises:
        UsageError: there is none.
    """
    path = Path(given).expanduser()
    if given in space_names():
        return presets_folder() / "sweep" / f"{given}.yaml"
    if not path.is_file():
        names = space_names()
        hint = nearest_hint(given, names)
        raise UsageError(f"--space={given} is neither a file nor a search space of asyncrl ({', '.join(names)}){hint}.")
    return path


def read_space(content: Mapping[str, Any], source: str) -> SearchSpace:
    """Reads what the file of a search space holds.

    Args:
        content: the file's content.
        source: its name, for errors.

    Raises:
        UsageError: it has mistakes, one line each.
    """
    problems = [
        str(unknown_name(key, _KEYS, f"{source} has an unknown key {key!r}")) for key in content if key not in _KEYS
    ]
    settings, space = content.get("settings") or {}, content.get("space") or {}
    if not isinstance(settings, Mapping) or not isinstance(space, Mapping) or not space:
        raise UsageError(*problems, f"{source}: space must hold `name: {{low: A, high: B}}` lines.")
    searched = []
    known = all_settings()
    has_own = "import_modules" in settings or ":" in str(settings.get("algo", ""))
    for name, values in space.items():
        if name in _NOT_SEARCHED:
            problems.append(f"{source}: {name} cannot be searched.")
        elif name not in known and not has_own:
            problems.append(str(unknown_name(name, known, f"{source}: there is no setting {name}")))
        elif (problem := _find_problem(values)) is not None:
            problems.append(f"{source}: {name}: {problem}.")
        else:
            searched.append(_read(name, values))
    if problems:
        raise UsageError(*problems)
    return SearchSpace(settings, tuple(searched))


def _find_problem(values: Any) -> str | None:
    if not isinstance(values, Mapping) or set(values) - set(_RANGE_KEYS):
        return f"expected {{low: A, high: B, scale: {' or '.join(get_args(Scale))}}} or {{values: [A, B]}}"
    if "values" in values:
        has_list = isinstance(values["values"], list) and len(values["values"]) > 0
        return None if has_list and len(values) == 1 else "values must be a list, alone"
    low: Any = values.get("low")
    high: Any = values.get("high")
    scale = values.get("scale", "linear")
    for end in (low, high):
        if not isinstance(end, (int, float)) or isinstance(end, bool):
            return "low and high must be numbers"
    if not low < high:
        return f"low={low} must be less than high={high}"
    if scale not in get_args(Scale):
        return f"scale={scale} is not possible: expected {' or '.join(get_args(Scale))}"
    if scale == "log" and low <= 0:
        return f"scale=log needs low > 0, not {low}"
    if scale == "log_to_one" and high >= 1:
        return f"scale=log_to_one needs high < 1, not {high}"
    return None


def _read(name: str, values: Mapping[str, Any]) -> SearchedSetting:
    if "values" in values:
        return SearchedSetting(name, values=tuple(values["values"]))
    low, high, scale = values["low"], values["high"], values.get("scale", "linear")
    setting = all_settings().get(name)  # of an unknown one the ends of the range decide
    takes_whole_numbers = setting is None or "a whole number" in setting.expected
    is_whole = float(low).is_integer() and float(high).is_integer() and takes_whole_numbers
    return SearchedSetting(name, low, high, scale, is_whole)


def _text(value: Any) -> str:
    return as_flag("", value).partition("=")[2]


def _rounded(value: float, digits: int = _DIGITS) -> float:
    return float(f"{value:.{digits}g}")


def settings_of(flags: Sequence[str]) -> dict[str, str]:
    """Names and texts of flags, for a table."""
    return dict(flag.removeprefix("--").split("=", 1) for flag in flags)
