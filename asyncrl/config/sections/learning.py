"""Settings: what all algorithms have in common."""

from __future__ import annotations

from typing import Literal

from asyncrl.config.sections.section import ADAPTIVE, ON_BATCHES, Section, section
from asyncrl.config.value_types import Beta, Fraction, NonNegativeFloat, PositiveFloat, PositiveInt

_samples = section("samples")
_learning = section("learning")


class LearningSettings(Section):
    """What all algorithms have in common."""

    batch_size: PositiveInt = _samples(128, "samples in a minibatch", algo=ON_BATCHES)
    reward_scale: PositiveFloat = _samples(1.0, "factor on rewards before training")
    reward_clip: PositiveFloat | None = _samples(None, "clip scaled rewards to plus or minus this value")

    gamma: Fraction = _learning(0.99, "discount factor")
    learning_rate: NonNegativeFloat = _learning(3e-4, "Adam's learning rate at the start")
    lr_schedule: Literal["constant", "linear_decay", "kl_adaptive_minibatch", "kl_adaptive_epoch"] = _learning(
        "constant", "how the learning rate changes; linear_decay reaches 0 at the end of the run"
    )
    lr_schedule_kl_threshold: PositiveFloat = _learning(
        0.008, "target KL divergence of the adaptive schedules", lr_schedule=ADAPTIVE
    )
    lr_adaptive_min: PositiveFloat = _learning(
        1e-6, "lower limit of the learning rate in the adaptive schedules", lr_schedule=ADAPTIVE
    )
    lr_adaptive_max: PositiveFloat = _learning(
        1e-2, "upper limit of the learning rate in the adaptive schedules", lr_schedule=ADAPTIVE
    )
    adam_eps: PositiveFloat = _learning(1e-6, "Adam's epsilon")
    adam_beta1: Beta = _learning(0.9, "Adam's first momentum coefficient", hogwild_optimizer=("adam",))
    adam_beta2: Beta = _learning(0.999, "Adam's second momentum coefficient", hogwild_optimizer=("adam",))
    max_grad_norm: NonNegativeFloat = _learning(0.5, "clip the norm of the gradient to this; 0 means no clipping")
    scale_lr: Literal["none", "linear", "sqrt"] = _learning(
        "none", "multiply learning_rate by the number of ranks that train together, or by its square root"
    )
    normalize_input: bool = _learning(True, "normalize observations with running statistics", fixed="run")
