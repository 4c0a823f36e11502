"""Settings of a run in layers: defaults < preset (or the saved settings of a resumed run) < --config file < flags.

Values are read and checked here and not by a command-line library; `docs/internals.md` gives the reasons.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from asyncrl.config.algorithms import BUILT_IN, SHORT_NAMES, find_algorithm, imported, known_names, spell_out
from asyncrl.config.errors import ConfigError, Problem, UsageError
from asyncrl.config.flags import (
    TRUTH_VALUES,
    ExtraFlag,
    format_help,
    help_page,
    policy_flag,
    refused_value,
    split_flags,
    unknown_name,
)
from asyncrl.config.hooks import hooks
from asyncrl.config.machine import Machine
from asyncrl.config.presets import Preset, preset_for, preset_names, read_preset
from asyncrl.config.schema import NEEDED_BY_TENSORS, OF_ONE_START, TrainConfig
from asyncrl.config.settings import Setting, all_settings, read_mapping, read_saved_values, read_scalar
from asyncrl.config.value_types import read_device

_OWN_FLAGS = (
    ExtraFlag("config", "YAML file with settings, as lines of `name: value`; flags override it", is_bool=False),
    ExtraFlag("preset", "preset to use instead of the one for the environment, or none", is_bool=False),
)


@dataclass(frozen=True)
class LoadedConfig:
    """Settings, and the source of each.

    Attributes:
        config: the settings.
        origins: by setting: `default`, `default of ALGO`, `preset NAME`, `env_backend tensor` (which needs the value),
            `saved run`, `file PATH`, `flag` or `argument`.
        preset: name of the preset; None without one.
        preset_path: its file.
        preset_reason: why there is this preset, or none.
        cli: value of each extra flag: for a switch a truth value or one of its texts, otherwise text or None.
        saved: the settings with which the run was last started, if it is resumed.
        problems: mistakes that a lenient load replaced by defaults; empty after a strict one.
        merge_again: merges the layers again, with the preset for `made_of`, if `keeps_spaces` (see `EnvSpec`); None if
            the preset does not depend on the environment.
    """

    config: TrainConfig
    origins: dict[str, str]
    preset: str | None = None
    preset_path: Path | None = None
    preset_reason: str = ""
    cli: dict[str, Any] = field(default_factory=dict)
    saved: TrainConfig | None = None
    problems: tuple[Problem, ...] = ()
    merge_again: Callable[[str, bool], LoadedConfig] | None = field(default=None, repr=False, compare=False)

    @property
    def preset_sentence(self) -> str:
        """The preset and how to have another one."""
        if self.preset is not None:
            return f"preset {self.preset} ({self.preset_path}){self.preset_reason}; --preset=none turns it off"
        if self.saved is not None:
            return f"preset none{self.preset_reason}"
        return f"preset none{self.preset_reason}; --preset=NAME chooses one: {', '.join(preset_names())}"

    @property
    def given(self) -> tuple[str, ...]:
        """Settings that the user gave by flag, as an argument of `TrainConfig`, or in the --config file."""
        return tuple(name for name, origin in self.origins.items() if origin.startswith(("flag", "argument", "file ")))


FindSaved = Callable[[str, str], Path | None]
"""Maps `train_dir` and `experiment` to the config.yaml of that run, or to None if that run does not exist."""


@dataclass
class _Layers:
    """Values of settings; later layers override earlier ones."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def put(self, values: Mapping[str, Any], origin: str, settings: Mapping[str, Setting]) -> None:
        for name, value in values.items():
            if name in settings:
                self.values[name] = value
                self.origins[name] = origin
            else:
                self.problems.append(unknown_name(name, settings, f"In the {origin} there is no setting {name}"))


