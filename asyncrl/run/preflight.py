"""All checks before a run starts, without torch and without starting a role.

    loaded settings -> resource plan -> rules -> environment's spaces -> checkpoint -> memory and limits -> Preflight

`validate` prints the result; `train` refuses to start if it has problems.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import gymnasium

from asyncrl.config.algorithms import BUILT_IN, module_that_registered
from asyncrl.config.errors import Problem, UsageError
from asyncrl.config.hooks import hooks, load
from asyncrl.config.loading import LoadedConfig
from asyncrl.config.machine import Machine
from asyncrl.config.plan import ResourcePlan, resolve
from asyncrl.config.replay_kinds import replay_kind
from asyncrl.config.schema import NEEDED_BY_TENSORS, TrainConfig
from asyncrl.config.user_modules import import_user_module
from asyncrl.config.warnings import find_warnings
from asyncrl.envs.actions import can_squash
from asyncrl.envs.errors import EnvironmentFailed, UnknownEnvironment, environment_traceback
from asyncrl.envs.probe import probe
from asyncrl.envs.showing import require_video_package
from asyncrl.envs.spec import DiscreteAction, EnvSpec
from asyncrl.models.sizes import weights_block_size
from asyncrl.modes.choice import arena_bytes, find_problems, mode_of
from asyncrl.modes.mode import MORE_MEMORY
from asyncrl.observers.loading import find_callback
from asyncrl.observers.trackers import require_package
from asyncrl.processes.memory import available_bytes, format_bytes
from asyncrl.rollout.policy_mapping import choose_by_name, specs_of_policies
from asyncrl.run import cuda_probe, dry_start, resuming
from asyncrl.run.spec_warnings import find_spec_warnings
from asyncrl.storage import run_folder

_BYTES_OF_A_PROCESS = 90 << 20  # with PyTorch and a small environment, without memory that processes share
_NETWORKS_OF_USERS = ("encoder", "core", "model")


@dataclass(frozen=True)
class Preflight:
    """The result of the checks.

    Attributes:
        loaded: the settings and their sources; the preset follows from the environment, `init_from` is replaced by the
            folder of a checkpoint, or for several policies of a run.
        plan: the resources resolved from them.
        spec: the environment's spaces; None if the environment could not be made.
        problems: reasons why the run cannot start.
        warnings: settings that are possible but probably a mistake.
        environment_failure: text with the environment's own traceback, if it raised.
        arena_bytes: shared memory that all ranks of this machine need; None without a spec.
        free_bytes: free memory.
        passes_checker: Gymnasium's checker has checked the environment and found nothing.
    """

    loaded: LoadedConfig
    plan: ResourcePlan
    spec: EnvSpec | None
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    environment_failure: str | None
    arena_bytes: int | None
    free_bytes: int
    passes_checker: bool = False

    @property
    def config(self) -> TrainConfig:
        """The settings."""
        return self.loaded.config

    @property
    def exit_code(self) -> int:
        """0 if the run can start, 2 for mistakes of the user, 1 if the environment raised."""
        if self.problems:
            return 2
        return 1 if self.environment_failure else 0


def run(
    loaded: LoadedConfig,
    machine: Machine | None = None,
    *,
    is_first_rank: bool = True,
    checks_env: bool = False,
    say: Callable[[str], None] | None = None,
) -> Preflight:
    """Makes every check and collects all problems.

    Args:
        loaded: settings, from a strict or a lenient load; the mistakes of a lenient one come first in the result.
        machine: the machine to plan for; by default the one that this process runs on.
        is_first_rank: whether this process creates the run's folder; other ranks do not check it.
        checks_env: run Gymnasium's environment checker too; its findings become warnings.
        say: shows the user a sentence at once, if the check of the environment takes long.
    """
    machine = machine or Machine.detect()
    config, name_problems = _resolve_names(loaded.config, is_first_rank)
    machine_problems = list(dry_start.find_machine_problems(config.serial_mode))
    env = _CheckedEnv()
    if config.env_id and not machine_problems and not {"env", "env_kwargs", "config"} & _names(loaded.problems):
        env = _check_env(config, checks_env, say)
    spec = env.spec
    if spec is None:
        plan = resolve(config, machine)
    else:
        if loaded.merge_again is not None:
            loaded = loaded.merge_again(spec.made_of, spec.keeps_spaces)
            config = loaded.config.model_copy(update={"init_from": config.init_from})
        config = _with_backend_of(spec, config, loaded.given)
        has_images = any(kind.observation.has_images for kind in spec.kinds)
        plan = resolve(config, machine, has_images, spec.num_agents)
        if cuda_probe.is_needed(config, plan, machine) and (cuda_problem := cuda_probe.find_problem()):
            machine = dataclasses.replace(machine, num_cuda_devices=0)
            plan = resolve(config, machine, has_images, spec.num_agents)
            env.findings.append(cuda_problem)
    resume_problems = resuming.find_problems(dataclasses.replace(loaded, config=config))
    found = [*resume_problems, *name_problems, *find_problems(config, plan, machine)]
    problems = [*loaded.problems, *_unaffected(found, loaded.problems), *env.problems, *machine_problems]
    warnings = [*_unaffected(find_warnings(config, plan, loaded.given), loaded.problems), *env.findings]
    needed, free = None, available_bytes()
    if spec is not None:
        problems += _spec_problems(config, plan, spec)
        has_source = "init_from" not in _names(name_problems)
        source_problems = resuming.find_source_problems(config, spec) if has_source else []
        problems += source_problems
        if not resume_problems:
            problems += resuming.find_checkpoint_problems(config, spec)
        warnings += find_spec_warnings(config, plan, spec)
        policies = [config] * plan.num_policies
        try:
            if "policies" not in _names(name_problems) | _names(found):
                policies = [config.for_policy(idx) for idx in range(plan.num_policies)]
            specs = specs_of_policies(spec, config.maps_policies, plan.num_policies)
            problems += _policy_key_problems(policies, specs)
            rank_bytes = _rank_size(config, plan, spec, specs, policies)
        except Exception as error:
            problems += _network_problems(error, [config, *policies], _names(name_problems), _names(problems))
        else:
            needed = rank_bytes * plan.num_local_ranks
            problems += dry_start.find_plan_problems(config, plan, rank_bytes)
            if needed > free:
                problems.append(mode_of(plan).memory_problem(plan, needed, free))
            else:
                warnings += _tight_memory(plan, needed, free)
            if not source_problems and not {"init_from", "policies"} & _names([*name_problems, *problems]):
                misfits, notes = resuming.find_source_misfits(config, spec)
                problems, warnings = [*problems, *misfits], [*warnings, *notes]
    loaded = dataclasses.replace(loaded, config=config)
    return Preflight(
        loaded, plan, spec, tuple(problems), tuple(warnings), env.failure, needed, free, env.passes_checker
    )


@dataclass
class _CheckedEnv:
    """What the check of the environment found.

    Attributes:
        spec: its spaces; None if it could not be made.
        failure: text with the environment's own traceback, if it raised.
        problems: why it cannot be used.
        findings: what is probably a mistake.
        passes_checker: as in `Preflight`.
    """

    spec: EnvSpec | None = None
    failure: str | None = None
    problems: list[Problem] = dataclasses.field(default_factory=list)
    findings: list[Problem] = dataclasses.field(default_factory=list)
    passes_checker: bool = False


def _check_env(config: TrainConfig, checks_env: bool, say: Callable[[str], None] | None) -> _CheckedEnv:
    found = _CheckedEnv()

    def advise(text: str) -> None:
        found.findings.append(Problem(("env",), text))

    def pass_checker() -> None:
        found.passes_checker = True

    try:
        found.spec = probe(
            config.env_id,
            config.env_kwargs,
            timeout_s=config.env_start_timeout,
            env_backend=config.env_backend,
            atari_preprocessing=config.atari_preprocessing,
            image_channels=config.image_channels,
            image_keys=config.image_keys,
            examine=replay_kind(config).examine,
            warn=advise if checks_env else None,
            on_clean=pass_checker,
            say=say,
            advise=advise,
            seed=config.seed,
        )
    except EnvironmentFailed as error:
        found.failure = str(error)
    except UsageError as error:
        text = str(error)
        if isinstance(error, UnknownEnvironment) and config.env_id in gymnasium.registry:
            text = (
                f"{config.env_id} is registered in this program only, and its processes cannot import that: give "
                f"env=MyEnv, the class or a function, or move the registration to a module and give "
                f"--env=MODULE:{config.env_id}."
            )
        found.problems.append(Problem(("env",), text))
    except OSError as error:
        found.problems.append(Problem((), f"The process that checks the environment cannot be started: {error}."))
    return found


def _spec_problems(config: TrainConfig, plan: ResourcePlan, spec: EnvSpec) -> Iterator[Problem]:
    """What the settings cannot do with the environment's spaces."""
    yield from mode_of(plan).find_spec_problems(config, plan, spec)
    feature_problems = [found for rule in hooks("SPEC_RULES").values() for found in load(rule)(config, plan, spec)]
    yield from feature_problems
    # Where agents have different spaces, the problem of a feature names the mapping that fits.
    checks_mapping = not feature_problems if spec.spaces else plan.num_policies > 1
    if checks_mapping:
        yield from _mapping_problems(config, spec)
    for kind in spec.kinds:
        yield from _action_problems(config, kind)
    yield from _image_problems(config, spec)


