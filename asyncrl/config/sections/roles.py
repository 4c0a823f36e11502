"""Settings: how the roles work together, and where."""

from __future__ import annotations

from typing import Literal

from asyncrl.config.sections.section import Section, section
from asyncrl.config.value_types import AutoPositiveInt, DeviceName, NonNegativeFloat

_roles = section("roles")


class RoleSettings(Section):
    """How the roles work together, and where."""

    async_rl: bool = _roles(
        True, "collect samples while training (True), or collect and train in turn (False)", backend=("actor_learner",)
    )
    serial_mode: bool = _roles(False, "run everything in one process, for debuggers; repeatable to the bit on a CPU")
    num_workers: AutoPositiveInt = _roles("auto", "rollout worker processes on this machine")
    num_envs_per_worker: AutoPositiveInt = _roles("auto", "environments in each rollout worker")
    stagger_episodes: bool = _roles(
        True,
        "shorten one episode of each environment, so that episodes of fixed length do not all begin at the same step; "
        "it counts as truncated, and statistics of episodes leave it out",
        env_backend=("auto", "gym"),
    )
    worker_num_splits: AutoPositiveInt = _roles(
        "auto", "groups of a worker's environments that take turns: one steps while another waits for actions"
    )
    inference_mode: Literal["auto", "local", "central"] = _roles(
        "auto",
        "where actions are computed: in each rollout worker, or by inference workers in batches",
        serial_mode=(False,),
    )
    num_inference_workers: AutoPositiveInt = _roles(
        "auto",
        "inference worker processes (central inference); auto is one for each of --inference_devices",
        inference_mode=("central",),
    )
    inference_max_wait_ms: NonNegativeFloat = _roles(
        0.3, "longest wait in ms of an inference worker for a full batch", inference_mode=("central",)
    )
    device: DeviceName = _roles(
        "auto",
        "device of learner and inference: auto, cpu, cuda or cuda:N. auto is cuda for each of the two where that is "
        "estimated to be faster than a core",
    )
    learner_device: DeviceName = _roles(
        "auto", "device of the learner alone; auto follows --device", backend=("actor_learner",)
    )
    inference_devices: tuple[DeviceName, ...] = _roles(
        (), "devices of inference workers, assigned in turn; [] is --device", inference_mode=("central",)
    )
    precision: Literal["auto", "float32", "bf16"] = _roles(
        "auto",
        "number format of matrix products in training; weights and losses are always float32. auto is bf16 for SAC "
        "and TD3 where the hardware computes it faster, otherwise float32",
    )
    compile: Literal["auto", "off", "cuda_graph"] = _roles(
        "auto",
        "run each update, and each batch of central inference, as one CUDA graph (cuda_graph); auto is cuda_graph on a "
        "CUDA device, but for updates of several ranks, and off on a CPU",
        backend=("actor_learner",),
    )
    learner_threads: AutoPositiveInt = _roles("auto", "CPU threads of the learner")