def load(
    argv: Sequence[str],
    extra_flags: Sequence[ExtraFlag] = (),
    *,
    program: str = "asyncrl train",
    description: str = "Train a policy.",
    examples: Sequence[str] = (),
    lenient: bool = False,
    find_saved: FindSaved | None = None,
) -> LoadedConfig:
    """Reads the command line, and the preset and the file that it names.

    Args:
        argv: arguments without the program's name.
        extra_flags: flags of this command line that are not settings.
        program: for --help.
        description: for --help.
        examples: commands that --help shows.
        lenient: collect mistakes in `LoadedConfig.problems` and use defaults in their place, so that the caller can
            find further problems before it reports all of them. A result with problems must not be run.
        find_saved: finds the run that `restart_behavior=resume` resumes; its settings replace the preset's.

    Raises:
        ConfigError: every mistake, one line each.
        SystemExit: after --help was printed.
    """
    flags = (*_OWN_FLAGS, *extra_flags)
    layers = _Layers()
    config_type = _find_config_type(split_flags(argv, all_settings(), flags)[0], find_saved, layers)
    settings = all_settings(config_type)
    if (page := help_page(argv)) is not None:
        print(format_help(program, description, settings, flags, examples, page))
        raise SystemExit(0)
    texts, problems = split_flags(argv, settings, flags)
    layers.problems.extend(problems)
    from_file: dict[str, Any] = {}
    from_flags: dict[str, Any] = {}
    of_policies: dict[int, dict[str, Any]] = {}
    for name, text in texts.items():
        own = policy_flag(name)
        setting = settings.get(name if own is None else own[1])
        if setting is None:
            continue
        try:
            value = read_scalar(text, setting)
        except UsageError as error:
            layers.problems.append(Problem((name,), str(error)))
            continue
        if own is None:
            from_flags[name] = value
        else:
            of_policies.setdefault(own[0], {})[own[1]] = value
    try:
        from_file = read_mapping(Path(texts["config"]), settings) if "config" in texts else {}
    except UsageError as error:
        layers.problems.append(Problem(("config",), f"--config: {error}"))
    if "algo" in from_flags and str(from_file.get("algo")).lower() in SHORT_NAMES:
        del from_file["algo"]  # the flag replaces all settings that the name stands for
    for values in (from_file, from_flags):
        layers.problems.extend(spell_out(values))
    given = {f"file {texts.get('config')}": from_file, "flag": from_flags}
    cli: dict[str, Any] = {flag.name: texts.get(flag.name) for flag in extra_flags}
    for flag in extra_flags:
        given_text = texts.get(flag.name, "False")
        if flag.is_bool and given_text not in flag.values:
            cli[flag.name] = TRUTH_VALUES.get(given_text.lower(), False)
            if given_text.lower() not in TRUTH_VALUES:
                expected = ", ".join(["one of True", "False", *flag.values])
                layers.problems.append(refused_value(flag.name, given_text, expected))
    loaded = _merge(layers, given, texts.get("preset"), find_saved, cli, of_policies)
    if loaded.problems and not lenient:
        raise ConfigError(loaded.problems)
    return loaded


def _with_policies(before: Any, flags: Mapping[int, Mapping[str, Any]]) -> Any:
    """The value of `policies` from a saved run, a file or a flag, with the flags of single policies."""
    if before is None:
        before = {}
    if not isinstance(before, Mapping) or not all(isinstance(own, Mapping) for own in before.values()):
        return before  # refused later
    merged = {int(number) if str(number).isdecimal() else number: dict(own) for number, own in before.items()}
    for number, own in flags.items():
        merged.setdefault(number, {}).update(own)
    return merged


def load_given(config: TrainConfig, preset: str | None = None, find_saved: FindSaved | None = None) -> LoadedConfig:
    """Settings of a run that a program starts: the arguments of `config` override all other layers.

    Args:
        config: its other fields take the values of saved run, preset or algorithm.
        preset: as the flag: a preset's name, `none`, or None for that of the environment.
        find_saved: as for `load`; mistakes are in `LoadedConfig.problems`.
    """
    given = {name: getattr(config, name) for name in config.model_fields_set}
    return _merge(_Layers(), {"argument": given}, preset, find_saved, {})


