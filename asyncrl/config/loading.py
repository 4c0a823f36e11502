"""Settings of a run from layers: defaults < preset (or the saved settings of a resumed run) < --config file < flags.

No library reads the command line: `docs/architecture.md` says why.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from asyncrl.config.algorithms import BUILT_IN, SHORT_NAMES, find_algorithm, known_names
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import ExtraFlag, format_help, format_value, help_page, nearest, split_flags, unknown_name
from asyncrl.config.other_names import OTHER_VALUES
from asyncrl.config.presets import Preset, preset_for, read_preset
from asyncrl.config.problems import ConfigError, Problem
from asyncrl.config.schema import OF_ONE_START, TrainConfig
from asyncrl.config.settings import Setting, all_settings
from asyncrl.config.yaml_values import read_mapping, read_scalar

_OWN_FLAGS = (
    ExtraFlag("config", "YAML file with settings, as lines of `name: value`; flags override it", is_bool=False),
    ExtraFlag("preset", "preset to use instead of the one for the environment, or none", is_bool=False),
)


@dataclass(frozen=True)
class LoadedConfig:
    """Settings and where each came from.

    Attributes:
        config: the settings.
        origins: by setting: `default`, `default of ALGO`, `preset NAME`, `saved run`, `file PATH`, `flag` or
            `argument`.
        preset: name of the preset that was used.
        preset_path: its file.
        cli: value of each extra flag: bool for a switch, text or None otherwise.
        saved: the settings that the run was last started with, if it is resumed.
        problems: mistakes that a lenient load left out of `config`; empty after a strict one.
    """

    config: TrainConfig
    origins: dict[str, str]
    preset: str | None = None
    preset_path: Path | None = None
    cli: dict[str, Any] = field(default_factory=dict)
    saved: TrainConfig | None = None
    problems: tuple[Problem, ...] = ()

    @property
    def given(self) -> tuple[str, ...]:
        """Settings that the user named, by flag, as an argument of `TrainConfig`, or in a file of their own."""
        return tuple(name for name, origin in self.origins.items() if origin.startswith(("flag", "argument", "file ")))


FindSaved = Callable[[str, str], Path | None]
"""From `train_dir` and `experiment` to the config.yaml of that run, None if there is none."""


@dataclass
class _Layers:
    """Values as they are gathered, later layers over earlier ones."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def put(self, values: Mapping[str, Any], origin: str, settings: Mapping[str, Setting]) -> None:
        for name, value in values.items():
            name = name.replace("-", "_")
            if name in settings:
                self.values[name] = value
                self.origins[name] = origin
            else:
                self.problems.append(unknown_name(name, settings, f"In the {origin} there is no setting {name}"))

    def complain(self, problem: object, *names: str) -> None:
        self.problems.append(Problem(names, str(problem)))


def load(
    argv: Sequence[str],
    extra_flags: Sequence[ExtraFlag] = (),
    *,
    program: str = "python -m asyncrl.train",
    description: str = "Train a policy.",
    examples: Sequence[str] = (),
    lenient: bool = False,
    find_saved: FindSaved | None = None,
) -> LoadedConfig:
    """Reads the command line, and the preset and file that it names.

    Args:
        argv: arguments without the program's name.
        extra_flags: flags of this command line that are no settings.
        program: for --help.
        description: for --help.
        examples: commands that --help shows.
        lenient: keep mistakes in `LoadedConfig.problems`, with defaults in their place, so that the caller can find
            further problems before it refuses. A lenient result with problems must not be run.
        find_saved: finds the run that `restart_behavior=resume` resumes; its settings take the preset's place.

    Raises:
        ConfigError: everything that is wrong, one line each.
        SystemExit: after --help was printed.
    """
    flags = (*_OWN_FLAGS, *extra_flags)
    layers = _Layers()
    schema = _find_schema(split_flags(argv, all_settings(), flags).texts, find_saved, layers)
    settings = all_settings(schema)
    if (page := help_page(argv)) is not None:
        print(format_help(program, description, settings, flags, examples, page))
        raise SystemExit(0)
    given = split_flags(argv, settings, flags)
    layers.problems.extend(given.problems)
    from_file: dict[str, Any] = {}
    from_flags: dict[str, Any] = {}
    for name in [name for name in given.texts if name in settings]:
        try:
            from_flags[name] = read_scalar(given.texts[name], settings[name])
        except UsageError as error:
            layers.complain(error, name)
    try:
        from_file = read_mapping(Path(given.texts["config"]), settings) if "config" in given.texts else {}
    except UsageError as error:
        layers.complain(f"--config: {error}", "config")
    _spell_out(from_file, layers)
    _spell_out(from_flags, layers)
    given_values = {f"file {given.texts.get('config')}": from_file, "flag": from_flags}
    loaded = _merge(layers, given_values, given.texts.get("preset"), find_saved)
    if layers.problems and not lenient:
        raise ConfigError(layers.problems)
    return replace(loaded, cli=_read_extra(given.texts, extra_flags))


