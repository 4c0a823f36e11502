"""The text that the command lines print about a run: settings, plan and problems before it, progress, and its end."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asyncrl.config.algorithms import BUILT_IN
from asyncrl.config.critic_kinds import critic_kind
from asyncrl.config.flags import ExtraFlag, format_value
from asyncrl.config.loading import LoadedConfig
from asyncrl.config.plan import ROLLOUT_NICENESS, ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec, has_axes_of_image, has_shape_of_image
from asyncrl.models.sizes import conv_architecture
from asyncrl.observers.observer import Run
from asyncrl.observers.progress import ProgressBar, print_line
from asyncrl.observers.summary import Summary
from asyncrl.processes.children import RunFailed
from asyncrl.processes.memory import format_bytes
from asyncrl.processes.reader import drop_output
from asyncrl.run.preflight import Preflight
from asyncrl.storage.checkpoint import BEST, latest, saved_env_steps
from asyncrl.storage.locating import TRAIN_DIR, checkpoints_of
from asyncrl.storage.run_folder import RunFolder, shown_path

PRINT_CONFIG = ExtraFlag(
    "print_config",
    "print each setting and where it came from, and start nothing; --print_config=changed leaves out settings that "
    "have their default",
    values=("changed",),
)

_SHOWN = (
    *("device", "inference_mode", "serial_mode", "async_rl", "num_workers", "num_envs_per_worker", "worker_num_splits"),
    *("num_inference_workers", "num_envs", "num_processes", "num_threads", "learner_threads", "cores"),
    *("num_ranks", "num_local_ranks"),
)
"""Fields of the plan that `plan_as_data` copies."""
_BEST_METRICS = {"train": "training return", "eval": "evaluation return", "none": "return that a callback gave"}


class Console(ProgressBar):
    """Prints the folder of a run, its progress, and with `profile` where its time went."""

    def on_start(self, run: Run) -> None:
        super().on_start(run)
        if not run.config.quiet:
            self.on_message(run, f"run {shown_path(run.folder)}")
            if (schedules := run.plan.schedules_text) is not None:
                self.on_message(run, f"schedules {schedules}")

    def on_end(self, run: Run, summary: Summary) -> None:
        super().on_end(run, summary)
        if run.config.profile:
            print_line(run.time_table, sys.stdout)


def print_findings(result: Preflight) -> int:
    """Prints warnings, or the problems, and the environment's failure on standard error; returns the exit code.

    Warnings about settings that must change would only hide why the run cannot start.
    """
    for warning in () if result.problems else result.warnings:
        print(f"warning: {warning.sentence('Better')}", file=sys.stderr)
    for problem in result.problems:
        print(f"error: {problem}", file=sys.stderr)
    if result.environment_failure:
        print(f"error: {result.environment_failure}", file=sys.stderr)
    return result.exit_code


def print_end(summary: Summary, config: TrainConfig, folder: RunFolder) -> None:
    """Prints how the run ended, where its files are, and commands that use it."""
    checkpoints = checkpoints_of(folder.path)
    newest, best = latest(checkpoints), latest(checkpoints / BEST)
    places = {"folder": shown_path(folder.path), "newest checkpoint": "none" if newest is None else shown_path(newest)}
    if best is not None:
        if summary.best_return is not None:
            metric = f"{_BEST_METRICS[config.best_metric]} at {saved_env_steps(best):,} steps"
            places["best"] = f"{summary.best_return:,.1f} ({metric})"
        places["best checkpoint"] = shown_path(best)
    commands = {}
    if newest is not None and summary.status != "failed":  # `print_failure` prints the command that resumes it
        run = folder.path.name if config.train_dir == TRAIN_DIR else shown_path(folder.path)
        commands = {
            "evaluate": command_text("evaluate", run),
            "train on": command_text("train", *_train_on_flags(summary, config, folder)),
            "plot": command_text("plot", run),
        }
    try:
        print(summary.to_text(config.train_for_env_steps, places, commands), flush=True)
    except OSError:  # the exit code is that of the run, also if its output has no reader or its terminal is gone
        drop_output()


def _train_on_flags(summary: Summary, config: TrainConfig, folder: RunFolder) -> list[str]:
    """The flags that continue a run: to the same limit, or to twice a limit that it has reached."""
    flags, is_complete = run_flags(config.train_dir, folder.path.name), summary.status == "completed"
    has_all_steps = summary.env_steps >= config.train_for_env_steps
    if is_complete and (has_all_steps or config.train_for_seconds is None):
        flags.append(f"--train_for_env_steps={2 * summary.env_steps}")
    if config.train_for_seconds is not None:  # config.yaml does not have it
        times = 2 if is_complete and not has_all_steps else 1
        flags.append(f"--train_for_seconds={times * config.train_for_seconds:g}")
    return flags


def print_failure(failure: RunFailed, config: TrainConfig, folder: RunFolder, with_details: bool = True) -> None:
    """Prints the failure and the command that resumes the run on standard error."""
    if with_details and failure.details:
        print(failure.details, file=sys.stderr)
    above = "" if with_details else "traceback above; "
    print(f"error: {failure.summary} ({above}logs: {shown_path(folder.logs)})", file=sys.stderr)
    if (newest := latest(checkpoints_of(folder.path))) is not None:
        limit = [] if config.train_for_seconds is None else [f"--train_for_seconds={config.train_for_seconds:g}"]
        command = command_text("train", *run_flags(config.train_dir, folder.path.name), *limit)
        print(f"The last checkpoint is {shown_path(newest)}. To resume from it: {command}", file=sys.stderr)


def shown_settings(loaded: LoadedConfig, which: bool | str) -> list[str]:
    """Names of the settings that `--print_config` shows; if it is `changed` those that differ from the defaults."""
    config, defaults = loaded.config, type(loaded.config)()
    return [name for name in loaded.origins if which != "changed" or getattr(config, name) != getattr(defaults, name)]


def format_settings(loaded: LoadedConfig, plan: ResourcePlan, which: bool | str) -> str:
    """One line for each setting: its value, the value that `auto` was resolved to, and its source."""
    rows = []
    for name in shown_settings(loaded, which):
        value, origin = format_value(getattr(loaded.config, name)), loaded.origins[name]
        if value == "auto" and name in _SHOWN and name != "num_inference_workers":
            value, origin = f"auto -> {getattr(plan, name)}", f"{origin}, derived"
        rows.append((name, value, origin))
    name_width = max((len(row[0]) for row in rows), default=0)
    value_width = min(40, max((len(row[1]) for row in rows), default=0))
    return "\n".join(f"{name:<{name_width}}  {value:<{value_width}}  {origin}" for name, value, origin in rows)


def plan_as_data(plan: ResourcePlan, arena_bytes: int | None, free_bytes: int) -> dict[str, Any]:
    """The plan's figures as JSON values."""
    samples: dict[str, Any] = {}
    if plan.replay is not None:
        samples = {
            "replay_size": plan.replay.size,
            "warmup_env_steps": plan.replay.warmup_env_steps,
            "updates_per_env_step": plan.replay.updates_per_env_step,
        }
    elif plan.hogwild is None:
        samples = {
            "rollout": plan.rollout,
            "samples_per_iteration": plan.dataset_size,
            "trajectories_per_iteration": plan.columns_per_dataset,
            "slots_per_dataset": float(plan.slots_per_dataset),
            "num_slots": plan.num_slots,
            "steady_lag_bound": plan.steady_lag_bound,
            "lag_bound": plan.lag_bound,
            "sgd_steps_per_dataset": plan.updates_per_dataset,
        }
    if plan.hogwild is not None:
        samples["hogwild_mode"] = plan.hogwild.mode
    return {
        **{name: getattr(plan, name) for name in _SHOWN},
        "inference_devices": list(plan.inference_devices),
        **samples,
        "shared_memory_bytes": arena_bytes,
        "free_bytes": free_bytes,
        "sgd_steps_per_run": plan.num_updates,
    }


