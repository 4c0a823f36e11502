"""Everything that is looked at before a run starts, without torch and without starting a role.

    loaded settings -> resource plan -> checks -> environment's spaces -> memory -> Preflight

`validate` prints the result; `train` refuses to start if it is not clean.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from asyncrl.buffers.layout import arena_bytes
from asyncrl.config.checks import find_problems, find_warnings
from asyncrl.config.errors import UsageError
from asyncrl.config.loading import LoadedConfig
from asyncrl.config.machine import Machine
from asyncrl.config.plan import ResourcePlan, resolve
from asyncrl.config.printing import format_bytes
from asyncrl.config.problems import Problem
from asyncrl.config.schema import TrainConfig
from asyncrl.config.user_modules import import_user_modules
from asyncrl.envs.actions import can_squash
from asyncrl.envs.errors import EnvironmentFailed, environment_traceback
from asyncrl.envs.probe import probe
from asyncrl.envs.spec import EnvSpec
from asyncrl.models.sizes import shared_sizes, weights_block_size
from asyncrl.observers.loading import find_callback
from asyncrl.run import resuming
from asyncrl.runtime import run_folder
from asyncrl.runtime.memory import available_bytes

_BYTES_OF_A_PROCESS = 90 << 20  # with PyTorch and a small environment; what they share is counted once
_LARGE_LEARNING_RATE_OF_CONVOLUTIONS = 1e-3  # docs/results.md, "Memory, spaces, lag": how many policies were lost
_MORE_MEMORY = "more memory (of a container: docker run --memory, systemd MemoryMax)"


@dataclass(frozen=True)
class Preflight:
    """What was found.

    Attributes:
        config: the settings, with the folder of the checkpoint in place of what `init_from` names.
        plan: what they were resolved to.
        spec: the environment's spaces; None if it could not be made.
        problems: what keeps the run from starting.
        warnings: what is allowed but probably not meant.
        environment_failure: text with the environment's own traceback, if it raised.
        arena_bytes: shared memory that the run needs; None without a spec.
        free_bytes: free memory.
    """

    config: TrainConfig
    plan: ResourcePlan
    spec: EnvSpec | None
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    environment_failure: str | None
    arena_bytes: int | None
    free_bytes: int

    @property
    def exit_code(self) -> int:
        """0 if the run may start, 2 for the user's mistakes, 1 for an environment that raised."""
        if self.problems:
            return 2
        return 1 if self.environment_failure else 0


def run(
    loaded: LoadedConfig, machine: Machine | None = None, *, is_first_rank: bool = True, checks_env: bool = False
) -> Preflight:
    """Looks at everything and stops at nothing.

    Args:
        loaded: settings, from a strict or a lenient load; the mistakes of a lenient one come first in the result.
        machine: what to plan for; the machine this runs on if not given.
        is_first_rank: whether the run's folder is this process's own, and not that of another rank.
        checks_env: run Gymnasium's checker on the environment too, whose findings become warnings.
    """
    machine = machine or Machine.detect()
    config, of_names = _resolve_names(loaded.config, is_first_rank)
    plan = resolve(config, machine)
    found = [*resuming.find_problems(loaded), *of_names, *find_problems(config, plan, machine)]
    problems = [*loaded.problems, *_unaffected(found, loaded.problems)]
    warnings = _unaffected(find_warnings(config, plan, loaded.given), loaded.problems)
    spec, failure = None, None
    if config.env_id and not {"env", "env_kwargs", "config"} & _names(loaded.problems):
        try:
            spec = probe(
                config.env_id,
                config.env_kwargs,
                env_backend=config.env_backend,
                atari_preprocessing=config.preprocesses_atari,
                image_channels=config.image_channels,
                warn=(lambda text: warnings.append(Problem(("env",), text))) if checks_env else None,
            )
        except EnvironmentFailed as error:
            failure = str(error)
        except UsageError as error:
            problems.append(Problem(("env",), str(error)))
    needed, free = None, available_bytes()
    if spec is not None:
        has_convolutions = spec.observation.has_images
        plan = resolve(config, machine, observes_images=has_convolutions)
        problems.extend(_action_problems(config, spec))
        if "init_from" not in _names(of_names):
            problems.extend(resuming.find_problems_of_source(config, spec))
        if not resuming.find_problems(loaded):
            problems.extend(resuming.find_problems_of_checkpoint(config, plan, spec))
        warnings.extend(_short_parts(config, plan, spec))
        warnings.extend(_lost_first_steps(config, spec))
        if has_convolutions and not config.is_off_policy and config.encoder == config.model == "default":
            warnings.extend(_large_steps(config, spec))
        try:
            shared = None if plan.hogwild is None else shared_sizes(spec, config)
            of_one_rank = arena_bytes(spec, plan, weights_block_size(spec, config), shared)
        except Exception as error:
            of_the_user = tuple(name for name in ("encoder", "core", "model") if getattr(config, name) != "default")
            if not of_the_user:
                raise
            if "import_modules" not in _names(of_names):
                problems.append(_of_user_code(of_the_user, "making the network", error))
        else:
            needed = of_one_rank * plan.num_local_ranks
            if needed > free:
                problems.append(_too_large(plan, needed, free))
            else:
                warnings.extend(_warn_tight(plan, needed, free))
    return Preflight(
        config=config,
        plan=plan,
        spec=spec,
        problems=tuple(problems),
        warnings=tuple(warnings),
        environment_failure=failure,
        arena_bytes=needed,
        free_bytes=free,
    )


