"""Settings: what a run tolerates."""

from __future__ import annotations

from typing import Literal

from asyncrl.config.sections.section import SINGLE_ENVS, Section, section
from asyncrl.config.value_types import NonNegativeInt, PositiveFloat, PositiveInt

_failures = section("supervision")


class FailureSettings(Section):
    """What a run tolerates."""

    env_start_timeout: PositiveFloat = _failures(
        300.0,
        "seconds in which an environment is made, reset and stepped for the first time: in the check before the run, "
        "and in each rollout worker",
    )
    env_step_timeout: PositiveFloat = _failures(
        180.0,
        "kill and restart a rollout worker that made no environment step for this many seconds, except while it "
        "waited for other processes",
        serial_mode=(False,),
    )
    max_restarts: NonNegativeInt = _failures(
        10, "restarts of workers within restart_window_s; one more ends the run", serial_mode=(False,)
    )
    max_env_failures: NonNegativeInt = _failures(
        10,
        "failures of environments of one worker within restart_window_s; one more ends the run. Before the run's first "
        "finished episode the first failure ends it, and any failure of an environment of tensors",
        env_backend=SINGLE_ENVS,
    )
    restart_window_s: PositiveFloat = _failures(600.0, "seconds for which max_restarts and max_env_failures count")
    max_learner_restarts: NonNegativeInt = _failures(
        0, "how often the run resumes by itself after its learner died", serial_mode=(False,)
    )
    nan_policy: Literal["drop", "fail"] = _failures(
        "drop",
        "on a step whose reward or observation is NaN or infinite: drop it and reset the environment, or fail the run; "
        "an environment of tensors always fails it",
        env_backend=SINGLE_ENVS,
    )
    max_skipped_steps: PositiveInt = _failures(
        10, "end the run after this many optimizer steps in a row were skipped for NaN or infinity in loss or gradient"
    )