def _rank_size(
    config: TrainConfig, plan: ResourcePlan, spec: EnvSpec, specs: Sequence[EnvSpec], policies: Sequence[TrainConfig]
) -> int:
    """Bytes that one rank needs. Makes networks of the user."""
    sizes = [weights_block_size(own, each) for own, each in zip(specs, policies, strict=True)]
    for own, each in zip(specs, policies, strict=True):
        if _networks_of_user([each]) or each.algorithm.name not in BUILT_IN:
            from asyncrl.models.factory import check_networks  # imports torch

            check_networks(own, each)
    return arena_bytes(spec, plan, sizes, mode_of(plan).shared_sizes(spec, config))


def _network_problems(
    error: Exception, configs: Sequence[TrainConfig], wrong_names: Collection[str], known: Collection[str]
) -> list[Problem]:
    """The problem of networks that cannot be made, unless it is known; raises what is not the user's mistake."""
    user_networks = _networks_of_user(configs)
    if user_networks:
        if "import_modules" in wrong_names:
            return []
        return [_user_code_problem(user_networks, "making or calling the network", error)]
    if not isinstance(error, UsageError):
        raise error
    return [] if "algo" in known else [Problem(("algo", "env"), str(error))]


def _with_backend_of(spec: EnvSpec, config: TrainConfig, given: Collection[str]) -> TrainConfig:
    """The settings for an environment of tensors; those that the user gave stay.

    One that is stepped as arrays is one simulator in one worker, unless the user asks for more.
    """
    if not spec.gives_tensors or config.env_backend == "tensor":
        return config
    is_tensor = config.env_backend == "auto"
    wanted = NEEDED_BY_TENSORS if is_tensor else {"num_workers": 1, "worker_num_splits": 1}
    changes = {name: value for name, value in wanted.items() if name not in given}
    return config.model_copy(update={**changes, "env_backend": "tensor" if is_tensor else config.env_backend})


