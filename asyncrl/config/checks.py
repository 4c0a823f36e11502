"""Rules about settings that cannot be combined. Every rule is checked, so all problems are found at once."""

from __future__ import annotations

import dataclasses
import math
import platform
import re
from collections.abc import Iterable, Iterator

from asyncrl.config.dependencies import missing_for
from asyncrl.config.env_maker import EnvMaker
from asyncrl.config.errors import Problem, UsageError
from asyncrl.config.flags import format_value, refused_value, unknown_name
from asyncrl.config.machine import Machine
from asyncrl.config.plan import (
    PLACES_OF_A_WORKER,
    HogwildPlan,
    ReplayPlan,
    ResourcePlan,
    most_gradients_to_combine,
)
from asyncrl.config.schema import NEEDED_BY_TENSORS, TrainConfig
from asyncrl.config.settings import all_settings

MOST_PROCESSES = 240

_COUNTERPARTS = {"ent_coef": "entropy_loss_coeff", "entropy_loss_coeff": "ent_coef"}
"""Settings with the same purpose for different algorithms."""


def find_problems(config: TrainConfig, plan: ResourcePlan, machine: Machine | None = None) -> list[Problem]:
    """Every reason why the run cannot start that settings and machine show.

    Args:
        config: the settings.
        plan: the resources resolved from them.
        machine: the machine that the plan is for; by default the one that this process runs on.
    """
    machine = machine or Machine.detect()
    return [
        *_environment(config, plan),
        *_device("device", config.device, machine),
        *_device("learner_device", config.learner_device, machine),
        *(problem for device in config.inference_devices for problem in _device("inference_devices", device, machine)),
        *_workers(config, plan),
        *_processor(plan, machine),
        *(_hogwild(config, plan.hogwild, plan) if plan.hogwild is not None else ()),
        *(_replay(config, plan.replay, plan) if plan.replay is not None else _trajectories(config, plan)),
        *_learning(config, plan),
        *(_critic_only_keys(config) if config.critic_only_keys else ()),
        *(_state_dependent_exploration(config, plan) if config.use_sde else ()),
        *_saving(config),
        *(_ranks(config, plan) if plan.num_ranks > 1 else ()),
        *_policies(config, plan),
        *(_self_play(config, plan) if config.self_play else ()),
        *(_population(config, plan) if config.with_pbt else ()),
        *(_cluster(config, plan) if plan.num_remote_hosts > 0 else ()),
    ]


def find_warnings(config: TrainConfig, plan: ResourcePlan, given: Iterable[str]) -> list[Problem]:
    """Settings that are possible but probably a mistake.

    Args:
        config: the settings.
        plan: the resources resolved from them.
        given: settings that the user gave; only these are reported if they have no effect.
    """
    return [*_warn_unread(config, plan, given), *_warn_resources(plan), *_warn_learning(config, plan)]


def _problem(settings: str, text: str, *suggestions: str) -> Problem:
    return Problem(tuple(settings.split()), text, suggestions)


