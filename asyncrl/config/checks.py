"""Which settings do not go together. Every rule is looked at; nothing stops at the first problem."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from asyncrl.config.dependencies import missing_for
from asyncrl.config.machine import Machine
from asyncrl.config.other_names import OTHER_VALUES
from asyncrl.config.plan import PLACES_OF_A_WORKER, HogwildPlan, ReplayPlan, ResourcePlan
from asyncrl.config.problems import Problem
from asyncrl.config.schema import TrainConfig

MOST_PROCESSES = 240

_COUNTERPARTS = {"ent_coef": "entropy_loss_coeff", "entropy_loss_coeff": "ent_coef"}
"""Of settings that only some algorithms read, those with the same purpose in the others."""


def find_problems(config: TrainConfig, plan: ResourcePlan, machine: Machine | None = None) -> list[Problem]:
    """Everything that keeps the run from starting, as far as settings and machine show it.

    Args:
        config: the settings.
        plan: what they were resolved to.
        machine: what the plan was made for; the machine this runs on if not given.
    """
    machine = machine or Machine.detect()
    return [
        *_environment(config),
        *_tensors(config, plan),
        *_devices(config, machine),
        *_compile(config, plan),
        *_processes(plan),
        *_splits(config, plan),
        *_inference(config, plan),
        *(_hogwild(config, plan.hogwild, plan) if plan.hogwild is not None else ()),
        *(_replay(config, plan.replay, plan) if plan.replay is not None else _trajectories(config, plan)),
        *_learning(config),
        *_recurrence(config, plan),
        *_precision(config),
        *_saving(config),
        *_ranks(config, plan),
    ]


def _ranks(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    if plan.num_ranks == 1:
        return
    if config.backend == "hogwild":
        text = f"--backend=hogwild runs on one machine as one rank, not as {plan.num_ranks} ranks."
        yield Problem(("backend",), text, ("--backend=actor_learner", "to start it without torchrun"))
    if plan.steps_tensors:
        text = f"--env_backend={config.env_backend} runs in one process, not as {plan.num_ranks} ranks."
        yield Problem(("env_backend",), text, ("to start it without torchrun",))
    elif config.serial_mode:
        text = f"--serial_mode=True runs in one process, not as {plan.num_ranks} ranks."
        yield Problem(("serial_mode",), text, ("--serial_mode=False", "to start it without torchrun"))
    if config.max_learner_restarts > 0:
        text = "--max_learner_restarts restarts one learner, but several ranks must be restarted together."
        yield Problem(("max_learner_restarts",), text, ("torchrun --max-restarts",))


def find_warnings(config: TrainConfig, plan: ResourcePlan, given: Iterable[str]) -> list[Problem]:
    """What is allowed, and still probably not what was meant.

    Args:
        config: the settings.
        plan: what they were resolved to.
        given: settings that the user named; only of these it is said that they have no effect.
    """
    return [
        *_warn_unread(config, plan, given),
        *_warn_serial(plan),
        *_warn_resources(plan),
        *_warn_learning(config, plan),
    ]


def _environment(config: TrainConfig) -> Iterator[Problem]:
    if not config.env:
        text = "No environment was given"
        if config.experiment is not None and config.restart_behavior == "resume":
            text += f", and there is no run {config.experiment!r} in {config.train_dir} to resume"
        yield Problem(("env",), f"{text}.", ("--env=CartPole-v1", "--env=Humanoid-v5"))


def _tensors(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    if not plan.steps_tensors:
        return
    needed = {
        "serial_mode": True,
        "async_rl": False,
        "num_workers": 1,
        "backend": "actor_learner",
        "debug_forced_lag": 0,
    }
    wrong = {name: value for name, value in needed.items() if getattr(config, name) not in (value, "auto")}
    if config.is_off_policy:
        wrong["algo"] = "ppo"
    if wrong:
        text = "--env_backend=tensor steps environments and trains on-policy in one process on one device."
        flags = " ".join(f"--{name}={value}" for name, value in wrong.items())
        yield Problem((*wrong, "env_backend"), text, (flags,))


def _recurrence(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    if config.use_rnn and config.is_off_policy:
        text = f"--use_rnn=True needs trajectories, but --algo={config.algo} trains on single steps from a replay."
        yield Problem(("use_rnn", "algo"), text, ("--use_rnn=False", "--algo=ppo"))
    elif config.use_rnn and plan.rollout % plan.recurrence != 0:
        text = f"--recurrence={plan.recurrence} must divide --rollout={plan.rollout}."
        fitting = next(size for size in range(plan.recurrence, 0, -1) if plan.rollout % size == 0)
        yield Problem(("recurrence", "rollout"), text, (f"--recurrence={fitting}", "--recurrence=auto"))


def _precision(config: TrainConfig) -> Iterator[Problem]:
    if config.use_rnn and config.precision == "bf16":
        text = "--precision=bf16 cannot be used with --use_rnn=True."
        yield Problem(("precision", "use_rnn"), text, ("--precision=auto",))


def _processes(plan: ResourcePlan) -> Iterator[Problem]:
    count = plan.num_workers + plan.num_inference_workers
    if count > MOST_PROCESSES and not plan.serial_mode:
        text = (
            f"num_workers + num_inference_workers = {plan.num_workers} + {plan.num_inference_workers} = {count}: "
            f"at most {MOST_PROCESSES} worker processes (limit on file descriptors)."
        )
        yield Problem(("num_workers",), text, (f"--num_workers={MOST_PROCESSES - plan.num_inference_workers}",))


def _devices(config: TrainConfig, machine: Machine) -> Iterator[Problem]:
    yield from _device("device", config.device, machine)
    yield from _device("learner_device", config.learner_device, machine)
    for device in config.inference_devices:
        yield from _device("inference_devices", device, machine)


def _device(name: str, device: str, machine: Machine) -> Iterator[Problem]:
    """A device that there is; a list of them has no auto."""
    known = ("cpu",) if name == "inference_devices" else ("auto", "cpu")
    if device in known:
        return
    match = re.fullmatch(r"cuda(?::(\d+))?", device)
    if match is None:
        expected = f"one of {', '.join(known)}, cuda, cuda:N"
        text = f"--{name}={device} is not possible: expected {expected}{_meant(name, device)}."
        yield Problem((name,), text, (f"--{name}={known[0]}",))
    elif not machine.torch_has_cuda:
        text = f"--{name}={device}: the installed torch was built without CUDA."
        yield Problem((name,), text, tuple(f"--{name}={each}" for each in reversed(known)))
    elif int(match.group(1) or 0) >= machine.num_cuda_devices:
        text = f"--{name}={device}: the CUDA driver finds {machine.num_cuda_devices} devices."
        yield Problem((name,), text, (f"--{name}=cuda",) if machine.num_cuda_devices else (f"--{name}=cpu",))


def _meant(name: str, value: str) -> str:
    meant = OTHER_VALUES.get((name, value.lower()))
    return "" if meant is None else f"; {meant}"


def _compile(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    if config.compile == "cuda_graph" and not plan.device.startswith("cuda"):
        text = f"--compile=cuda_graph needs a CUDA device, but updates run on --device={plan.device}."
        yield Problem(("compile", "device"), text, ("--compile=auto",))


def _saving(config: TrainConfig) -> Iterator[Problem]:
    if config.checkpoint_resets and not config.serial_mode:
        text = "--checkpoint_resets=True makes a run repeatable to the bit, which needs --serial_mode=True."
        yield Problem(("checkpoint_resets", "serial_mode"), text, ("--serial_mode=True", "--checkpoint_resets=False"))
    if config.checkpoint_resets and config.save_every_env_steps is None:
        text = (
            "--checkpoint_resets=True needs checkpoints at fixed steps (--save_every_env_steps); those of "
            "--save_every_s depend on the clock."
        )
        yield Problem(("checkpoint_resets", "save_every_env_steps"), text, ("--save_every_env_steps=100000",))
    if config.checkpoint_resets and config.save_milestones_s is not None:
        text = (
            "--save_milestones_s saves by the clock, but --checkpoint_resets=True needs checkpoints at fixed steps: "
            "keep more of those instead."
        )
        yield Problem(("checkpoint_resets", "save_milestones_s"), text, ("--keep_checkpoints=20",))
    if config.save_best_metric == "eval" and config.eval_every_env_steps is None:
        text = "--save_best_metric=eval needs evaluations during training (--eval_every_env_steps)."
        fitting = ("--eval_every_env_steps=100000", "--save_best_metric=train")
        yield Problem(("save_best_metric", "eval_every_env_steps"), text, fitting)


def _splits(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    splits = config.worker_num_splits
    if splits == "auto" or splits == 1:
        return
    envs = plan.num_envs_per_worker
    if plan.inference_mode == "local":
        mode = "in serial mode" if plan.serial_mode else "with local inference"
        text = f"--worker_num_splits={splits} has no effect {mode}: a worker does not wait for actions."
        fitting = ("--worker_num_splits=1",) + (() if plan.serial_mode else ("--inference_mode=central",))
        yield Problem(("worker_num_splits", "inference_mode"), text, tuple(fitting))
    if envs % splits:
        text = (
            f"--num_envs_per_worker={envs} must be a multiple of --worker_num_splits={splits}: "
            f"{envs} / {splits} = {envs / splits:.4g}."
        )
        fitting = (
            *_as_flags("num_envs_per_worker", envs, splits),
            f"--worker_num_splits={_divisor_near(envs, splits)}",
        )
        yield Problem(("num_envs_per_worker", "worker_num_splits"), text, tuple(fitting))


def _inference(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    if len(plan.inference_devices) > plan.num_inference_workers:
        text = (
            f"--inference_devices names {len(plan.inference_devices)} devices, but "
            f"--num_inference_workers={plan.num_inference_workers}: some devices would be idle."
        )
        yield Problem(("inference_devices", "num_inference_workers"), text, ("--num_inference_workers=auto",))
    if plan.num_inference_workers > plan.num_workers:
        text = (
            f"--num_inference_workers={plan.num_inference_workers} is more than the number of rollout workers, "
            f"{plan.num_workers}: some would be idle."
        )
        yield Problem(("num_inference_workers",), text, (f"--num_inference_workers={plan.num_workers}",))


def _hogwild(config: TrainConfig, hogwild: HogwildPlan, plan: ResourcePlan) -> Iterator[Problem]:
    if not config.algorithm.runs_on_hogwild:
        text = f"--backend=hogwild trains A2C (A3C) and SAC, not {config.algorithm.name.upper()}."
        yield Problem(("backend", "algo"), text, ("--algo=a2c", "--algo=sac", "--backend=actor_learner"))
    if config.is_off_policy and hogwild.mode != "shared":
        text = f"--hogwild_mode={hogwild.mode} is for A2C; SAC has the shared mode only."
        yield Problem(("hogwild_mode", "algo"), text, ("--hogwild_mode=shared",))
    if config.inference_mode == "central":
        text = "--inference_mode=central cannot be used with --backend=hogwild: its workers compute actions themselves."
        yield Problem(("inference_mode", "backend"), text, ("--inference_mode=local",))
    if config.lr_schedule.startswith("kl_adaptive"):
        text = f"--lr_schedule={config.lr_schedule} cannot be used with --backend=hogwild."
        yield Problem(("lr_schedule", "backend"), text, ("--lr_schedule=constant", "--lr_schedule=linear_decay"))
    samples = plan.num_envs_per_worker * plan.rollout
    if not config.is_off_policy and config.normalize_advantage and samples < 2:
        text = "--normalize_advantage=True needs two samples in an update; one environment with --rollout=1 gives one."
        yield Problem(("rollout", "num_envs_per_worker", "normalize_advantage"), text, ("--rollout=2",))
    # One worker may stand still without holding up the others.
    most = PLACES_OF_A_WORKER * max(1, plan.num_workers - 1)
    if hogwild.mode == "gradients" and hogwild.num_gradients_to_combine > most:
        text = (
            f"--num_gradients_to_combine={hogwild.num_gradients_to_combine} is too large: each of {plan.num_workers} "
            f"workers has at most {PLACES_OF_A_WORKER} gradients under way, and one may hang, which leaves {most}."
        )
        yield Problem(("num_gradients_to_combine", "num_workers"), text, (f"--num_gradients_to_combine={most}",))
    for name in ("save_replay", "checkpoint_resets", "debug_forced_lag", "debug_skip_training", "with_vtrace"):
        if getattr(config, name):
            text = f"--{name} is not available with --backend=hogwild."
            yield Problem((name, "backend"), text, (f"--{name}={TrainConfig.model_fields[name].default}",))


def _trajectories(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    if plan.hogwild is not None:
        return
    takes_parts = plan.async_rl and not plan.fixed_lag
    yield from _async_samples(plan) if takes_parts else _sync_samples(config, plan)
    yield from _lag(plan)


def _replay(config: TrainConfig, replay: ReplayPlan, plan: ResourcePlan) -> Iterator[Problem]:
    """A replay that can be learned from."""
    rows = plan.num_envs * (config.n_step + 1)
    if replay.warmup_env_steps < rows:
        text = (
            f"--warmup_env_steps={replay.warmup_env_steps} is too short: {plan.num_envs} environments need "
            f"{config.n_step + 1} steps each for a first transition with --n_step={config.n_step}, {rows} in all."
        )
        yield Problem(("warmup_env_steps", "n_step"), text, (f"--warmup_env_steps={rows}",))
    if replay.size < replay.warmup_env_steps:
        text = f"--replay_size={replay.size} is smaller than --warmup_env_steps={replay.warmup_env_steps}."
        yield Problem(("replay_size", "warmup_env_steps"), text, (f"--replay_size={replay.warmup_env_steps}",))
    if config.lr_schedule.startswith("kl_adaptive"):
        text = f"--lr_schedule={config.lr_schedule} needs on-policy data; --algo={config.algo} has none."
        yield Problem(("lr_schedule", "algo"), text, ("--lr_schedule=constant", "--lr_schedule=linear_decay"))
    if config.checkpoint_resets and not config.save_replay:
        text = "--checkpoint_resets=True needs the replay in each checkpoint (--save_replay=True)."
        yield Problem(("checkpoint_resets", "save_replay"), text, ("--save_replay=True",))
    if config.debug_forced_lag or config.debug_skip_training or config.with_vtrace:
        text = f"--debug_forced_lag, --debug_skip_training and --with_vtrace cannot be used with --algo={config.algo}."
        yield Problem(("debug_forced_lag", "debug_skip_training", "with_vtrace", "algo"), text)


def _sync_samples(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    """An iteration trains exactly what all splits bring in whole slots, but in async without a fixed lag."""
    unit = plan.num_envs * plan.rollout
    if plan.dataset_size % unit == 0:
        return
    mode = "--fixed_lag=True" if plan.fixed_lag else "Synchronous training"
    text = (
        f"{mode} needs batch_size x num_batches_per_epoch to be a multiple of "
        f"num_workers x num_envs_per_worker x rollout: {plan.batch_size} x {plan.num_batches_per_epoch} = "
        f"{plan.dataset_size} is not a multiple of {plan.num_workers} x {plan.num_envs_per_worker} x {plan.rollout} = "
        f"{unit} ({plan.dataset_size} / {unit} = {plan.dataset_size / unit:.4g})."
    )
    # What was left to the plan adapts to the new value, so only what was given stays in the way.
    step = plan.rollout
    step *= 1 if config.num_workers == "auto" else plan.num_workers
    step *= 1 if config.num_envs_per_worker == "auto" else plan.num_envs_per_worker
    fitting = (
        *_as_flags("batch_size", plan.batch_size, step // math.gcd(step, plan.num_batches_per_epoch)),
        *_as_flags("num_batches_per_epoch", plan.num_batches_per_epoch, step // math.gcd(step, plan.batch_size)),
    )
    names = ("batch_size", "num_batches_per_epoch", "num_workers", "num_envs_per_worker", "rollout")
    yield Problem(names, text, tuple(fitting))


def _async_samples(plan: ResourcePlan) -> Iterator[Problem]:
    """A dataset takes whole trajectories."""
    if plan.batch_size % plan.rollout == 0:
        return
    text = (
        f"Asynchronous training needs batch_size to be a multiple of rollout: {plan.batch_size} / {plan.rollout} = "
        f"{plan.batch_size / plan.rollout:.4g}."
    )
    fitting = (
        *_as_flags("batch_size", plan.batch_size, plan.rollout),
        f"--rollout={_divisor_near(plan.batch_size, plan.rollout)}",
    )
    yield Problem(("batch_size", "rollout"), text, tuple(fitting))


def _lag(plan: ResourcePlan) -> Iterator[Problem]:
    if plan.fixed_lag and plan.debug_forced_lag:
        text = f"--fixed_lag=True is a lag of one dataset, and --debug_forced_lag={plan.debug_forced_lag} another one."
        yield Problem(("fixed_lag", "debug_forced_lag"), text, ("--fixed_lag=False", "--debug_forced_lag=0"))
    elif plan.fixed_lag and plan.max_policy_lag < plan.steady_lag_bound:
        text = (
            f"--fixed_lag=True makes samples {plan.steady_lag_bound} optimizer steps old, but "
            f"--max_policy_lag={plan.max_policy_lag} drops samples of that age: nothing would be trained."
        )
        yield Problem(("fixed_lag", "max_policy_lag"), text, (f"--max_policy_lag={plan.steady_lag_bound}",))
    if plan.forced_lag > plan.max_policy_lag:
        text = (
            f"--debug_forced_lag={plan.debug_forced_lag} makes every sample {plan.forced_lag} optimizer steps old "
            f"(weights are published every {plan.num_batches_per_epoch}), but --max_policy_lag={plan.max_policy_lag} "
            "drops samples of that age: nothing would be trained."
        )
        yield Problem(("debug_forced_lag", "max_policy_lag"), text, (f"--max_policy_lag={plan.steady_lag_bound}",))


def _learning(config: TrainConfig) -> Iterator[Problem]:
    low, high, rate = config.lr_adaptive_min, config.lr_adaptive_max, config.learning_rate
    if low > high:
        text = f"--lr_adaptive_min={low:g} is greater than --lr_adaptive_max={high:g}."
        yield Problem(("lr_adaptive_min", "lr_adaptive_max"), text, (f"--lr_adaptive_min={high:g}",))
    elif config.lr_schedule.startswith("kl_adaptive") and rate > 0 and not low <= rate <= high:
        text = (
            f"--learning_rate={rate:g} is outside the adaptive schedule's range, "
            f"--lr_adaptive_min={low:g} to --lr_adaptive_max={high:g}."
        )
        fitting = (f"--learning_rate={min(max(rate, low), high):g}",)
        yield Problem(("learning_rate", "lr_adaptive_min", "lr_adaptive_max"), text, tuple(fitting))
    takes_batches = not config.is_off_policy and config.backend != "hogwild"
    is_over_batches = config.normalize_advantage and config.normalize_advantage_over == "minibatch"
    if is_over_batches and config.batch_size < 2 and takes_batches:
        text = "--normalize_advantage=True needs at least two samples in a minibatch, but --batch_size=1."
        yield Problem(("batch_size", "normalize_advantage"), text, ("--normalize_advantage=False",))


def _warn_unread(config: TrainConfig, plan: ResourcePlan, given: Iterable[str]) -> Iterator[Problem]:
    unread: dict[str, list[str]] = {}
    for name in given:
        missing = missing_for(name, config, plan.inference_mode)
        if missing is not None and getattr(config, name) != TrainConfig.model_fields[name].default:
            unread.setdefault(missing, []).append(name)
    if unread:
        listed = "; ".join(f"--{', --'.join(names)} (needs {missing})" for missing, names in unread.items())
        names = tuple(name for names in unread.values() for name in names)
        counterparts = tuple(f"--{_COUNTERPARTS[name]}" for name in names if name in _COUNTERPARTS)
        yield Problem(names, f"No effect in this run: {listed}.", counterparts)


def _warn_serial(plan: ResourcePlan) -> Iterator[Problem]:
    if plan.serial_mode and plan.async_rl and plan.hogwild is None and not plan.fixed_lag:
        text = "--async_rl=True has no effect in serial mode, which collects and trains in turn."
        yield Problem(("async_rl", "serial_mode"), text, ("--async_rl=False",))


def _warn_resources(plan: ResourcePlan) -> Iterator[Problem]:
    collecting = plan.num_workers + plan.num_inference_workers
    if not plan.serial_mode and plan.num_workers > plan.cores:
        text = f"{collecting} rollout and inference workers share {plan.cores} cores."
        yield Problem(("num_workers",), text, (f"--num_workers={plan.cores}",))
    if plan.learner_threads > plan.cores:
        text = f"--learner_threads={plan.learner_threads} is more than the {plan.cores} cores."
        yield Problem(("learner_threads",), text, (f"--learner_threads={plan.cores}",))


def _warn_learning(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    if plan.replay is not None:
        yield from _warn_replay(plan, plan.replay)
    elif (
        plan.hogwild is None
        and plan.async_rl
        and not (plan.serial_mode or plan.fixed_lag)
        and plan.max_policy_lag < plan.steady_lag_bound
    ):
        text = (
            f"--max_policy_lag={plan.max_policy_lag} drops many samples: they are normally up to "
            f"{plan.steady_lag_bound} optimizer steps old."
        )
        yield Problem(("max_policy_lag",), text, (f"--max_policy_lag={plan.steady_lag_bound}",))
    if plan.replay is None and plan.hogwild is None and plan.dataset_size > plan.train_for_env_steps:
        text = (
            f"--train_for_env_steps={plan.train_for_env_steps} is less than one dataset, {plan.batch_size} x "
            f"{plan.num_batches_per_epoch} = {plan.dataset_size} samples: the run ends after the first."
        )
        yield Problem(("train_for_env_steps", "batch_size", "num_batches_per_epoch"), text)
    algorithm = config.algorithm
    is_on_policy = algorithm.collects == "trajectories" and not algorithm.uses_ratio
    if is_on_policy and config.num_epochs > 1 and plan.hogwild is None:
        text = f"{algorithm.name.upper()} should use each sample once: set --num_epochs=1."
        yield Problem(("num_epochs", "algo"), text)
    if not config.is_off_policy and plan.hogwild is None and config.num_epochs == 1:
        for name in ("target_kl", "recompute_advantages"):
            if getattr(config, name) not in (None, TrainConfig.model_fields[name].default):
                text = f"--{name} has no effect with --num_epochs=1: there is one pass over each dataset."
                yield Problem((name, "num_epochs"), text, ("--num_epochs=2",))
    if config.learning_rate == 0:
        yield Problem(("learning_rate",), "--learning_rate=0: the policy will not change.")


def _warn_replay(plan: ResourcePlan, replay: ReplayPlan) -> Iterator[Problem]:
    if replay.warmup_env_steps >= plan.train_for_env_steps:
        text = (
            f"--train_for_env_steps={plan.train_for_env_steps} is within the warm-up "
            f"(--warmup_env_steps={replay.warmup_env_steps}): nothing will be trained."
        )
        yield Problem(("train_for_env_steps", "warmup_env_steps"), text)


def _as_flags(name: str, value: int, step: int) -> list[str]:
    """The multiples of `step` next to `value`, above 0, as flags."""
    below = value // step * step
    return [f"--{name}={multiple}" for multiple in (below, below + step) if multiple > 0]


def _divisor_near(number: int, wanted: int) -> int:
    """The divisor of `number` that is nearest to `wanted`, the smaller of two."""
    return min((count for count in range(1, number + 1) if number % count == 0), key=lambda count: abs(count - wanted))