def _resolve_names(config: TrainConfig, is_first_rank: bool) -> tuple[TrainConfig, list[Problem]]:
    """Checks the names in the settings: the run's folder, a run to start from, the user's modules and callbacks."""
    problems = []
    if is_first_rank:
        experiment = config.experiment
        if experiment is None:
            experiment = run_folder.default_experiment(config.env_id, config.algorithm.name)
        if (problem := run_folder.find_problem(config.train_dir, experiment)) is not None:
            problems.append(Problem(("experiment", "train_dir"), problem))
    try:
        config = resuming.resolve_source(config)
    except UsageError as error:
        problems.append(Problem(("init_from",), str(error)))
    problems += _refused_names("import_modules", config.import_modules, import_user_module)
    problems += _known_to_this_script_only(config)
    problems += _refused_names("callbacks", config.callbacks, find_callback)
    problems += _refused_names("track", config.track, require_package)
    if config.video_every_env_steps is not None:
        try:
            require_video_package()
        except UsageError as error:
            problems.append(Problem(("video_every_env_steps",), str(error)))
    return config, problems


def _refused_names(setting: str, names: Iterable[str], find: Callable[[str], object]) -> Iterator[Problem]:
    """The problem of each name in a setting that `find` cannot find."""
    for name in names:
        try:
            find(name)
        except Exception as error:
            yield _user_code_problem((setting,), "importing a module", error)


def _known_to_this_script_only(config: TrainConfig) -> Iterator[Problem]:
    """Networks and algorithms without which the policy could not be loaded later, and that only this script has."""
    owners = [("algo", config.algo, module_that_registered(config.algo))]
    names = {(kind, str(own[kind])) for own in config.policies.values() for kind in _NETWORKS_OF_USERS if kind in own}
    names |= {(kind, getattr(config, kind)) for kind in _networks_of_user([config])}
    if names:
        from asyncrl.models import registry  # imports torch

        owners += [(kind, name, registry.module_that_registered(kind, name)) for kind, name in sorted(names)]
    for kind, name, module in owners:
        if module == "__main__":
            text = (
                f"--{kind}={name} is registered by this script, which other commands cannot import: move it to a "
                'module and give import_modules=["MODULE"].'
            )
            yield Problem((kind, "import_modules"), text)


def _networks_of_user(configs: Iterable[TrainConfig]) -> tuple[str, ...]:
    """The settings that name code of the user in one of `configs`."""
    return tuple(name for name in _NETWORKS_OF_USERS if any(getattr(each, name) != "default" for each in configs))


def _user_code_problem(names: tuple[str, ...], what: str, error: Exception) -> Problem:
    """A mistake in the user's module, or an exception that it raised, with its traceback."""
    if isinstance(error, UsageError):
        return Problem(names, str(error))
    return Problem(names, f"--{names[0]}: {what} raised an exception:\n{environment_traceback(error)}")