def _find_config_type(texts: Mapping[str, str], find_saved: FindSaved | None, layers: _Layers) -> type[TrainConfig]:
    """The settings of the algorithm that flags, their file or the run that is resumed name.

    Mistakes in other settings are found later. An unknown algorithm has the settings of all algorithms.
    """
    values = dict[str, Any](texts)
    if "config" in texts:
        with contextlib.suppress(UsageError):
            values = {**read_mapping(Path(texts["config"])), **texts}
    if find_saved is not None and "algo" not in values:
        saved = _read_saved(values, find_saved, _Layers())
        if saved is not None:
            return type(saved)
    name, modules = str(values.get("algo", "ppo")), values.get("import_modules", [])
    if name.lower() in (*BUILT_IN, *SHORT_NAMES):
        return TrainConfig
    try:
        if isinstance(modules, str):
            modules = read_scalar(modules, all_settings()["import_modules"])
        return find_algorithm(name, modules).settings or TrainConfig
    except UsageError as error:
        if ":" in name:
            layers.problems.append(Problem(("algo",), str(error)))
    except Exception:
        text = f"--algo={name}: importing a module raised an exception:\n{traceback.format_exc()}"
        layers.problems.append(Problem(("algo", "import_modules"), text))
    return TrainConfig


def _merge(
    layers: _Layers,
    given: Mapping[str, Mapping[str, Any]],
    preset_name: str | None,
    find_saved: FindSaved | None,
    cli: dict[str, Any],
    of_policies: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
    made_of: str = "",
    keeps_spaces: bool = True,
) -> LoadedConfig:
    """Merges all layers: those in `given`, by origin, override the others, and later ones earlier ones.

    `of_policies` are flags of single policies, which change the last value of `policies` and do not replace it. The
    preset follows from the id, and from what the environment is `made_of` once that is known.
    """
    merge_again = functools.partial(_merge, layers, given, preset_name, find_saved, cli, of_policies)
    layers = _Layers(problems=[*layers.problems])
    wanted = {name: value for values in given.values() for name, value in values.items()}
    saved = None if find_saved is None else _read_saved(wanted, find_saved, layers)
    if of_policies:
        before_flags = wanted.get("policies", None if saved is None else saved.policies)
        given = {**given, "flag": {**given["flag"], "policies": _with_policies(before_flags, of_policies)}}
    before = saved or TrainConfig()
    env_id, algo, backend = (str(wanted.get(name, getattr(before, name))) for name in ("env", "algo", "backend"))
    try:
        algorithm = find_algorithm(algo, wanted.get("import_modules", before.import_modules))
    except Exception:  # reported elsewhere
        algorithm = find_algorithm("ppo")
    config_type = algorithm.settings or TrainConfig
    settings = all_settings(config_type)
    if saved is None:
        layers.put(algorithm.defaults, f"default of {algorithm.name}", settings)
    else:
        kept = saved.model_dump(mode="json", exclude=set(OF_ONE_START))
        layers.put({name: value for name, value in kept.items() if name in settings}, "saved run", settings)
    preset = None
    family = env_id if not made_of else made_of if keeps_spaces else ""
    try:
        if preset_name is None and saved is None:
            preset = preset_for(family)
        elif preset_name is not None and preset_name.lower() != "none":
            preset = read_preset(preset_name)
    except UsageError as error:
        layers.problems.append(Problem(("preset",), str(error)))
    if preset is not None:
        of_preset = preset.values(family, algorithm, backend)
        if not of_preset and not preset.envs:
            text = f"--preset={preset.name} has no values for --algo={algo}."
            algorithms = tuple(f"--algo={each}" for each in preset.for_algo)
            layers.problems.append(Problem(("preset", "algo"), text, algorithms))
        layers.put(of_preset, f"preset {preset.name}", settings)
        if algorithm.name not in BUILT_IN:  # the preset was made for other algorithms
            layers.put(algorithm.defaults, f"default of {algorithm.name}", settings)
    if wanted.get("env_backend", layers.values.get("env_backend")) == "tensor":
        layers.put(NEEDED_BY_TENSORS, "env_backend tensor", settings)
    for name, values_of in hooks("VALUE_SETS").items():
        value = wanted.get(name)
        if value is not None and value != getattr(before, name):
            meant = imported(values_of)(str(value), algorithm, _trains_on_gpu(wanted))
            layers.put(meant, f"{name} {value}", settings)
    for origin, values in given.items():
        layers.put(values, origin, settings)
    config = _validate(layers, config_type)
    return LoadedConfig(
        config=config,
        origins={name: layers.origins.get(name, "default") for name in settings},
        preset=preset.name if preset else None,
        preset_path=preset.path if preset else None,
        preset_reason="" if preset_name is not None else _preset_reason(env_id, made_of, preset, saved is not None),
        cli=cli,
        saved=saved,
        problems=tuple(layers.problems),
        merge_again=merge_again if preset is not None or (preset_name is None and saved is None) else None,
    )


