"""Settings and plan as text."""

from __future__ import annotations

from typing import Any

from asyncrl.config.flags import format_value
from asyncrl.config.loading import LoadedConfig
from asyncrl.config.plan import HogwildPlan, ReplayPlan, ResourcePlan

_DERIVED = (
    "device",
    "inference_mode",
    "num_workers",
    "num_envs_per_worker",
    "worker_num_splits",
    "learner_threads",
)

_SHOWN = (
    *("device", "inference_mode", "serial_mode", "async_rl", "num_workers", "num_envs_per_worker", "worker_num_splits"),
    *("num_inference_workers", "num_envs", "num_processes", "num_threads", "learner_threads", "cores"),
    *("num_ranks", "num_local_ranks"),
)
"""Figures of the plan that have the same name as data."""


def format_settings(loaded: LoadedConfig, plan: ResourcePlan) -> str:
    """One line for each setting: its value, what `auto` became, and where it came from."""
    rows = []
    for name, origin in loaded.origins.items():
        value = format_value(getattr(loaded.config, name))
        if name in _DERIVED and value == "auto":
            rows.append((name, f"auto -> {getattr(plan, name)}", f"{origin}, derived"))
        else:
            rows.append((name, value, origin))
    name_width = max(len(row[0]) for row in rows)
    value_width = min(40, max(len(row[1]) for row in rows))
    return "\n".join(f"{name:<{name_width}}  {value:<{value_width}}  {origin}" for name, value, origin in rows)


def plan_as_data(plan: ResourcePlan, arena_bytes: int | None, free_bytes: int) -> dict[str, Any]:
    """The plan's figures as JSON values."""
    samples = _trajectories_as_data(plan) if plan.replay is None else _replay_as_data(plan.replay)
    if plan.hogwild is not None:
        samples = {} if plan.replay is None else samples
        samples |= {"hogwild_mode": plan.hogwild.mode}
    return {
        **{name: getattr(plan, name) for name in _SHOWN},
        "inference_devices": list(plan.inference_devices),
        **samples,
        "shared_memory_bytes": arena_bytes,
        "free_bytes": free_bytes,
        "sgd_steps_per_run": plan.num_updates,
    }


def _trajectories_as_data(plan: ResourcePlan) -> dict[str, Any]:
    return {
        "rollout": plan.rollout,
        "samples_per_iteration": plan.dataset_size,
        "trajectories_per_iteration": plan.columns_per_dataset,
        "slots_per_dataset": float(plan.slots_per_dataset),
        "num_slots": plan.num_slots,
        "steady_lag_bound": plan.steady_lag_bound,
        "lag_bound": plan.lag_bound,
        "sgd_steps_per_dataset": plan.updates_per_dataset,
    }


def _replay_as_data(replay: ReplayPlan) -> dict[str, Any]:
    return {
        "replay_size": replay.size,
        "warmup_env_steps": replay.warmup_env_steps,
        "updates_per_env_step": replay.updates_per_env_step,
    }