def _environment(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    if not config.env:
        text = "No environment was given"
        if config.experiment is not None and config.restart_behavior == "resume":
            text += f", and there is no run {config.experiment!r} in {config.train_dir} to resume"
        yield _problem("env", f"{text}.", "--env=CartPole-v1", "--env=Humanoid-v5")
    if plan.steps_tensors:
        wrong = {
            name: value for name, value in NEEDED_BY_TENSORS.items() if getattr(config, name) not in (value, "auto")
        }
        if wrong:
            text = "--env_backend=tensor steps environments and trains in turn, in one process on one device."
            flags = " ".join(f"--{name}={value}" for name, value in wrong.items())
            yield Problem((*wrong, "env_backend"), text, (flags, "without these flags"))
        if plan.replay is not None and plan.replay.is_prioritized:
            text = "--prioritized_replay=True needs a replay in shared memory; one on the device has no priorities."
            yield _problem("prioritized_replay env_backend", text, "--prioritized_replay=False")


def _device(name: str, device: str, machine: Machine) -> Iterator[Problem]:
    known = ("cpu",) if name == "inference_devices" else ("auto", "cpu")
    if device in known:
        return
    match = re.fullmatch(r"cuda(?::(\d+))?", device)
    if match is None:
        problem = refused_value(name, device, f"one of {', '.join(known)}, cuda, cuda:N")
        yield dataclasses.replace(problem, suggestions=(f"--{name}={known[0]}",))
    elif not machine.torch_has_cuda:
        text = f"--{name}={device}: the installed torch was built without CUDA."
        yield _problem(name, text, *(f"--{name}={each}" for each in reversed(known)))
    elif int(match.group(1) or 0) >= machine.num_cuda_devices:
        text = f"--{name}={device}: the CUDA driver finds {machine.num_cuda_devices} devices."
        yield _problem(name, text, f"--{name}=cuda" if machine.num_cuda_devices else f"--{name}=cpu")


def _processor(plan: ResourcePlan, machine: Machine) -> Iterator[Problem]:
    if not plan.serial_mode and not machine.keeps_store_order:
        text = (
            f"Processes that share memory rely on the order of stores and loads that x86-64 keeps, and this processor "
            f"is {platform.machine()}: here a run has one process."
        )
        yield _problem("serial_mode", text, "--serial_mode=True")


def _workers(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    parts = {"num_workers": plan.num_local_workers, "num_inference_workers": plan.num_inference_workers}
    if plan.num_remote_hosts > 0:
        parts["num_remote_hosts"] = plan.num_remote_hosts  # each pool has a process here
    count = sum(parts.values())
    if count > MOST_PROCESSES and not plan.serial_mode:
        text = (
            f"{' + '.join(parts)} = {' + '.join(map(str, parts.values()))} = {count}: at most {MOST_PROCESSES} worker "
            "processes (limit on file descriptors)."
        )
        largest = max(parts, key=lambda name: parts[name])
        yield _problem(" ".join(parts), text, f"--{largest}={max(1, MOST_PROCESSES - count + parts[largest])}")
    splits, envs = config.worker_num_splits, plan.num_envs_per_worker
    if splits not in ("auto", 1) and plan.inference_mode == "local":
        mode = "in serial mode" if plan.serial_mode else "with local inference"
        text = f"--worker_num_splits={splits} has no effect {mode}: a worker does not wait for actions."
        central = () if plan.serial_mode else ("--inference_mode=central",)
        yield _problem("worker_num_splits inference_mode", text, "--worker_num_splits=1", *central)
    if splits != "auto" and envs % splits:
        text = (
            f"--num_envs_per_worker={envs} must be a multiple of --worker_num_splits={splits}: "
            f"{envs} / {splits} = {envs / splits:.4g}."
        )
        fitting = (
            *_as_flags("num_envs_per_worker", envs, splits),
            f"--worker_num_splits={_divisor_near(envs, splits)}",
        )
        yield _problem("num_envs_per_worker worker_num_splits", text, *fitting)
    if len(plan.inference_devices) > plan.num_inference_workers:
        text = (
            f"--inference_devices names {len(plan.inference_devices)} devices, but "
            f"--num_inference_workers={plan.num_inference_workers}: some devices would be idle."
        )
        yield _problem("inference_devices num_inference_workers", text, "--num_inference_workers=auto")
    if plan.num_inference_workers > plan.num_workers:
        text = (
            f"--num_inference_workers={plan.num_inference_workers} is more than the number of rollout workers, "
            f"{plan.num_workers}: some would be idle."
        )
        yield _problem("num_inference_workers", text, f"--num_inference_workers={plan.num_workers}")


def _hogwild(config: TrainConfig, hogwild: HogwildPlan, plan: ResourcePlan) -> Iterator[Problem]:
    if not config.algorithm.runs_on_hogwild:
        text = f"--backend=hogwild trains PPO, A2C (A3C) and SAC, not {config.algorithm.name.upper()}."
        yield _problem("backend algo", text, "--algo=a2c", "--algo=sac", "--backend=actor_learner")
    if config.inference_mode == "central":
        text = "--inference_mode=central cannot be used with --backend=hogwild: its workers compute actions themselves."
        yield _problem("inference_mode backend", text, "--inference_mode=local")
    if config.lr_schedule.startswith("kl_adaptive"):
        text = f"--lr_schedule={config.lr_schedule} cannot be used with --backend=hogwild."
        yield _problem("lr_schedule backend", text, "--lr_schedule=constant", "--lr_schedule=linear_decay")
    samples = plan.num_envs_per_worker * plan.rollout
    if not config.is_off_policy and config.normalize_advantage and samples < 2:
        text = "--normalize_advantage=True needs two samples in an update; one environment with --rollout=1 gives one."
        yield _problem("rollout num_envs_per_worker normalize_advantage", text, "--rollout=2")
    of_a_pool = plan.num_workers_per_remote_host
    most = most_gradients_to_combine(plan.num_workers, of_a_pool)
    if hogwild.mode == "gradients" and hogwild.num_gradients_to_combine > most:
        gone = "a pool may be gone" if 1 < of_a_pool < plan.num_workers else "one may hang"
        text = (
            f"--num_gradients_to_combine={hogwild.num_gradients_to_combine} is too large: each of {plan.num_workers} "
            f"workers has at most {PLACES_OF_A_WORKER} gradients under way, and {gone}, which leaves {most}."
        )
        yield _problem("num_gradients_to_combine num_workers", text, f"--num_gradients_to_combine={most}")
    if config.save_replay:
        text = "--save_replay is not available with --backend=hogwild: each worker's replay is in its private memory."
        yield _problem("save_replay backend", text, "--save_replay=False")
    for name in ("checkpoint_resets", "debug_forced_lag", "debug_skip_training", "with_vtrace"):
        if getattr(config, name):
            text = f"--{name} is not available with --backend=hogwild."
            yield Problem((name, "backend"), text, (f"--{name}={TrainConfig.model_fields[name].default}",))


def _trajectories(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    if plan.hogwild is not None:
        return
    if not plan.async_rl or plan.fixed_lag:
        if not plan.has_slot_pools:  # an iteration of several policies is a number of whole slots anyway
            yield from _whole_rounds(config, plan)
    elif plan.batch_size % plan.rollout:
        text = (
            f"Asynchronous training needs batch_size to be a multiple of rollout: {plan.batch_size} / {plan.rollout} = "
            f"{plan.batch_size / plan.rollout:.4g}."
        )
        near = f"--rollout={_divisor_near(plan.batch_size, plan.rollout)}"
        yield _problem("batch_size rollout", text, *_as_flags("batch_size", plan.batch_size, plan.rollout), near)
    yield from _lag(plan)


def _replay(config: TrainConfig, replay: ReplayPlan, plan: ResourcePlan) -> Iterator[Problem]:
    if replay.size < replay.warmup_env_steps:
        text = f"--replay_size={replay.size} is smaller than the warm-up of {replay.warmup_env_steps} steps."
        yield _problem("replay_size warmup_env_steps", text, f"--replay_size={replay.warmup_env_steps}")
    if config.lr_schedule.startswith("kl_adaptive"):
        text = f"--lr_schedule={config.lr_schedule} needs on-policy data; --algo={config.algo} has none."
        yield _problem("lr_schedule algo", text, "--lr_schedule=constant", "--lr_schedule=linear_decay")
    if config.checkpoint_resets and not config.save_replay:
        text = "--checkpoint_resets=True needs the replay in each checkpoint (--save_replay=True)."
        yield _problem("checkpoint_resets save_replay", text, "--save_replay=True")
    if config.her_goals > 0:
        yield from _goals(config, replay)
    if config.use_rnn:
        yield from _recurrent_replay(config, plan)
    yield from _blocks(config)
    if config.debug_forced_lag or config.debug_skip_training or config.with_vtrace:
        text = f"--debug_forced_lag, --debug_skip_training and --with_vtrace cannot be used with --algo={config.algo}."
        yield _problem("debug_forced_lag debug_skip_training with_vtrace algo", text)


def _goals(config: TrainConfig, replay: ReplayPlan) -> Iterator[Problem]:
    """What hindsight experience replay cannot be combined with."""
    given, off = f"--her_goals={config.her_goals}", "--her_goals=0"
    if config.n_step > 1:
        text = f"{given} stores other goals for single steps, but a target of --n_step={config.n_step} has several."
        yield _problem("her_goals n_step", text, "--n_step=1", off)
    if replay.is_prioritized:
        text = f"{given} cannot be used with --prioritized_replay=True: priorities are of steps, not of their goals."
        yield _problem("her_goals prioritized_replay", text, "--prioritized_replay=False", off)
    if config.normalize_rewards:
        text = f"{given} cannot be used with --normalize_rewards=True, whose statistics lack rewards of other goals."
        yield _problem("her_goals normalize_rewards", text, "--normalize_rewards=False", off)
    if config.backend == "hogwild":
        yield _problem("her_goals backend", f"{given} cannot be used with --backend=hogwild.", off)


def _recurrent_replay(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    """What sequences from a replay cannot be combined with."""
    given, off = "--use_rnn=True", "--use_rnn=False"
    if config.algorithm.make_recurrent_learner is None:
        text = f"{given} needs trajectories, SAC or TD3, but --algo={config.algo} trains on single steps from a replay."
        yield _problem("use_rnn algo", text, off, "--algo=ppo", "--algo=sac")
    if config.batch_size % plan.recurrence:
        text = f"--recurrence={plan.recurrence} must divide --batch_size={config.batch_size}."
        fitting = _as_flags("batch_size", config.batch_size, plan.recurrence)
        yield _problem("recurrence batch_size", text, *fitting)
    fields = TrainConfig.model_fields
    for name in ("n_step", "her_goals", "use_sde", "backend", "env_backend", *_BLOCKS):
        value, default = getattr(config, name), fields[name].default
        if value != default and (name != "env_backend" or plan.steps_tensors):
            text = f"{given} with --algo={config.algo} cannot be used with --{name}={value}."
            yield _problem(f"use_rnn {name}", text, f"--{name}={format_value(default)}", off)


_NETWORKS = ("residual_blocks", "hyperspherical_weights", "batch_renorm")
_BLOCKS = (*_NETWORKS, "value_bins", "use_target_critics", "num_critics")
_OF_ANY_REPLAY = ("normalize_rewards", "weight_decay")


def _without(config: TrainConfig, names: Iterable[str]) -> str:
    """The flags that together give these settings of SAC's critics their defaults."""
    of_set = config.algorithm.critics.get(config.critic, {})
    flags = ["--critic=mlp"] if config.critic != "mlp" else []
    for name in names:
        value, default = getattr(config, name), TrainConfig.model_fields[name].default
        if value != default and value != of_set.get(name, default):
            flags.append(f"--{name}={format_value(default)}")
    return " ".join(flags)


def _blocks(config: TrainConfig) -> Iterator[Problem]:
    """SAC's networks of blocks, and what belongs to them."""
    fields = TrainConfig.model_fields
    used = [name for name in _BLOCKS if getattr(config, name) != fields[name].default]
    if used and config.algorithm.has_other_learner_than_sac:
        yield Problem((*used, "algo"), f"--{', --'.join(used)}: only SAC has these.", ("--algo=sac",))
    used += [name for name in _OF_ANY_REPLAY if getattr(config, name) != fields[name].default]
    if used and config.backend == "hogwild":
        text = f"--{', --'.join(used)}: Hogwild workers train plain perceptrons without these."
        yield Problem((*used, "backend"), text, ("--backend=actor_learner", _without(config, used)))
    if config.hyperspherical_weights and config.batch_renorm:
        text = (
            "--hyperspherical_weights and --batch_renorm both normalize the features of each layer: give one of them."
        )
        yield _problem("hyperspherical_weights batch_renorm", text, "--batch_renorm=False")
    if config.batch_renorm and config.batch_size < 2:
        text = f"--batch_renorm=True needs at least two samples in a minibatch, but --batch_size={config.batch_size}."
        yield _problem("batch_size batch_renorm", text, "--batch_size=256")
    for name in ("encoder_mlp_layers", "critic_mlp_layers"):
        widths = getattr(config, name) or []
        if config.residual_blocks and len(set(widths)) > 1:
            text = f"--{name}={','.join(map(str, widths))}: residual blocks have one width (--residual_blocks=True)."
            yield _problem(f"{name} residual_blocks", text, f"--{name}={','.join([str(widths[0])] * len(widths))}")


def _whole_rounds(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    """Sync and fixed lag: a dataset is a whole number of rollouts of all environments."""
    unit = plan.num_envs * plan.num_agents * plan.rollout
    if plan.dataset_size % unit == 0:
        return
    mode = "--fixed_lag=True" if plan.fixed_lag else "Synchronous training"
    agents, count = (" x agents", f" x {plan.num_agents}") if plan.num_agents > 1 else ("", "")
    text = (
        f"{mode} needs batch_size x num_batches_per_epoch to be a multiple of "
        f"num_workers x num_envs_per_worker{agents} x rollout: {plan.batch_size} x {plan.num_batches_per_epoch} = "
        f"{plan.dataset_size} is not a multiple of {plan.num_workers} x {plan.num_envs_per_worker}{count} x "
        f"{plan.rollout} = {unit} ({plan.dataset_size} / {unit} = {plan.dataset_size / unit:.4g})."
    )
    # Values that are auto adapt to the suggestion; it must fit the given ones.
    step = plan.rollout * plan.num_agents
    step *= 1 if config.num_workers == "auto" else plan.num_workers
    step *= 1 if config.num_envs_per_worker == "auto" else plan.num_envs_per_worker
    yield _problem(
        "batch_size num_batches_per_epoch num_workers num_envs_per_worker rollout",
        text,
        *_as_flags("batch_size", plan.batch_size, step // math.gcd(step, plan.num_batches_per_epoch)),
        *_as_flags("num_batches_per_epoch", plan.num_batches_per_epoch, step // math.gcd(step, plan.batch_size)),
    )


def _lag(plan: ResourcePlan) -> Iterator[Problem]:
    if plan.fixed_lag and plan.debug_forced_lag:
        text = f"--fixed_lag=True is a lag of one dataset, and --debug_forced_lag={plan.debug_forced_lag} another one."
        yield _problem("fixed_lag debug_forced_lag", text, "--fixed_lag=False", "--debug_forced_lag=0")
    elif plan.fixed_lag and plan.max_policy_lag < plan.steady_lag_bound:
        text = (
            f"--fixed_lag=True makes samples {plan.steady_lag_bound} optimizer steps old, but "
            f"--max_policy_lag={plan.max_policy_lag} drops samples of that age: nothing would be trained."
        )
        yield _problem("fixed_lag max_policy_lag", text, f"--max_policy_lag={plan.steady_lag_bound}")
    if plan.forced_lag > plan.max_policy_lag:
        text = (
            f"--debug_forced_lag={plan.debug_forced_lag} makes every sample {plan.forced_lag} optimizer steps old "
            f"(weights are published every {plan.num_batches_per_epoch}), but --max_policy_lag={plan.max_policy_lag} "
            "drops samples of that age: nothing would be trained."
        )
        yield _problem("debug_forced_lag max_policy_lag", text, f"--max_policy_lag={plan.steady_lag_bound}")


def _learning(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    if config.compile == "cuda_graph" and not plan.device.startswith("cuda"):
        text = f"--compile=cuda_graph needs a CUDA device, but updates run on --device={plan.device}."
        yield _problem("compile device", text, "--compile=auto")
    scheduled = [
        name for name in ("final_ppo_clip_ratio", "final_entropy_loss_coeff") if getattr(config, name) is not None
    ]
    if config.compile == "cuda_graph" and scheduled:
        text = f"--{scheduled[0]} changes the loss during the run, but --compile=cuda_graph captures it once."
        yield _problem(f"compile {scheduled[0]}", text, "--compile=auto", f"--{scheduled[0]}=none")
    if config.use_rnn and not config.is_off_policy and plan.rollout % plan.recurrence:
        text = f"--recurrence={plan.recurrence} must divide --rollout={plan.rollout}."
        fitting = next(size for size in range(plan.recurrence, 0, -1) if plan.rollout % size == 0)
        yield _problem("recurrence rollout", text, f"--recurrence={fitting}", "--recurrence=auto")
    low, high, rate = config.lr_adaptive_min, config.lr_adaptive_max, config.learning_rate
    if low > high:
        text = f"--lr_adaptive_min={low:g} is greater than --lr_adaptive_max={high:g}."
        yield _problem("lr_adaptive_min lr_adaptive_max", text, f"--lr_adaptive_min={high:g}")
    elif config.lr_schedule.startswith("kl_adaptive") and rate > 0 and not low <= rate <= high:
        text = (
            f"--learning_rate={rate:g} is outside the adaptive schedule's range, "
            f"--lr_adaptive_min={low:g} to --lr_adaptive_max={high:g}."
        )
        nearest = f"--learning_rate={min(max(rate, low), high):g}"
        yield _problem("learning_rate lr_adaptive_min lr_adaptive_max", text, nearest)
    if config.final_stddev is not None and config.final_stddev > config.initial_stddev:
        text = f"--final_stddev={config.final_stddev:g} is greater than --initial_stddev={config.initial_stddev:g}."
        yield _problem("final_stddev initial_stddev", text, f"--initial_stddev={config.final_stddev:g}")
    takes_batches = not config.is_off_policy and (config.backend != "hogwild" or config.algorithm.uses_ratio)
    is_over_batches = config.normalize_advantage and config.normalize_advantage_over == "minibatch"
    if is_over_batches and config.batch_size < 2 and takes_batches:
        text = "--normalize_advantage=True needs at least two samples in a minibatch, but --batch_size=1."
        yield _problem("batch_size normalize_advantage", text, "--normalize_advantage=False")


def _critic_only_keys(config: TrainConfig) -> Iterator[Problem]:
    if config.actor_critic_share_weights and not config.is_off_policy:
        text = "--critic_only_keys needs separate networks, because one network for actor and critic sees everything."
        yield _problem("critic_only_keys actor_critic_share_weights", text, "--actor_critic_share_weights=False")
    if config.is_off_policy and config.algorithm.actions == "choice":
        text = f"--critic_only_keys needs an actor and a critic; --algo={config.algo} has one network, which acts."
        yield _problem("critic_only_keys algo", text, "--algo=sac", "--algo=ppo")
    if config.is_off_policy and config.has_blocks:
        text = "--critic_only_keys needs SAC's perceptrons, and there are networks of blocks."
        yield _problem("critic_only_keys critic", text, _without(config, _NETWORKS))


def _state_dependent_exploration(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    given, off = "--use_sde=True", "--use_sde=False"
    others = {
        "algo": (config.algorithm.make_model is not None, f"--algo={config.algo}", "--algo=sac"),
        "model": (config.model != "default", f"--model={config.model}", "--model=default"),
        "critic": (config.is_off_policy and config.has_blocks, "networks of blocks", _without(config, _NETWORKS)),
        "adaptive_stddev": (config.adaptive_stddev, "--adaptive_stddev=True", "--adaptive_stddev=False"),
        "exploration_noise": (
            config.exploration_noise != "white",
            f"--exploration_noise={config.exploration_noise}",
            "--exploration_noise=white",
        ),
        "env_backend": (plan.steps_tensors, "--env_backend=tensor", "--env_backend=gym_vector"),
        "num_policies": (config.num_policies > 1, f"--num_policies={config.num_policies}", "--num_policies=1"),
        "self_play": (config.self_play, "--self_play=True", "--self_play=False"),
    }
    for name, (is_given, value, instead) in others.items():
        if is_given:
            yield _problem(f"use_sde {name}", f"{given} cannot be used with {value}.", off, instead)
    if config.sde_sample_freq == 0:
        text = "--sde_sample_freq=0 is not possible: expected a number of steps, or -1 for noise that lasts an episode."
        yield _problem("sde_sample_freq", text, "--sde_sample_freq=1", "--sde_sample_freq=-1")


def _saving(config: TrainConfig) -> Iterator[Problem]:
    if config.checkpoint_resets and not config.serial_mode:
        text = "--checkpoint_resets=True makes a run repeatable to the bit, which needs --serial_mode=True."
        yield _problem("checkpoint_resets serial_mode", text, "--serial_mode=True", "--checkpoint_resets=False")
    if config.checkpoint_resets and config.save_every_env_steps is None:
        text = (
            "--checkpoint_resets=True needs checkpoints at fixed steps (--save_every_env_steps); those of "
            "--save_every_s depend on the clock."
        )
        yield _problem("checkpoint_resets save_every_env_steps", text, "--save_every_env_steps=100000")
    if config.checkpoint_resets and config.save_milestones_s is not None:
        text = (
            "--save_milestones_s saves by the clock, but --checkpoint_resets=True needs checkpoints at fixed steps: "
            "keep more of those instead."
        )
        yield _problem("checkpoint_resets save_milestones_s", text, "--keep_checkpoints=20")
    if config.save_best_metric == "eval" and config.eval_every_env_steps is None:
        text = "--save_best_metric=eval needs evaluations during training (--eval_every_env_steps)."
        fitting = ("--eval_every_env_steps=100000", "--save_best_metric=train")
        yield _problem("save_best_metric eval_every_env_steps", text, *fitting)


def _ranks(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    if plan.replay is not None and plan.replay.is_prioritized:
        text = f"--prioritized_replay=True has one order of priorities, not those of {plan.num_ranks} ranks."
        yield _problem("prioritized_replay", text, "--prioritized_replay=False", "to start it without torchrun")
    if config.backend == "hogwild":
        text = f"--backend=hogwild runs on one machine as one rank, not as {plan.num_ranks} ranks."
        yield _problem("backend", text, "--backend=actor_learner", "to start it without torchrun")
    if config.serial_mode and not plan.steps_tensors:
        text = f"--serial_mode=True runs in one process, not as {plan.num_ranks} ranks."
        yield _problem("serial_mode", text, "--serial_mode=False", "to start it without torchrun")
    if config.checkpoint_resets:
        text = f"--checkpoint_resets=True recreates one process at each checkpoint, not {plan.num_ranks} ranks."
        yield _problem("checkpoint_resets", text, "--checkpoint_resets=False", "to start it without torchrun")
    if config.max_learner_restarts > 0:
        text = "--max_learner_restarts restarts one learner, but several ranks must be restarted together."
        yield _problem("max_learner_restarts", text, "torchrun --max-restarts")


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


def _warn_resources(plan: ResourcePlan) -> Iterator[Problem]:
    collects_in_turn = plan.hogwild is None and not plan.fixed_lag and plan.num_policies == 1
    if plan.serial_mode and plan.async_rl and collects_in_turn:
        text = "--async_rl=True has no effect in serial mode, which collects and trains in turn."
        yield _problem("async_rl serial_mode", text, "--async_rl=False")
    if not plan.serial_mode and plan.num_local_workers > plan.cores:
        collecting = plan.num_local_workers + plan.num_inference_workers
        text = f"{collecting} rollout and inference workers share {plan.cores} cores."
        yield _problem("num_workers", text, f"--num_workers={plan.cores}")
    if plan.learner_threads > plan.cores:
        text = f"--learner_threads={plan.learner_threads} is more than the {plan.cores} cores."
        yield _problem("learner_threads", text, f"--learner_threads={plan.cores}")


def _warn_learning(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    if plan.replay is not None:
        is_own = missing_for("prioritized_replay", config, plan.inference_mode) is None  # a registered algorithm
        if is_own and config.prioritized_replay and not plan.replay.is_prioritized:
            text = f"--prioritized_replay=True has no effect: the learner of --algo={config.algo} sets no priorities."
            yield _problem("prioritized_replay algo", text, "--algo=dqn")
        is_default = config.value_limit == TrainConfig.model_fields["value_limit"].default
        if config.value_bins is not None and not config.normalize_rewards and is_default:
            text = (
                f"The bins of --value_bins={config.value_bins} end at returns of {config.value_limit:g} "
                "(--value_limit), and larger ones are clipped."
            )
            fitting = ("--normalize_rewards=True", "--value_limit=LARGEST_RETURN")
            yield _problem("value_bins value_limit normalize_rewards", text, *fitting)
        if plan.replay.warmup_env_steps >= plan.train_for_env_steps // plan.num_ranks:
            steps, ranks = plan.train_for_env_steps, plan.num_ranks
            of_each = f" / {ranks} ranks = {steps // ranks}" if ranks > 1 else ""
            text = (
                f"--train_for_env_steps={steps}{of_each} is within the warm-up "
                f"(--warmup_env_steps={plan.replay.warmup_env_steps}): nothing will be trained."
            )
            yield _problem("train_for_env_steps warmup_env_steps", text)
    elif plan.hogwild is None:
        is_late = plan.async_rl and not plan.serial_mode and not plan.fixed_lag
        if is_late and plan.max_policy_lag < plan.steady_lag_bound:
            text = (
                f"--max_policy_lag={plan.max_policy_lag} drops many samples: they are normally up to "
                f"{plan.steady_lag_bound} optimizer steps old."
            )
            yield _problem("max_policy_lag", text, f"--max_policy_lag={plan.steady_lag_bound}")
        if plan.dataset_size > plan.train_for_env_steps:
            text = (
                f"--train_for_env_steps={plan.train_for_env_steps} is less than one dataset, {plan.batch_size} x "
                f"{plan.num_batches_per_epoch} = {plan.dataset_size} samples: the run ends after the first."
            )
            yield _problem("train_for_env_steps batch_size num_batches_per_epoch", text)
        if not config.algorithm.uses_ratio and config.num_epochs > 1:
            text = f"{config.algorithm.name.upper()} should use each sample once: set --num_epochs=1."
            yield _problem("num_epochs algo", text)
        for name in ("target_kl", "recompute_advantages") if config.num_epochs == 1 else ():
            if getattr(config, name) not in (None, TrainConfig.model_fields[name].default):
                text = f"--{name} has no effect with --num_epochs=1: there is one pass over each dataset."
                yield Problem((name, "num_epochs"), text, ("--num_epochs=2",))
    if config.with_pbt and config.pbt_start_mutation >= plan.train_for_env_steps / plan.num_policies:
        text = (
            f"--pbt_start_mutation={config.pbt_start_mutation} is not reached: {plan.train_for_env_steps} environment "
            f"steps are about {plan.train_for_env_steps // plan.num_policies} for each of {plan.num_policies} policies."
        )
        if plan.num_policies == 1:
            text = (
                f"--pbt_start_mutation={config.pbt_start_mutation} is not reached in {plan.train_for_env_steps} steps."
            )
        yield _problem("pbt_start_mutation train_for_env_steps", text)
    if config.learning_rate == 0:
        yield Problem(("learning_rate",), "--learning_rate=0: the policy will not change.")


def _as_flags(name: str, value: int, step: int) -> list[str]:
    """The multiples of `step` next to `value`, above 0, as flags."""
    below = value // step * step
    return [f"--{name}={multiple}" for multiple in (below, below + step) if multiple > 0]


def _divisor_near(number: int, wanted: int) -> int:
    """The divisor of `number` that is nearest to `wanted`, the smaller of two."""
    return min((count for count in range(1, number + 1) if number % count == 0), key=lambda count: abs(count - wanted))


_COMMON_MODEL_SETTINGS = ("use_rnn", "rnn_type", "rnn_size", "rnn_num_layers", "recurrence", "core", "image_channels")


def _policies(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    if config.num_policies == 1:
        for name in ("policies",) if config.policies else ():
            yield _problem(f"{name} num_policies", f"--{name} is for several policies.", "--num_policies=2")
        return
    count = f"--num_policies={config.num_policies}"
    one = "--num_policies=1"
    if config.is_off_policy:
        yield _problem("num_policies algo", f"{count} cannot be used with --algo={config.algo}.", one, "--algo=ppo")
    if config.backend == "hogwild":
        yield _problem("num_policies backend", f"{count} cannot be used with --backend=hogwild.", one)
    if plan.steps_tensors:
        yield _problem("num_policies env_backend", f"{count} cannot be used with --env_backend=tensor.", one)
    if plan.num_ranks > 1:
        yield _problem("num_policies", f"{count} cannot be used with torchrun: each rank would train all of them.", one)
    for name in ("fixed_lag", "debug_forced_lag", "debug_skip_training", "checkpoint_resets"):
        if getattr(config, name):
            off = f"--{name}={TrainConfig.model_fields[name].default}"
            yield _problem(f"{name} num_policies", f"--{name} is not available with {count}.", off)
    known = {
        name: setting
        for name, setting in all_settings(type(config)).items()
        if setting.section in ("learning", "model") and name not in _COMMON_MODEL_SETTINGS
    }
    for policy_idx, own in config.policies.items():
        where = f"policy.{policy_idx}."
        if policy_idx >= config.num_policies:
            last = config.num_policies - 1
            text = f"--{where}{next(iter(own), 'NAME')}: there is no policy {policy_idx}, they are 0 to {last}."
            yield _problem("policies num_policies", text, f"--num_policies={policy_idx + 1}")
        for name, value in own.items():
            if name not in known:
                text = f"--{where}{name} is not possible: only settings of learning and of the model may differ"
                yield dataclasses.replace(unknown_name(name, known, text, f"--{where}"), settings=("policies",))
                continue
            try:
                type(config).model_validate({name: value})
            except UsageError:
                problem = refused_value(f"{where}{name}", value, known[name].expected)
                yield dataclasses.replace(problem, settings=("policies",))


def _self_play(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    given, off = "--self_play=True", "--self_play=False"
    if config.is_off_policy:
        yield _problem("self_play algo", f"{given} cannot be used with --algo={config.algo}.", off, "--algo=ppo")
    if config.backend == "hogwild":
        yield _problem("self_play backend", f"{given} cannot be used with --backend=hogwild.", off)
    if plan.steps_tensors:
        yield _problem("self_play env_backend", f"{given} cannot be used with --env_backend=tensor.", off)
    if plan.num_ranks > 1:
        yield _problem("self_play", f"{given} cannot be used with torchrun: each rank would have a pool.", off)
    if config.num_policies > 1:
        text = f"{given} trains one policy against its own earlier versions, not --num_policies={config.num_policies}."
        yield _problem("self_play num_policies", text, "--num_policies=1", off)
    if config.with_pbt:
        text = f"{given} cannot be used with --with_pbt=True: returns against different opponents cannot be compared."
        yield _problem("self_play with_pbt", text, "--with_pbt=False", off)
    if config.policy_mapping != "auto":
        text = f"{given} draws who plays an agent, so --policy_mapping={config.policy_mapping} has no effect."
        yield _problem("self_play policy_mapping", text, "--policy_mapping=auto", off)
    for name in ("fixed_lag", "debug_forced_lag", "debug_skip_training", "checkpoint_resets"):
        if getattr(config, name):
            default = f"--{name}={TrainConfig.model_fields[name].default}"
            yield _problem(f"{name} self_play", f"--{name} is not available with {given}.", default)
    if config.save_best_metric == "train":
        text = f"With {given} training returns depend on the opponents: --save_best_metric=train cannot compare them."
        yield _problem("save_best_metric self_play", text, "--save_best_metric=auto", off)


def _population(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    off = "--with_pbt=False"
    if config.is_off_policy or config.backend == "hogwild":
        name, value = ("algo", config.algo) if config.is_off_policy else ("backend", config.backend)
        yield _problem(f"with_pbt {name}", f"--with_pbt=True cannot be used with --{name}={value}.", off, "--algo=ppo")
    if plan.num_policies == 1 and config.pbt_shared_dir is None:
        text = "--with_pbt=True needs several policies, or several runs with one --pbt_shared_dir."
        yield _problem("with_pbt num_policies pbt_shared_dir", text, "--num_policies=4", "--pbt_shared_dir=FOLDER")
    if plan.num_policies > 1 and config.pbt_shared_dir is not None:
        text = f"--pbt_shared_dir is for runs with one policy each, not with --num_policies={plan.num_policies}."
        yield _problem("pbt_shared_dir num_policies", text, "--num_policies=1", "--pbt_shared_dir=none")
    if plan.num_ranks > 1:
        yield _problem("with_pbt", "--with_pbt=True cannot be used with torchrun.", off)
    for name in ("fixed_lag", "debug_forced_lag", "debug_skip_training", "checkpoint_resets"):
        if getattr(config, name) and plan.num_policies == 1:  # several policies refuse them anyway
            default = f"--{name}={TrainConfig.model_fields[name].default}"
            yield _problem(f"{name} with_pbt", f"--{name} is not available with --with_pbt=True.", default)
    if config.pbt_perturb_min > config.pbt_perturb_max:
        text = (
            f"--pbt_perturb_min={config.pbt_perturb_min:g} is larger than --pbt_perturb_max={config.pbt_perturb_max:g}."
        )
        yield _problem("pbt_perturb_min pbt_perturb_max", text, f"--pbt_perturb_max={config.pbt_perturb_min:g}")
    settings = all_settings(type(config))
    for policy_idx, own in config.policies.items():
        for name in own:
            if name in settings and (
                settings[name].section == "model" or name in ("normalize_input", "normalize_returns")
            ):
                text = (
                    f"--policy.{policy_idx}.{name} is not possible with --with_pbt=True: policies that take over one "
                    "another's weights have the same model."
                )
                yield _problem("policies with_pbt", text, f"--{name} for all policies")


def _cluster(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    """What pools of rollout workers on other machines cannot do."""
    given, off = "--cluster=ray", "--cluster=none"
    others = {
        "her_goals": (plan.replay is not None and plan.replay.her_goals > 0, "--her_goals", "--her_goals=0"),
        "use_rnn": (
            plan.replay is not None and config.use_rnn,
            f"--use_rnn=True of --algo={config.algo}",
            "--use_rnn=False",
        ),
        "hogwild_mode": (
            plan.hogwild is not None and plan.hogwild.mode != "gradients",
            f"--hogwild_mode={plan.hogwild.mode if plan.hogwild else ''}, whose workers share memory",
            "--hogwild_mode=gradients",
        ),
        "algo": (
            plan.hogwild is not None and plan.replay is not None,
            f"--backend=hogwild --algo={config.algo}",
            "--backend=actor_learner",
        ),
        "device": (
            plan.hogwild is not None and plan.device != "cpu",
            f"--backend=hogwild --device={config.device}",
            "--device=cpu",
        ),
        "serial_mode": (config.serial_mode, "--serial_mode=True", "--serial_mode=False"),
        "env_backend": (plan.steps_tensors, "--env_backend=tensor", "--env_backend=gym"),
        "num_policies": (plan.num_policies > 1, f"--num_policies={plan.num_policies}", "--num_policies=1"),
        "self_play": (config.self_play, "--self_play=True", "--self_play=False"),
        "inference_mode": (config.inference_mode == "central", "--inference_mode=central", "--inference_mode=local"),
    }
    for name, (is_given, value, instead) in others.items():
        if is_given:
            yield _problem(f"cluster {name}", f"{given} cannot be used with {value}.", off, instead)
    if config.ray_address.startswith("ray://"):
        text = f"--ray_address={config.ray_address}: the learner's machine must be a node of the cluster, not a client."
        yield _problem("ray_address", text, "--ray_address=HOST:6379", "--ray_address=auto")
    if isinstance(config.env, EnvMaker):
        text = f"{given} needs an environment that other machines can import; {config.env} exists in this program only."
        yield _problem("cluster env", text, "--env=MODULE:function", off)