def _preset_reason(env_id: str, made_of: str, preset: Preset | None, is_resumed: bool) -> str:
    """Why a run has this preset, or none, as the end of its name; empty where the environment's own id says it."""
    is_other = made_of not in ("", env_id, env_id.partition(":")[2])
    if is_resumed:
        return ": a resumed run keeps its settings"
    if preset is not None:
        return f" for {made_of}, which {env_id} makes" if is_other else ""
    if preset_for(made_of) is not None:
        return f": {env_id} makes {made_of} with other spaces, and its preset is for the original ones"
    return f": no preset is for {env_id}" + (f", which makes {made_of}" if is_other else "")


def _trains_on_gpu(wanted: Mapping[str, Any]) -> bool:
    given = [read_device(wanted[name]) for name in ("learner_device", "device") if wanted.get(name, "auto") != "auto"]
    return str(given[0]).startswith("cuda") if given else Machine.detect().cuda_is_usable


def _read_saved(wanted: Mapping[str, Any], find_saved: FindSaved, layers: _Layers) -> TrainConfig | None:
    """The settings of the run that is resumed; None for a new run."""
    default = TrainConfig()
    behavior = wanted.get("restart_behavior", default.restart_behavior)
    experiment, train_dir = wanted.get("experiment"), wanted.get("train_dir", default.train_dir)
    if behavior != "resume" or not isinstance(experiment, str) or not isinstance(train_dir, str):
        return None
    path = find_saved(train_dir, experiment)
    if path is None:
        return None
    try:
        return TrainConfig.from_saved(read_saved_values(path))
    except ConfigError as error:
        reason = "its config.yaml cannot be used. " + " ".join(problem.text for problem in error.problems)
    except UsageError as error:
        reason = str(error)
    layers.problems.append(Problem(("experiment", "env"), f"Cannot resume {path.parent}: {reason}"))
    return None


def _validate(layers: _Layers, config_type: type[TrainConfig]) -> TrainConfig:
    """Builds the settings; a refused value is reported and replaced by its default."""
    try:
        return config_type(**layers.values)
    except ConfigError as error:
        refused = {name: problem.text for problem in error.problems for name in problem.settings}
    except ValidationError as error:  # a rule between an algorithm's own settings
        texts = [detail["msg"].removeprefix("Value error, ") for detail in error.errors()]
        raise ConfigError([*layers.problems, *(Problem(("algo",), text) for text in texts)]) from None
    for name, text in sorted(refused.items()):
        value, origin = layers.values.pop(name, None), layers.origins.pop(name, "default")
        where = "--" if origin in ("flag", "argument") else f"In the {origin} "
        if name != "algo":
            layers.problems.append(Problem((name,), where + text.removeprefix("--")))
        elif not any("algo" in problem.settings for problem in layers.problems):
            *names, last = known_names()
            layers.problems.append(refused_value(name, value, f"one of {', '.join(names)} or {last}", where))
    return config_type(**layers.values)
