"""Settings: evaluations and videos during training."""

from __future__ import annotations

from asyncrl.config.sections.section import IS_SET, Section, section
from asyncrl.config.value_types import Auto, NonNegativeInt, PositiveInt

_evaluation = section("evaluation")


class EvaluationSettings(Section):
    """Evaluations and videos during training."""

    eval_every_env_steps: PositiveInt | None = _evaluation(
        None, "environment steps between evaluations of the policy, or of each policy, which run in a separate process"
    )
    eval_episodes: PositiveInt = _evaluation(10, "episodes of an evaluation", eval_every_env_steps=IS_SET)
    eval_num_envs: NonNegativeInt | Auto = _evaluation(
        "auto",
        "environments of tensors: how many of the training simulator, beside those that train, play evaluations; auto "
        "is eval_episodes, and 0 makes a second simulator for one environment",
        eval_every_env_steps=IS_SET,
        env_backend=("tensor",),
    )
    eval_deterministic: bool = _evaluation(
        False, "evaluate and record with the deterministic actions instead of sampled ones"
    )
    video_every_env_steps: PositiveInt | None = _evaluation(
        None,
        "environment steps between videos of the policy, or of each policy, in videos/: one episode, recorded by a "
        "process of its own; the first is of the untrained policy, the last of the final one",
    )
    video_length: PositiveInt = _evaluation(1000, "longest video, in environment steps", video_every_env_steps=IS_SET)