def plan_lines(plan: ResourcePlan, arena_bytes: int, free_bytes: int) -> dict[str, str]:
    """The plan in a few lines for people, by their titles."""
    lines = {}
    if (ranks := plan.num_ranks) > 1:
        batch = f"{ranks} x {plan.batch_size} = {ranks * plan.batch_size}"
        environments = f"{ranks} x {plan.num_envs} = {ranks * plan.num_envs} environments"
        text = f"{ranks} ({plan.num_local_ranks} on this machine) with {environments}, minibatches of {batch}"
        if plan.replay is not None:
            text += f", replays of {ranks * plan.replay.size:,} environment steps"
        lines["ranks:"] = f"{text}; the lines below describe one rank"
    timing = "asynchronous" if plan.async_rl else "synchronous"
    if plan.hogwild is not None:
        timing = f"Hogwild, {plan.hogwild.mode}"
    if plan.serial_mode and plan.hogwild is None:
        timing = "with a lag of one dataset" if plan.fixed_lag else "collecting and training in turn"
    mode = f"serial, {timing}" if plan.serial_mode else timing
    devices = (plan.device,) if plan.hogwild is None else plan.hogwild.devices
    lines["mode:"] = f"{mode}, {plan.inference_mode} inference, device {', '.join(devices)}"
    if plan.device_reason is not None:
        lines["device:"] = plan.device_reason
    environments = f"{_count(plan.num_workers, 'worker')} x {plan.num_envs_per_worker} = {plan.num_envs}"
    if (remote := plan.remote).num_pools > 0:
        environments += f", {remote.num_workers} of the workers in {_count(remote.num_pools, 'pool')} on other machines"
    if plan.num_agents > 1:
        environments += f", of {plan.num_agents} agents each"
    if plan.worker_num_splits > 1:
        environments += f", each in {plan.worker_num_splits} splits"
    if plan.inference_mode == "central":
        environments += f"; {_count(plan.num_inference_workers, 'inference worker')}"
        if any(device != plan.device for device in plan.inference_devices):
            environments += f" on {', '.join(plan.inference_devices)}"
    lines["environments:"] = environments
    lines |= _sample_lines(plan)
    if (schedules := plan.schedules_text) is not None:
        lines["schedules:"] = schedules
    of_ranks = f" for the {plan.num_local_ranks} ranks of this machine" if plan.num_local_ranks > 1 else ""
    lines["shared memory:"] = f"{format_bytes(arena_bytes)} needed{of_ranks}; {format_bytes(free_bytes)} free"
    threads = f"at most {_count(plan.num_threads, 'busy thread')} ({plan.learner_threads} of the learner)"
    lines["processes:"] = f"{plan.num_processes}, with {threads} on {_count(plan.cores, 'core')}"
    if not plan.serial_mode:
        lines["processes:"] += f"; while all are busy, rollout workers come last (nice {ROLLOUT_NICENESS})"
    return lines