def load_given(config: TrainConfig, preset: str | None = None, find_saved: FindSaved | None = None) -> LoadedConfig:
    """Settings of a run that a program starts: what `config` was made with lies over all other layers.

    Args:
        config: fields that it was not given take the values of saved run, preset or algorithm.
        preset: as the flag: a preset's name, `none`, or None for that of the environment.
        find_saved: as for `load`; mistakes are in `LoadedConfig.problems`.
    """
    given = {name: getattr(config, name) for name in config.model_fields_set}
    return _merge(_Layers(), {"argument": given}, preset, find_saved)


def _find_schema(texts: Mapping[str, str], find_saved: FindSaved | None, layers: _Layers) -> type[TrainConfig]:
    """The settings of the algorithm that flags, their file or the run that is resumed name.

    Mistakes in other settings are found later. An unknown algorithm has the settings of all algorithms.
    """
    settings, values = all_settings(), dict[str, Any](texts)
    if "config" in texts:
        with contextlib.suppress(UsageError):
            values = {**read_mapping(Path(texts["config"]), settings), **texts}
    if find_saved is not None and "algo" not in values:
        saved = _read_saved(values, find_saved, _Layers())
        if saved is not None:
            return type(saved)
    name, modules = str(values.get("algo", "ppo")), values.get("import_modules", [])
    if name in (*BUILT_IN, *SHORT_NAMES):
        return TrainConfig
    try:
        if isinstance(modules, str):
            modules = read_scalar(modules, settings["import_modules"])
        return find_algorithm(name, modules).settings or TrainConfig
    except UsageError as error:
        if ":" in name:
            layers.complain(error, "algo")
    except Exception:
        text = f"--algo={name}: importing a module raised an exception:\n{traceback.format_exc()}"
        layers.complain(text, "algo", "import_modules")
    return TrainConfig


def _merge(
    layers: _Layers,
    given: Mapping[str, Mapping[str, Any]],
    preset_name: str | None,
    find_saved: FindSaved | None,
) -> LoadedConfig:
    """All layers, those that were `given` on top, by their origin and in this order."""
    wanted = {name: value for values in given.values() for name, value in values.items()}
    saved = None if find_saved is None else _read_saved(wanted, find_saved, layers)
    before = saved or TrainConfig()
    env_id, algo, backend = (str(wanted.get(name, getattr(before, name))) for name in ("env", "algo", "backend"))
    try:
        algorithm = find_algorithm(algo, wanted.get("import_modules", before.import_modules))
    except Exception:  # reported elsewhere
        algorithm = find_algorithm("ppo")
    schema = algorithm.settings or TrainConfig
    settings = all_settings(schema)
    if saved is None:
        layers.put(algorithm.defaults, f"default of {algorithm.name}", settings)
    else:
        kept = saved.model_dump(mode="json", exclude=set(OF_ONE_START))
        layers.put({name: value for name, value in kept.items() if name in settings}, "saved run", settings)
    preset = _choose_preset(preset_name, "" if saved is not None else env_id, settings, layers)
    if preset is not None:
        layers.put(preset.values(env_id, algorithm, backend), f"preset {preset.name}", settings)
        if algorithm.name not in BUILT_IN:  # the preset was made for other algorithms
            layers.put(algorithm.defaults, f"default of {algorithm.name}", settings)
    for origin, values in given.items():
        layers.put(values, origin, settings)
    config = _validate(layers, schema, settings)
    return LoadedConfig(
        config=config,
        origins={name: layers.origins.get(name, "default") for name in settings},
        preset=preset.name if preset else None,
        preset_path=preset.path if preset else None,
        saved=saved,
        problems=tuple(layers.problems),
    )