def _unaffected(found: list[Problem], mistakes: tuple[Problem, ...]) -> list[Problem]:
    """Drops problems that may follow from a mistake, because a default replaces the mistaken value."""
    mistaken = _names(mistakes)
    if {"config", "preset"} & mistaken:
        return []
    return [problem for problem in found if not mistaken & set(problem.settings)]


def _names(problems: Iterable[Problem]) -> set[str]:
    return {name for problem in problems for name in problem.settings}


def _action_problems(config: TrainConfig, spec: EnvSpec) -> list[Problem]:
    kinds = {"choice": "actions that are one choice (Discrete)", "continuous": "continuous actions only (Box)"}
    needed = config.algorithm.actions
    is_choice, is_continuous = isinstance(spec.action, DiscreteAction), spec.action.num_logits == 0
    if (needed == "choice" and not is_choice) or (needed == "continuous" and not is_continuous):
        text = f"--algo={config.algo} needs {kinds[needed]}; {spec.env_id} has {spec.action}."
        return [Problem(("algo", "env"), text, (*(["--algo=sac"] if can_squash(spec.action) else []), "--algo=ppo"))]
    if spec.action.num_stddevs > 0:
        fits = not config.squashes or can_squash(spec.action)
        found = "some bounds are infinite"
    else:
        fits = not config.squash_actions
        found = "its actions are discrete"
    if fits:
        return []
    name, fitting = ("squash_actions", "--squash_actions=False") if config.squash_actions else ("algo", "--algo=ppo")
    value = getattr(config, name)
    text = f"--{name}={value} needs continuous actions with finite bounds; {spec.env_id} has {spec.action}: {found}."
    return [Problem((name, "env"), text, (fitting,))]


def _policy_key_problems(policies: Sequence[TrainConfig], specs: Sequence[EnvSpec]) -> list[Problem]:
    """The problems of `_key_problems` of each policy, one that several have once."""
    found: dict[str, Problem] = {}
    for policy_idx, (config, spec) in enumerate(zip(policies, specs, strict=True)):
        for problem in _key_problems(config, spec):
            text = problem.text
            if "critic_only_keys" in config.policies.get(policy_idx, {}):
                names = ("policies", *problem.settings)
                problem = dataclasses.replace(problem, settings=names, text=f"Policy {policy_idx}: {text}")
            found.setdefault(problem.text, problem)
    return list(found.values())


def _key_problems(config: TrainConfig, spec: EnvSpec) -> Iterator[Problem]:
    """Keys that only the critic is to see, but that are not there or that the actor needs."""
    parts, keys = spec.observation.parts, config.critic_only_keys
    names = dict.fromkeys(part.path[0] for part in parts if part.path and part.kind != "mask")
    for key in keys:
        found_parts = [part for part in parts if part.is_in([key])]
        if not found_parts:
            found = f"those of {spec.env_id} are {', '.join(map(str, names))}" if names else "they have no keys"
            yield Problem(
                ("critic_only_keys", "env"), f"--critic_only_keys={key}: no such key of observations; {found}."
            )
        elif any(part.kind == "mask" for part in found_parts):
            text = f"--critic_only_keys={key}: the actor needs the mask of its actions."
            yield Problem(("critic_only_keys", "env"), text)


def _image_problems(config: TrainConfig, spec: EnvSpec) -> Iterator[Problem]:
    """Keys of images that are not there, or that have not the axes of an image."""
    parts = list(dict.fromkeys(part for kind in spec.kinds for part in kind.observation.parts))
    for key in config.image_keys:
        named = [part for part in parts if part.is_in([key])]
        if not named:
            names = ", ".join(part.name for part in parts if part.kind != "mask")
            text = f"--image_keys={key}: not a key of the observations. {spec.env_id} has {names}."
            yield Problem(("image_keys", "env"), text)
        for part in named:
            if not part.has_pixels:
                text = f"--image_keys={key}: an image is an array of two to four axes, and {spec.env_id} has {part}."
                yield Problem(("image_keys", "env"), text)


def _mapping_problems(config: TrainConfig, spec: EnvSpec) -> Iterator[Problem]:
    try:
        choose_by_name(config.maps_policies, config.num_policies, spec, config.seed)
    except UsageError as error:
        yield Problem(("policy_mapping", "num_policies"), str(error))
    except Exception as error:
        yield _user_code_problem(("policy_mapping",), "importing a module", error)


def _tight_memory(plan: ResourcePlan, needed: int, free: int) -> Iterator[Problem]:
    num_processes = plan.num_processes * plan.num_local_ranks
    processes = num_processes * _BYTES_OF_A_PROCESS
    if needed + processes > free:
        text = (
            f"{num_processes} processes take about {format_bytes(processes)} or more in addition to "
            f"{format_bytes(needed)} of shared memory, but only {format_bytes(free)} are free: the kernel may kill "
            "some of them."
        )
        yield Problem(("num_workers",), text, (MORE_MEMORY,))
