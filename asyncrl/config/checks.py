"""Rules about settings that cannot be combined. Every rule is checked, so all problems are found at once."""

from __future__ import annotations

import dataclasses
import platform
import re
from collections.abc import Iterator, Mapping

from asyncrl.config.errors import Problem, UsageError, make_problem
from asyncrl.config.flags import divisor_near, multiples_as_flags, refused_value
from asyncrl.config.hooks import hooks, load
from asyncrl.config.machine import Machine
from asyncrl.config.plan import (
    MOST_PROCESSES,
    ResourcePlan,
)
from asyncrl.config.policy_checks import policy_problems
from asyncrl.config.schema import TrainConfig


def find_problems(config: TrainConfig, plan: ResourcePlan, machine: Machine) -> list[Problem]:
    """Every reason why the run cannot start that settings and machine show.

    Args:
        config: the settings.
        plan: the resources resolved from them.
        machine: the machine that the plan is for.
    """
    return [
        *_environment(config, plan),
        *_device("device", config.device, machine),
        *_device("learner_device", config.learner_device, machine),
        *(problem for device in config.inference_devices for problem in _device("inference_devices", device, machine)),
        *_device_of_each_rank(config, plan, machine),
        *_workers(config, plan),
        *_processor(plan, machine),
        *_learning(config, plan),
        *_critic_only_keys(config),
        *_saving(config),
        *(_ranks(config, plan) if plan.num_ranks > 1 else ()),
        *policy_problems(config, plan),
        *_policy_learning(config, plan),
        *(problem for rule in hooks("RULES").values() for problem in load(rule)(config, plan)),
    ]