def _sample_lines(plan: ResourcePlan) -> dict[str, str]:
    if (replay := plan.replay) is not None:
        return {
            "replay:": f"{replay.size:,} environment steps; updates begin after {replay.warmup_env_steps:,}",
            "updates:": f"{replay.updates_per_env_step:g} for each environment step, from batches of {plan.batch_size} "
            f"transitions; {plan.num_updates:,} in the run",
        }
    if plan.hogwild is not None:
        hogwild, num_samples = plan.hogwild, plan.num_envs_per_worker * plan.rollout
        rollout = f"{plan.num_envs_per_worker} x {plan.rollout} = {num_samples} samples"
        gradients = f"each from {rollout}"
        if hogwild.num_gradients_of_rollout > 1:
            gradients = f"{hogwild.num_epochs} x {hogwild.num_batches_per_epoch} (passes x minibatches) from {rollout}"
        combined = hogwild.num_gradients_to_combine if hogwild.mode == "gradients" else 1
        return {
            "gradients:": f"{gradients}; an update combines {combined}",
            "updates:": f"{plan.num_updates:,} in the run",
        }
    lag = _count(plan.steady_lag_bound, "update")
    if plan.fixed_lag:
        lag += ", those of one dataset"
    elif plan.async_rl:
        lag = f"normally up to {lag}; samples older than {plan.lag_bound} are dropped"
    elif not plan.forced_lag:
        lag = "none: the policy that is trained collected every sample"
    buffers = f"{plan.num_slots}, of {plan.columns_per_split} trajectories each; "
    buffers += f"one iteration uses {float(plan.slots_per_dataset):g}"
    return {
        "iteration:": f"{plan.num_batches_per_epoch} x {plan.batch_size} = {plan.dataset_size} samples, from "
        f"{plan.columns_per_dataset} trajectories of {_count(plan.rollout, 'step')}",
        "buffers:": "none, samples stay on the device" if plan.steps_tensors else buffers,
        "policy lag:": lag,
        "updates:": f"{plan.updates_per_dataset} in each iteration, {plan.num_updates:,} in the run "
        f"({_count(plan.num_datasets, 'iteration')})",
    }


def network_lines(spec: EnvSpec, config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Title and text of a line for each part of an observation: which network reads it, and how to change it."""
    own = [f"--{name}={getattr(config, name)}" for name in ("model", "encoder") if getattr(config, name) != "default"]
    if own or (config.algorithm.make_model is not None and config.algorithm.name not in BUILT_IN):
        yield "networks:", f"chosen by {own[0] if own else f'--algo={config.algo}'}"
        return
    perceptron = critic_kind(config).network_name
    parts = dict.fromkeys(part for kind in spec.kinds for part in kind.observation.parts if part.kind != "mask")
    lines: dict[str, list[str]] = {}
    for part in parts:
        if part.kind == "image" and has_shape_of_image(part.shape, part.channels):
            change = f"; {perceptron} if a wrapper gives it another dtype than uint8"
        elif part.has_pixels:
            change = f"; {perceptron} without --image_keys"
        else:
            is_array = part.kind == "numbers" and has_axes_of_image(part.shape)
            change = f"; convolutions with --image_keys={part.name}" if is_array else ""
        network = f"convolutions ({conv_architecture(part, config)})" if part.has_pixels else perceptron
        lines.setdefault(f"{network}{change}", []).append(part.name)
    for number, (network, names) in enumerate(lines.items()):
        yield "" if number else "networks:", f"{', '.join(names)}: {network}"


def command_text(*words: str) -> str:
    """The command `asyncrl` of this Python with these words, for a user to paste in the same working directory."""
    own = Path(sys.executable).with_name("asyncrl")
    if not own.exists():  # not installed: the package is on the path of modules
        return shlex.join([shown_path(Path(sys.executable)), "-m", "asyncrl", *words])
    return shlex.join(["asyncrl" if shutil.which("asyncrl") == str(own) else shown_path(own), *words])


def run_flags(train_dir: str, experiment: str) -> list[str]:
    """The flags that name a run, without defaults."""
    named = [] if train_dir == TRAIN_DIR else [f"--train_dir={train_dir}"]
    return [*named, f"--experiment={experiment}"]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
