"""All checks before a run starts, without torch and without starting a role.

    loaded settings -> resource plan -> rules -> environment's spaces -> checkpoint -> memory -> Preflight

`validate` prints the result; `train` refuses to start if it has problems.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import gymnasium
import numpy as np

from asyncrl.buffers.layout import arena_bytes
from asyncrl.cluster import connection
from asyncrl.cluster.parcels import LARGEST_FLOAT16
from asyncrl.cluster.traffic import Traffic
from asyncrl.config.algorithms import BUILT_IN, module_that_registered
from asyncrl.config.checks import find_problems
from asyncrl.config.errors import Problem, UsageError
from asyncrl.config.loading import LoadedConfig
from asyncrl.config.machine import Machine
from asyncrl.config.plan import ResourcePlan, resolve
from asyncrl.config.schema import NEEDED_BY_TENSORS, TrainConfig
from asyncrl.config.user_modules import import_user_module
from asyncrl.config.warnings import find_warnings
from asyncrl.envs.actions import can_squash
from asyncrl.envs.errors import EnvironmentFailed, UnknownEnvironment, environment_traceback
from asyncrl.envs.goals import goal_problem
from asyncrl.envs.probe import probe
from asyncrl.envs.showing import require_video_package
from asyncrl.envs.spec import DiscreteAction, EnvSpec
from asyncrl.models.sizes import shared_sizes, weights_block_size
from asyncrl.observers.loading import find_callback
from asyncrl.observers.trackers import require_package
from asyncrl.rollout.policy_mapping import choose_by_name, specs_of_policies
from asyncrl.run import resuming
from asyncrl.runtime import run_folder
from asyncrl.runtime.memory import available_bytes

_BYTES_OF_A_PROCESS = 90 << 20  # with PyTorch and a small environment, without memory that processes share
_LARGE_LEARNING_RATE_OF_CONVOLUTIONS = 1e-3  # docs/results.md, "Memory, spaces, lag": how many policies were lost
_NETWORKS_OF_USERS = ("encoder", "core", "model")
_MORE_MEMORY = "more memory (of a container: docker run --memory, systemd MemoryMax)"


@dataclass(frozen=True)
class Preflight:
    """The result of the checks.

    Attributes:
        config: the settings, with `init_from` replaced by the folder of a checkpoint, or for several policies of a run.
        plan: the resources resolved from them.
        spec: the environment's spaces; None if the environment could not be made.
        problems: reasons why the run cannot start.
        warnings: settings that are possible but probably a mistake.
        environment_failure: text with the environment's own traceback, if it raised.
        arena_bytes: shared memory that all ranks of this machine need; None without a spec.
        free_bytes: free memory.
        traffic: of pools on other machines; None without them or without a spec.
    """

    config: TrainConfig
    plan: ResourcePlan
    spec: EnvSpec | None
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    environment_failure: str | None
    arena_bytes: int | None
    free_bytes: int
    traffic: Traffic | None = None

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
    config, of_names = _resolve_names(loaded.config, is_first_rank)
    of_env: list[Problem] = []
    findings: list[Problem] = []
    spec, failure = None, None
    if config.env_id and not {"env", "env_kwargs", "config"} & _names(loaded.problems):
        try:
            spec = probe(
                config.env_id,
                config.env_kwargs,
                timeout_s=config.env_start_timeout,
                env_backend=config.env_backend,
                atari_preprocessing=config.preprocesses_atari,
                image_channels=config.image_channels,
                warn=(lambda text: findings.append(Problem(("env",), text))) if checks_env else None,
                say=say,
                advise=lambda text: findings.append(Problem(("env",), text)),
            )
        except EnvironmentFailed as error:
            failure = str(error)
        except UsageError as error:
            is_known_here = isinstance(error, UnknownEnvironment) and config.env_id in gymnasium.registry
            text = _registered_here_only(config.env_id) if is_known_here else str(error)
            of_env.append(Problem(("env",), text))
    if spec is None:
        plan = resolve(config, machine)
    else:
        config = _with_backend_of(spec, config, loaded.given)
        has_images = any(kind.observation.has_images for kind in spec.kinds)
        plan = resolve(config, machine, has_images, spec.num_agents)
    of_resuming = resuming.find_problems(dataclasses.replace(loaded, config=config))
    found = [*of_resuming, *of_names, *find_problems(config, plan, machine)]
    problems = [*loaded.problems, *_unaffected(found, loaded.problems), *of_env]
    warnings = [*_unaffected(find_warnings(config, plan, loaded.given), loaded.problems), *findings]
    needed, free, traffic = None, available_bytes(), None
    if spec is not None:
        if spec.agents:
            problems += _agents_problems(config, spec)
        elif config.self_play:
            text = f"--self_play=True needs an environment of several agents, and {spec.env_id} has one."
            problems.append(Problem(("self_play", "env"), text, ("--self_play=False",)))
        if plan.num_policies > 1 or spec.spaces:
            problems += _mapping_problems(config, spec)
        for kind in spec.kinds:
            problems += _action_problems(config, kind)
        if config.her_goals > 0 and plan.replay is not None:
            problems += _goal_problems(config, spec)
        if plan.num_remote_hosts > 0 and plan.hogwild is None and config.cluster_observations == "float16":
            problems += _float16_problems(spec)
        of_source = [] if "init_from" in _names(of_names) else resuming.find_problems_of_source(config, spec)
        problems += of_source
        if not of_resuming:
            problems += resuming.find_problems_of_checkpoint(config, spec)
        warnings += _env_warnings(config, plan, spec)
        policies = [config] * plan.num_policies
        try:
            if "policies" not in _names(of_names) | _names(found):
                policies = [config.of_policy(idx) for idx in range(plan.num_policies)]
            specs = specs_of_policies(spec, config.maps_policies, plan.num_policies)
            problems += _key_problems_of_policies(policies, specs)
            shared = None if plan.hogwild is None else shared_sizes(spec, config)
            sizes = [weights_block_size(own, each) for own, each in zip(specs, policies, strict=True)]
            for own, each in zip(specs, policies, strict=True):
                if _networks_of_user([each]) or each.algorithm.name not in BUILT_IN:
                    from asyncrl.models.factory import check_networks  # imports torch

                    check_networks(own, each)
            of_one_rank = arena_bytes(spec, plan, sizes, shared)
            if plan.num_remote_hosts > 0 and (plan.num_slots > 0 or plan.replay is not None or plan.sends_gradients):
                traffic = Traffic.of(plan, spec, sizes[0], config.cluster_observations == "float16")
        except Exception as error:
            of_the_user = _networks_of_user([config, *policies])
            if not of_the_user and not isinstance(error, UsageError):
                raise
            if not of_the_user:  # the algorithm's model; `_action_problems` may have said it already
                problems += [] if "algo" in _names(problems) else [Problem(("algo", "env"), str(error))]
            elif "import_modules" not in _names(of_names):
                problems.append(_of_user_code(of_the_user, "making or calling the network", error))
        else:
            needed = of_one_rank * plan.num_local_ranks
            if needed > free:
                problems.append(_too_large(plan, needed, free))
            else:
                warnings += _tight_memory(plan, needed, free)
            if not of_source and not {"init_from", "policies"} & _names([*of_names, *problems]):
                misfits, notes = resuming.find_misfits_of_source(config, spec)
                problems, warnings = [*problems, *misfits], [*warnings, *notes]
    return Preflight(config, plan, spec, tuple(problems), tuple(warnings), failure, needed, free, traffic)


def _registered_here_only(env_id: str) -> str:
    return (
        f"{env_id} is registered in this program only, and its processes cannot import that: give env=MyEnv, the class "
        f"or a function, or move the registration to a module and give --env=MODULE:{env_id}."
    )


def _float16_problems(spec: EnvSpec) -> list[Problem]:
    """Observations that float16 cannot hold."""
    texts = [
        f"--cluster_observations=float16 ends at {LARGEST_FLOAT16:g}, and {part.name} of {spec.env_id} may be as large "
        f"as {part.largest:g}."
        for part in spec.observation.parts
        if part.kind == "numbers" and np.issubdtype(part.dtype, np.floating) and (part.largest or 0.0) > LARGEST_FLOAT16
    ]
    names = ("cluster_observations", "env")
    return [Problem(names, text, ("--cluster_observations=float32",)) for text in texts]


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
    try:
        for module in config.import_modules:
            import_user_module(module)
    except Exception as error:
        problems.append(_of_user_code(("import_modules",), "importing a module", error))
    problems += _known_to_this_script_only(config)
    for name in config.callbacks:
        try:
            find_callback(name)
        except Exception as error:
            problems.append(_of_user_code(("callbacks",), "importing a module", error))
    for name in config.track:
        try:
            require_package(name)
        except UsageError as error:
            problems.append(Problem(("track",), str(error)))
    if config.cluster == "ray" and (reason := connection.find_problem(config)) is not None:
        problems.append(Problem(("cluster", "ray_address"), reason, ("--cluster=none",)))
    if config.video_every_env_steps is not None:
        try:
            require_video_package()
        except UsageError as error:
            problems.append(Problem(("video_every_env_steps",), str(error)))
    return config, problems


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


def _of_user_code(names: tuple[str, ...], what: str, error: Exception) -> Problem:
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
    if config.use_sde and not (is_continuous and len(spec.action.leaves) == 1):
        text = f"--use_sde=True needs actions that are one Box; {spec.env_id} has {spec.action}."
        return [Problem(("use_sde", "env"), text, ("--use_sde=False",))]
    if spec.action.num_deviations > 0:
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


def _key_problems_of_policies(policies: Sequence[TrainConfig], specs: Sequence[EnvSpec]) -> list[Problem]:
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
        of_key = [part for part in parts if part.is_in([key])]
        if not of_key:
            found = f"those of {spec.env_id} are {', '.join(map(str, names))}" if names else "they have no keys"
            yield Problem(
                ("critic_only_keys", "env"), f"--critic_only_keys={key}: no such key of observations; {found}."
            )
        elif any(part.kind == "mask" for part in of_key):
            text = f"--critic_only_keys={key}: the actor needs the mask of its actions."
            yield Problem(("critic_only_keys", "env"), text)


def _goal_problems(config: TrainConfig, spec: EnvSpec) -> Iterator[Problem]:
    given, off = f"--her_goals={config.her_goals}", "--her_goals=0"
    if (needed := goal_problem(spec)) is not None:
        yield Problem(("her_goals", "env"), f"{given} needs {needed}; {spec.env_id} has {spec.observation}.", (off,))
    elif spec.is_vectorized or spec.gives_tensors:
        text = f"{given} needs single environments, whose compute_reward it calls; {spec.env_id} is vectorized."
        yield Problem(("her_goals", "env_backend"), text, ("--env_backend=gym", off))


def _agents_problems(config: TrainConfig, spec: EnvSpec) -> Iterator[Problem]:
    text = f"{spec.env_id} has {len(spec.agents)} agents"
    if config.is_off_policy:
        yield Problem(
            ("algo", "env"), f"{text}, which --algo={config.algo} cannot train.", ("--algo=ppo", "--algo=a2c")
        )
    if config.backend == "hogwild":
        yield Problem(
            ("backend", "env"), f"{text}, which --backend=hogwild cannot train.", ("--backend=actor_learner",)
        )


def _mapping_problems(config: TrainConfig, spec: EnvSpec) -> Iterator[Problem]:
    for name in ("self_play", "with_pbt") if spec.spaces else ():
        if getattr(config, name):
            text = f"--{name}=True needs agents with the same spaces: those of {spec.env_id} differ."
            fitting = f"--{name}=False --num_policies={len(spec.kinds)} --policy_mapping=by_space"
            yield Problem((name, "env"), text, (fitting,))
            return
    try:
        choose_by_name(config.maps_policies, config.num_policies, spec, config.seed)
    except UsageError as error:
        yield Problem(("policy_mapping", "num_policies"), str(error))
    except Exception as error:
        yield _of_user_code(("policy_mapping",), "importing a module", error)


def training_returns_mislead(config: TrainConfig, spec: EnvSpec) -> bool:
    """Whether returns in training say less about a policy than evaluations do.

    A population changes the factors of the reward, and returns with different factors cannot be compared.
    """
    return _misses_first_observations(config, spec) or (config.with_pbt and bool(spec.reward_shaping))


def _misses_first_observations(config: TrainConfig, spec: EnvSpec) -> bool:
    """Whether a recurrent state misses the first observation after a truncation (see `VectorEnvGroup`)."""
    return config.use_rnn and spec.resets_within_step


def _env_warnings(config: TrainConfig, plan: ResourcePlan, spec: EnvSpec) -> Iterator[Problem]:
    steps, longest = (config.save_every_env_steps or 0) // plan.num_envs, spec.max_episode_steps
    if config.checkpoint_resets and config.save_every_env_steps is not None and longest is not None and steps < longest:
        text = (
            f"--checkpoint_resets=True restarts all episodes every {config.save_every_env_steps} steps, after {steps} "
            f"in each of {plan.num_envs} environments, but an episode of {spec.env_id} may last {longest}."
        )
        fitting = f"--save_every_env_steps={10 * plan.num_envs * longest}"
        yield Problem(("save_every_env_steps", "checkpoint_resets"), text, (fitting,))
    if config.exploration_noise != "white" and config.is_off_policy and spec.action.num_deviations == 0:
        text = f"--exploration_noise={config.exploration_noise} has no effect: {spec.env_id} has no continuous actions."
        yield Problem(("exploration_noise", "env"), text)
    evaluate = ("--eval_every_env_steps=100000",) if config.eval_every_env_steps is None else ()
    is_not_chosen = config.save_best_metric == "auto" and evaluate
    end = ", and no best checkpoint is chosen by them." if is_not_chosen else "."
    if _misses_first_observations(config, spec):
        text = (
            f"{spec.env_id} resets its environments within a step (autoreset mode SAME_STEP or DISABLED). After a "
            f"truncation a recurrent policy misses the first observation, so training returns differ from what the "
            f"policy reaches{end}"
        )
        yield Problem(("env_backend", "use_rnn", "save_best_metric"), text, (*evaluate, "--env_backend=gym"))
    elif training_returns_mislead(config, spec) and is_not_chosen:
        text = (
            f"{spec.env_id} has reward shaping, which population-based training changes, so returns in training cannot "
            f"be compared{end}"
        )
        yield Problem(("with_pbt", "save_best_metric"), text, evaluate)
    has_images = any(kind.observation.has_images for kind in spec.kinds)
    has_convolutions = has_images and config.encoder == config.model == "default"
    rate, usual = config.learning_rate, TrainConfig.model_fields["learning_rate"].default
    if has_convolutions and not config.is_off_policy and rate >= _LARGE_LEARNING_RATE_OF_CONVOLUTIONS:
        text = (
            f"--learning_rate={rate:g} is large for the convolutions over images of {spec.env_id}: an update may "
            "permanently collapse the image features."
        )
        yield Problem(("learning_rate",), text, (f"--learning_rate={usual:g}",))


def _tight_memory(plan: ResourcePlan, needed: int, free: int) -> Iterator[Problem]:
    num_processes = plan.num_processes * plan.num_local_ranks
    processes = num_processes * _BYTES_OF_A_PROCESS
    if needed + processes > free:
        text = (
            f"{num_processes} processes take about {format_bytes(processes)} or more in addition to "
            f"{format_bytes(needed)} of shared memory, but only {format_bytes(free)} are free: the kernel may kill "
            "some of them."
        )
        yield Problem(("num_workers",), text, (_MORE_MEMORY,))


def _too_large(plan: ResourcePlan, needed: int, free: int) -> Problem:
    memory = (
        f"{format_bytes(needed)} ({needed} bytes) of shared memory, but only {format_bytes(free)} ({free} bytes) are "
        "free."
    )
    if plan.replay is not None:
        fitting = max(1, int(plan.replay.size * free * 0.9 / needed))
        text = f"A replay of {plan.replay.size} environment steps needs {memory}"
        return Problem(("replay_size",), text, (f"--replay_size={fitting}", _MORE_MEMORY))
    text = f"{plan.num_slots} buffers of {plan.columns_per_split} trajectories of {plan.rollout} steps need {memory}"
    names = ("batch_size", "num_batches_per_epoch", "num_batches_to_accumulate", "num_envs_per_worker", "rollout")
    return Problem(names, text, (f"a smaller value of {', '.join('--' + name for name in names)}", _MORE_MEMORY))


def format_bytes(count: int) -> str:
    """A number of bytes in the unit that people use for its size."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"