def _resolve_names(config: TrainConfig, is_first_rank: bool) -> tuple[TrainConfig, list[Problem]]:
    """Looks at what the settings name: the run's folder, a run to start from, the user's modules and callbacks."""
    problems = []
    if is_first_rank:
        experiment = config.experiment
        if experiment is None:
            experiment = run_folder.default_experiment(config.env_id, config.algorithm.name)
        problem = run_folder.find_problem(config.train_dir, experiment)
        if problem is not None:
            problems.append(Problem(("experiment", "train_dir"), problem))
    try:
        config = resuming.resolve_source(config)
    except UsageError as error:
        problems.append(Problem(("init_from",), str(error)))
    try:
        import_user_modules(config.import_modules)
    except Exception as error:
        problems.append(_of_user_code(("import_modules",), "importing a module", error))
    for name in config.callbacks:
        try:
            find_callback(name)
        except UsageError as error:
            problems.append(Problem(("callbacks",), str(error)))
        except Exception as error:
            problems.append(_of_user_code(("callbacks",), "importing a module", error))
    return config, problems


def _of_user_code(names: tuple[str, ...], what: str, error: Exception) -> Problem:
    """A mistake in what a user's module has, or an exception that it raised, with its traceback."""
    if isinstance(error, UsageError):
        return Problem(names, str(error))
    return Problem(names, f"--{names[0]}: {what} raised an exception:\n{environment_traceback(error)}")


def _unaffected(found: list[Problem], mistakes: tuple[Problem, ...]) -> list[Problem]:
    """Drops what may only follow from a mistake, because a default stands where a mistaken value was."""
    mistaken = _names(mistakes)
    if {"config", "preset"} & mistaken:
        return []
    return [problem for problem in found if not mistaken & set(problem.settings)]


def _names(problems: Iterable[Problem]) -> set[str]:
    return {name for problem in problems for name in problem.settings}


def _action_problems(config: TrainConfig, spec: EnvSpec) -> list[Problem]:
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


def _short_parts(config: TrainConfig, plan: ResourcePlan, spec: EnvSpec) -> list[Problem]:
    if not config.checkpoint_resets or config.save_every_env_steps is None or spec.max_episode_steps is None:
        return []
    steps = config.save_every_env_steps // plan.num_envs
    if steps >= spec.max_episode_steps:
        return []
    text = (
        f"--checkpoint_resets=True restarts all episodes every {config.save_every_env_steps} steps, after {steps} in "
        f"each of {plan.num_envs} environments, but an episode of {spec.env_id} may last {spec.max_episode_steps}."
    )
    fitting = (f"--save_every_env_steps={10 * plan.num_envs * spec.max_episode_steps}",)
    return [Problem(("save_every_env_steps", "checkpoint_resets"), text, fitting)]


def training_returns_mislead(config: TrainConfig, spec: EnvSpec) -> bool:
    """Whether the policy reaches other returns in training than in episodes of its own.

    After a truncation its recurrent state misses the first observation of the next episode (see `VectorEnvGroup`).
    """
    return config.use_rnn and spec.resets_within_step


def _lost_first_steps(config: TrainConfig, spec: EnvSpec) -> list[Problem]:
    if not training_returns_mislead(config, spec):
        return []
    text = (
        f"{spec.env_id} resets its environments within a step (autoreset mode SAME_STEP or DISABLED). After a "
        "truncation a recurrent policy misses the first observation, so training returns differ from what the policy "
        "reaches"
    )
    is_left_out = config.save_best_metric == "auto" and config.eval_every_env_steps is None
    text += ", and no best checkpoint is chosen by them." if is_left_out else "."
    fitting = ("--eval_every_env_steps=100000",) if config.eval_every_env_steps is None else ()
    return [Problem(("env_backend", "use_rnn", "save_best_metric"), text, (*fitting, "--env_backend=gym"))]


def _large_steps(config: TrainConfig, spec: EnvSpec) -> list[Problem]:
    if config.learning_rate < _LARGE_LEARNING_RATE_OF_CONVOLUTIONS:
        return []
    text = (
        f"--learning_rate={config.learning_rate:g} is large for the convolutions over images of {spec.env_id}: an "
        "update may permanently collapse the image features."
    )
    usual = TrainConfig.model_fields["learning_rate"].default
    return [Problem(("learning_rate",), text, (f"--learning_rate={usual:g}",))]


def _warn_tight(plan: ResourcePlan, needed: int, free: int) -> list[Problem]:
    """Processes that may not fit beside the shared memory: the kernel kills some of them in the middle of the run."""
    num_processes = plan.num_processes * plan.num_local_ranks
    processes = num_processes * _BYTES_OF_A_PROCESS
    if needed + processes <= free:
        return []
    text = (
        f"{num_processes} processes take about {format_bytes(processes)} or more on top of {format_bytes(needed)} of "
        f"shared memory, but only {format_bytes(free)} are free: the kernel may kill some of them."
    )
    return [Problem(("num_workers",), text, (_MORE_MEMORY,))]


def _too_large(plan: ResourcePlan, needed: int, free: int) -> Problem:
    memory = (
        f"{format_bytes(needed)} ({needed} bytes) of shared memory, but only {format_bytes(free)} ({free} bytes) are "
        "free."
    )
    if plan.replay is not None:
        fitting = max(1, int(plan.replay.size * free * 0.9 / needed))
        text = f"A replay of {plan.replay.size} environment steps needs {memory}"
        return Problem(("replay_size",), text, (f"--replay_size={fitting}", _MORE_MEMORY))
    text = f"{plan.num_slots} buffers of {plan.envs_per_split} trajectories of {plan.rollout} steps need {memory}"
    names = ("batch_size", "num_batches_per_epoch", "num_batches_to_accumulate", "num_envs_per_worker", "rollout")
    return Problem(names, text, (f"a smaller value of {', '.join('--' + name for name in names)}", _MORE_MEMORY))