def _environment(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    if not config.env:
        text = "No environment was given"
        if config.experiment is not None and config.restart_behavior == "resume":
            text += f", and there is no run {config.experiment!r} in {config.train_dir} to resume"
        yield make_problem("env", f"{text}.", "--env=CartPole-v1", "--env=Humanoid-v5")


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
        yield make_problem(name, text, *(f"--{name}={each}" for each in reversed(known)))
    elif int(match.group(1) or 0) >= machine.num_cuda_devices:
        text = f"--{name}={device}: the CUDA driver finds {machine.num_cuda_devices} devices."
        yield make_problem(name, text, f"--{name}=cuda" if machine.num_cuda_devices else f"--{name}=cpu")


def _device_of_each_rank(config: TrainConfig, plan: ResourcePlan, machine: Machine) -> Iterator[Problem]:
    """Ranks of one machine have a CUDA device each, where `cuda` has no number."""
    given = {config.device, config.learner_device, *config.inference_devices}
    uses_cuda = any(device.startswith("cuda") for device in (plan.device, *plan.inference_devices))
    is_without_number = "cuda" in given or (config.device == "auto" and uses_cuda)
    if is_without_number and plan.num_local_ranks > machine.num_cuda_devices > 0:
        text = (
            f"Each of {plan.num_local_ranks} ranks on this machine needs a CUDA device, and the driver shows "
            f"{machine.num_cuda_devices}."
        )
        yield make_problem("device", text, f"torchrun --nproc-per-node={machine.num_cuda_devices}", "--device=cpu")


def _processor(plan: ResourcePlan, machine: Machine) -> Iterator[Problem]:
    if not plan.serial_mode and not machine.shares_words:
        text = (
            f"Processes that share memory need the native core on this processor, {platform.machine()}, and it was not "
            "built: install a C compiler and then asyncrl again, or let the run have one process."
        )
        yield make_problem("serial_mode", text, "--serial_mode=True")


def _workers(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    parts = {"num_workers": plan.num_local_workers, "num_inference_workers": plan.num_inference_workers}
    if plan.remote.num_pools > 0:
        parts[plan.remote.setting] = plan.remote.num_pools  # each pool has a process here
    count = sum(parts.values())
    if count > MOST_PROCESSES and not plan.serial_mode:
        text = (
            f"{' + '.join(parts)} = {' + '.join(map(str, parts.values()))} = {count}: at most {MOST_PROCESSES} worker "
            "processes (limit on file descriptors)."
        )
        largest = max(parts, key=lambda name: parts[name])
        yield make_problem(" ".join(parts), text, f"--{largest}={max(1, MOST_PROCESSES - count + parts[largest])}")
    splits, envs = config.worker_num_splits, plan.num_envs_per_worker
    if splits not in ("auto", 1) and plan.inference_mode == "local":
        mode = "in serial mode" if plan.serial_mode else "with local inference"
        text = f"--worker_num_splits={splits} has no effect {mode}: a worker does not wait for actions."
        central = () if plan.serial_mode else ("--inference_mode=central",)
        yield make_problem("worker_num_splits inference_mode", text, "--worker_num_splits=1", *central)
    if splits != "auto" and envs % splits:
        text = (
            f"--num_envs_per_worker={envs} must be a multiple of --worker_num_splits={splits}: "
            f"{envs} / {splits} = {envs / splits:.4g}."
        )
        fitting = (
            *multiples_as_flags("num_envs_per_worker", envs, splits),
            f"--worker_num_splits={divisor_near(envs, splits)}",
        )
        yield make_problem("num_envs_per_worker worker_num_splits", text, *fitting)
    if len(plan.inference_devices) > plan.num_inference_workers:
        text = (
            f"--inference_devices names {len(plan.inference_devices)} devices, but "
            f"--num_inference_workers={plan.num_inference_workers}: some devices would be idle."
        )
        yield make_problem("inference_devices num_inference_workers", text, "--num_inference_workers=auto")
    if plan.num_inference_workers > plan.num_workers:
        text = (
            f"--num_inference_workers={plan.num_inference_workers} is more than the number of rollout workers, "
            f"{plan.num_workers}: some would be idle."
        )
        instead = [f"--num_inference_workers={plan.num_workers}"]
        if len(plan.inference_devices) > plan.num_workers:
            fewer = ",".join(config.inference_devices[: plan.num_workers])
            instead = [f"--num_workers={plan.num_inference_workers}", f"--inference_devices={fewer}"]
        yield make_problem("num_inference_workers", text, *instead)


def _learning(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    if config.compile == "cuda_graph" and not plan.device.startswith("cuda"):
        text = f"--compile=cuda_graph needs a CUDA device, but updates run on --device={plan.device}."
        yield make_problem("compile device", text, "--compile=auto")
    scheduled = [
        name for name in ("final_ppo_clip_ratio", "final_entropy_loss_coeff") if getattr(config, name) is not None
    ]
    if config.compile == "cuda_graph" and scheduled:
        text = f"--{scheduled[0]} changes the loss during the run, but --compile=cuda_graph captures it once."
        yield make_problem(f"compile {scheduled[0]}", text, "--compile=auto", f"--{scheduled[0]}=none")
    if config.use_rnn and not config.is_off_policy and plan.rollout % plan.recurrence:
        text = f"--recurrence={plan.recurrence} must divide --rollout={plan.rollout}."
        fitting = next(size for size in range(plan.recurrence, 0, -1) if plan.rollout % size == 0)
        yield make_problem("recurrence rollout", text, f"--recurrence={fitting}", "--recurrence=auto")
    low, high, rate = config.lr_adaptive_min, config.lr_adaptive_max, config.learning_rate
    if low > high:
        text = f"--lr_adaptive_min={low:g} is greater than --lr_adaptive_max={high:g}."
        yield make_problem("lr_adaptive_min lr_adaptive_max", text, f"--lr_adaptive_min={high:g}")
    elif config.lr_schedule.startswith("kl_adaptive") and rate > 0 and not low <= rate <= high:
        text = (
            f"--learning_rate={rate:g} is outside the adaptive schedule's range, "
            f"--lr_adaptive_min={low:g} to --lr_adaptive_max={high:g}."
        )
        nearest = f"--learning_rate={min(max(rate, low), high):g}"
        yield make_problem("learning_rate lr_adaptive_min lr_adaptive_max", text, nearest)
    if config.final_stddev is not None and config.final_stddev > config.initial_stddev:
        text = f"--final_stddev={config.final_stddev:g} is greater than --initial_stddev={config.initial_stddev:g}."
        yield make_problem("final_stddev initial_stddev", text, f"--initial_stddev={config.final_stddev:g}")
    takes_batches = not config.is_off_policy and (config.backend != "hogwild" or config.algorithm.uses_ratio)
    is_over_batches = config.normalize_advantage and config.normalize_advantage_over == "minibatch"
    if is_over_batches and config.batch_size < 2 and takes_batches:
        text = "--normalize_advantage=True needs at least two samples in a minibatch, but --batch_size=1."
        yield make_problem("batch_size normalize_advantage", text, "--normalize_advantage=False")


def _policy_learning(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    """What the settings of single policies, together with those of the run, break of the rules of learning."""
    of_run = [problem.text for problem in (*_learning(config, plan), *_critic_only_keys(config))]
    for idx, own in config.policies.items():
        try:
            policy = config.for_policy(idx)
        except UsageError:  # `policy_problems` says so
            continue
        if config.use_rnn and policy.actor_critic_share_weights != config.actor_critic_share_weights:
            name = "actor_critic_share_weights"
            text = (
                f"--policy.{idx}.{name} is not possible with --use_rnn=True: all policies have as many recurrent cores."
            )
            yield make_problem("policies use_rnn", text, f"--{name} without a number")
        for problem in (*_learning(policy, plan), *_critic_only_keys(policy)):
            if problem.text not in of_run:
                flags = tuple(
                    flag.replace("--", f"--policy.{idx}.") if flag[2:].partition("=")[0] in own else flag
                    for flag in problem.suggestions
                )
                yield Problem(("policies", *problem.settings), f"Policy {idx}: {problem.text}", flags)


def _critic_only_keys(config: TrainConfig) -> Iterator[Problem]:
    if not config.critic_only_keys:
        return
    if config.actor_critic_share_weights and not config.is_off_policy:
        text = "--critic_only_keys needs separate networks, because one network for actor and critic sees everything."
        yield make_problem("critic_only_keys actor_critic_share_weights", text, "--actor_critic_share_weights=False")
    if config.is_off_policy and config.algorithm.actions == "choice":
        text = f"--critic_only_keys needs an actor and a critic; --algo={config.algo} has one network, which acts."
        yield make_problem("critic_only_keys algo", text, "--algo=sac", "--algo=ppo")


def not_together(setting: str, given: str, off: str, others: Mapping[str, tuple[bool, str, str]]) -> Iterator[Problem]:
    """The other settings that `given` excludes: whether each one is given, its flag, and one that would pass."""
    for name, (is_given, value, instead) in others.items():
        if is_given:
            yield make_problem(f"{setting} {name}", f"{given} cannot be used with {value}.", off, instead)


def _saving(config: TrainConfig) -> Iterator[Problem]:
    if config.checkpoint_resets and not config.serial_mode:
        text = "--checkpoint_resets=True makes a run repeatable to the bit, which needs --serial_mode=True."
        yield make_problem("checkpoint_resets serial_mode", text, "--serial_mode=True", "--checkpoint_resets=False")
    if config.checkpoint_resets and config.save_every_env_steps is None:
        text = (
            "--checkpoint_resets=True needs checkpoints at fixed steps (--save_every_env_steps); those of "
            "--save_every_s depend on the clock."
        )
        yield make_problem("checkpoint_resets save_every_env_steps", text, "--save_every_env_steps=100000")
    if config.checkpoint_resets and config.save_milestones_s is not None:
        text = (
            "--save_milestones_s saves by the clock, but --checkpoint_resets=True needs checkpoints at fixed steps: "
            "keep more of those instead."
        )
        yield make_problem("checkpoint_resets save_milestones_s", text, "--keep_checkpoints=20")
    if config.save_best_metric == "eval" and config.eval_every_env_steps is None:
        text = "--save_best_metric=eval needs evaluations during training (--eval_every_env_steps)."
        fitting = ("--eval_every_env_steps=100000", "--save_best_metric=train")
        yield make_problem("save_best_metric eval_every_env_steps", text, *fitting)


def _ranks(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    if plan.replay is not None and plan.replay.is_prioritized:
        text = f"--prioritized_replay=True has one order of priorities, not those of {plan.num_ranks} ranks."
        yield make_problem("prioritized_replay", text, "--prioritized_replay=False", "to start it without torchrun")
    if config.backend == "hogwild":
        text = f"--backend=hogwild runs on one machine as one rank, not as {plan.num_ranks} ranks."
        yield make_problem("backend", text, "--backend=actor_learner", "to start it without torchrun")
    if config.serial_mode and not plan.steps_tensors:
        text = f"--serial_mode=True runs in one process, not as {plan.num_ranks} ranks."
        yield make_problem("serial_mode", text, "--serial_mode=False", "to start it without torchrun")
    if config.checkpoint_resets:
        text = f"--checkpoint_resets=True recreates one process at each checkpoint, not {plan.num_ranks} ranks."
        yield make_problem("checkpoint_resets", text, "--checkpoint_resets=False", "to start it without torchrun")
    if config.max_learner_restarts > 0:
        text = "--max_learner_restarts restarts one learner, but several ranks must be restarted together."
        yield make_problem("max_learner_restarts", text, "torchrun --max-restarts")