def format_plan(plan: ResourcePlan, arena_bytes: int | None, free_bytes: int) -> str:
    """The plan in a few lines for people."""
    timing = "asynchronous" if plan.async_rl else "synchronous"
    if plan.hogwild is not None:
        timing = f"Hogwild, {plan.hogwild.mode}"
    mode = ("serial, " if plan.serial_mode else "") + timing
    splits = f", each in {plan.worker_num_splits} splits" if plan.worker_num_splits > 1 else ""
    inference = ""
    if plan.inference_mode == "central":
        others = [device for device in plan.inference_devices if device != plan.device]
        inference = f"; {_count(plan.num_inference_workers, 'inference worker')}"
        inference += f" on {', '.join(plan.inference_devices)}" if others else ""
    memory = "unknown (the environment could not be loaded)"
    if arena_bytes is not None:
        ranks = f" for the {plan.num_local_ranks} ranks of this machine" if plan.num_local_ranks > 1 else ""
        memory = f"{format_bytes(arena_bytes)} needed{ranks}"
    workers = f"{_count(plan.num_workers, 'worker')} x {plan.num_envs_per_worker}"
    threads = f"at most {_count(plan.num_threads, 'busy thread')} ({plan.learner_threads} of the learner)"
    lines = {
        **_rank_lines(plan),
        "mode": f"{mode}, {plan.inference_mode} inference, device {plan.device}",
        "environments": f"{workers} = {plan.num_envs}{splits}{inference}",
        **_sample_lines(plan),
        "shared memory": f"{memory}; {format_bytes(free_bytes)} free",
        "processes": f"{plan.num_processes}, with {threads} on {_count(plan.cores, 'core')}",
    }
    return "\n".join(f"{title + ':':<15} {text}" for title, text in lines.items())


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _rank_lines(plan: ResourcePlan) -> dict[str, str]:
    if plan.num_ranks == 1:
        return {}
    batch = f"{plan.num_ranks} x {plan.batch_size} = {plan.num_ranks * plan.batch_size}"
    environments = f"{plan.num_ranks} x {plan.num_envs} = {plan.num_ranks * plan.num_envs} environments"
    text = f"{plan.num_ranks} ({plan.num_local_ranks} on this machine) with {environments}, minibatches of {batch}"
    if plan.replay is not None:
        text += f", replays of {plan.num_ranks * plan.replay.size:,} environment steps"
    return {"ranks": f"{text}; the lines below describe one rank"}


def _sample_lines(plan: ResourcePlan) -> dict[str, str]:
    if plan.replay is not None:
        return _replay_lines(plan, plan.replay)
    return _trajectory_lines(plan) if plan.hogwild is None else _hogwild_lines(plan, plan.hogwild)


def _hogwild_lines(plan: ResourcePlan, hogwild: HogwildPlan) -> dict[str, str]:
    rollout = f"{plan.num_envs_per_worker} x {plan.rollout} = {plan.num_envs_per_worker * plan.rollout} samples"
    combined = hogwild.num_gradients_to_combine if hogwild.mode == "gradients" else 1
    return {
        "gradients": f"each from {rollout}; an update combines {combined}",
        "updates": f"{plan.num_updates:,} in the run",
    }


def _trajectory_lines(plan: ResourcePlan) -> dict[str, str]:
    return {
        "iteration": f"{plan.num_batches_per_epoch} x {plan.batch_size} = {plan.dataset_size} samples, from "
        f"{plan.columns_per_dataset} trajectories of {_count(plan.rollout, 'step')}",
        "buffers": "none, samples stay on the device"
        if plan.steps_tensors
        else f"{plan.num_slots}, of {plan.envs_per_split} trajectories each; "
        f"one iteration uses {float(plan.slots_per_dataset):g}",
        "policy lag": _lag(plan),
        "updates": f"{plan.updates_per_dataset} in each iteration, {plan.num_updates:,} in the run "
        f"({_count(plan.num_datasets, 'iteration')})",
    }


def _lag(plan: ResourcePlan) -> str:
    usual = _count(plan.steady_lag_bound, "update")
    if plan.fixed_lag:
        return f"{usual}, those of one dataset"
    if plan.async_rl:
        return f"normally up to {usual}; samples older than {plan.lag_bound} are dropped"
    return usual if plan.forced_lag else "none: the policy that is trained collected every sample"


def _replay_lines(plan: ResourcePlan, replay: ReplayPlan) -> dict[str, str]:
    return {
        "replay": f"{replay.size:,} environment steps; updates begin after {replay.warmup_env_steps:,}",
        "updates": f"{replay.updates_per_env_step:g} for each environment step, from batches of {plan.batch_size} "
        f"transitions; {plan.num_updates:,} in the run",
    }


def format_bytes(count: int) -> str:
    """A number of bytes in the unit that people use for its size."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"