def _spell_out(values: dict[str, Any], layers: _Layers) -> None:
    """Puts what a short name of an algorithm stands for in its place."""
    meant = SHORT_NAMES.get(str(values.get("algo")))
    if meant is None:
        return
    for name, value in meant.items():
        if name != "algo" and name in values and values[name] != value:
            text = f"--algo={values['algo']} means --{name}={value}, but --{name}={values[name]} was given."
            layers.complain(text, "algo", name)
    values.update(meant)


def _read_saved(wanted: Mapping[str, Any], find_saved: FindSaved, layers: _Layers) -> TrainConfig | None:
    """The settings of the run that is resumed, None if this is a new one."""
    default = TrainConfig()
    behavior = wanted.get("restart_behavior", default.restart_behavior)
    experiment, train_dir = wanted.get("experiment"), wanted.get("train_dir", default.train_dir)
    if behavior != "resume" or not isinstance(experiment, str) or not isinstance(train_dir, str):
        return None
    path = find_saved(train_dir, experiment)
    if path is None:
        return None
    try:
        return TrainConfig.from_saved(read_mapping(path, all_settings()))
    except UsageError as error:
        reason = str(error)
    except ValidationError as error:
        reason = f"its config.yaml has unknown settings or values: {', '.join(_refused(error))}."
    layers.complain(f"Cannot resume {path.parent}: {reason}", "experiment", "env")
    return None


def _choose_preset(wanted: str | None, env_id: str, settings: Mapping[str, Setting], layers: _Layers) -> Preset | None:
    if wanted is not None and wanted.lower() == "none":
        return None
    try:
        return preset_for(env_id, settings) if wanted is None else read_preset(wanted, settings)
    except UsageError as error:
        layers.complain(error, "preset")
        return None


def _validate(layers: _Layers, schema: type[TrainConfig], settings: Mapping[str, Setting]) -> TrainConfig:
    """Builds the settings; a value that is refused is reported and replaced by its default."""
    try:
        return schema(**layers.values)
    except ValidationError as error:
        refused = _refused(error)
    for name in refused:
        value, origin = layers.values.pop(name), layers.origins.pop(name)
        where = "--" if origin in ("flag", "argument") else f"In the {origin} "
        expected = settings[name].expected
        if name == "algo":
            if any("algo" in problem.settings for problem in layers.problems):
                continue
            *names, last = known_names()
            expected = f"one of {', '.join(names)} or {last}"
        hint = _hint(name, value, expected)
        layers.complain(f"{where}{name}={format_value(value)} is not possible: expected {expected}{hint}.", name)
    return schema(**layers.values)


def _refused(error: ValidationError) -> list[str]:
    return sorted({str(detail["loc"][0]) for detail in error.errors()})


def _hint(name: str, value: Any, expected: str) -> str:
    """What a refused value probably means, as the end of a sentence."""
    meant = OTHER_VALUES.get((name, str(value).lower()))
    if meant is not None:
        return f"; {meant}"
    choices = expected.replace("one of ", "").replace(" or ", ", ").split(", ")
    near = nearest(str(value).lower(), choices) if isinstance(value, str) and "one of" in expected else None
    return f"; the nearest is {near}" if near else ""


def _read_extra(texts: Mapping[str, str], extra_flags: Sequence[ExtraFlag]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for flag in extra_flags:
        text = texts.get(flag.name)
        values[flag.name] = text if not flag.is_bool else (text or "").lower() in ("true", "yes", "on", "1")
    return values
