"""Settings: what to train, and the run's folder."""

from __future__ import annotations

from typing import Literal

from asyncrl.config.sections.section import Section, section
from asyncrl.config.value_types import (
    AlgorithmName,
    EnvArguments,
    EnvSource,
    PathText,
    PositiveFloat,
    PositiveInt,
    Seed,
)

_run = section("run")
_folder = section("folder")


class RunSettings(Section):
    """What to train, and the run's folder."""

    env: EnvSource = _run(
        "", "Gymnasium id, or MODULE:Id or MODULE:function of a module that registers or makes it", fixed="run"
    )
    env_kwargs: EnvArguments = _run({}, "keyword arguments for the environment, as JSON")
    env_backend: Literal["auto", "gym", "gym_vector", "envpool", "tensor"] = _run(
        "auto",
        "how environments are stepped: one by one (gym); several at once, by the vectorized implementation that is "
        "registered with Gymnasium or that gives tensors (gym_vector), by EnvPool under its own ids (envpool), or by "
        "one that takes and returns tensors on the learner's device (tensor), in one process. auto is tensor for an "
        "environment that exists only so, gym_vector where the vectorized implementation has the same spaces, else gym",
    )
    atari_preprocessing: bool = _run(
        True,
        "for games of Atari: stack 4 grey frames of 84 x 84, repeat actions for 4 frames, start with no-ops; in "
        "training a lost life ends the episode",
    )
    import_modules: list[str] = _run(
        [], "modules that register your networks and algorithms; every process imports them first"
    )
    algo: AlgorithmName = _run(
        "ppo",
        "learning algorithm, or MODULE:NAME for one that a module has, or a name that a module registers",
        fixed="run",
    )
    backend: Literal["actor_learner", "hogwild"] = _run(
        "actor_learner",
        "rollout workers and a learner (actor_learner), or workers that each collect and train one shared set of "
        "parameters (hogwild); --algo=a3c is short for --backend=hogwild --algo=a2c --hogwild_mode=synced",
    )
    seed: Seed = _run(0, "seed of weights, exploration and environments, each of which gets a seed derived from it")
    train_for_env_steps: PositiveInt = _run(
        10_000_000,
        "stop after training on this many environment steps in total; a resumed run counts its earlier steps",
    )
    train_for_seconds: PositiveFloat | None = _run(
        None,
        "stop after this many seconds of training in total; schedules follow the nearer of both limits; a resumed run "
        "has no limit of time unless the flag is given again",
    )

    train_dir: PathText = _folder("train_dir", "folder that holds all runs")
    experiment: PathText | None = _folder(None, "name of the run's folder; by default made of env, algo and time")
    restart_behavior: Literal["resume", "restart", "overwrite"] = _folder(
        "resume",
        "what to do if the run exists: resume it with its settings from its newest checkpoint; restart at step 0 and "
        "keep the old run as NAME_old; or overwrite, which deletes the old run",
    )
    save_every_s: PositiveFloat = _folder(
        120.0, "seconds between checkpoints; one is always saved at the end", checkpoint_resets=(False,)
    )
    save_every_env_steps: PositiveInt | None = _folder(None, "environment steps between additional checkpoints")
    keep_checkpoints: PositiveInt = _folder(2, "how many of the newest checkpoints are kept")
    save_milestones_s: PositiveFloat | None = _folder(
        None, "seconds between checkpoints in checkpoints/milestones, which are never deleted"
    )
    save_best_metric: Literal["auto", "none", "eval", "train"] = _folder(
        "auto",
        "keep the checkpoint with the best mean return of an evaluation (eval) or of the last 100 training episodes "
        "(train) in checkpoints/best; auto takes eval where eval_every_env_steps is set",
    )
    checkpoint_resets: bool = _folder(
        False,
        "serial mode: at every checkpoint of save_every_env_steps, reset environments and random numbers to a state "
        "that follows from the seed and the steps; a resumed run then equals an uninterrupted one to the bit",
    )
    report_every_s: PositiveFloat | None = _folder(
        None,
        "seconds between records in TensorBoard and metrics.jsonl; by default 4 % of the time so far, at least "
        "one dataset and 0.1 s, and at most 5 s",
    )
    init_from: PathText | None = _folder(
        None,
        "run or checkpoint, by path, name or hf://user/name, whose weights, statistics and optimizer to start from, "
        "at step 0; with several policies a run, each policy from the one with its number",
    )
