"""What settings and an environment's spaces make probably a mistake, and whether training returns can be compared."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl import native
from asyncrl.config.device_choice import knows_networks
from asyncrl.config.errors import Problem
from asyncrl.config.hooks import hooks, load
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec, ObservationPart, has_shape_of_image
from asyncrl.modes.choice import mode_of

_LARGEST_OF_PIXELS = (1.0, 255.0)


def find_spec_warnings(config: TrainConfig, plan: ResourcePlan, spec: EnvSpec) -> Iterator[Problem]:
    """What is probably a mistake with the environment's spaces."""
    yield from mode_of(plan).find_spec_warnings(config, plan, spec)
    steps, longest = (config.save_every_env_steps or 0) // plan.num_envs, spec.max_episode_steps
    if config.checkpoint_resets and config.save_every_env_steps is not None and longest is not None and steps < longest:
        text = (
            f"--checkpoint_resets=True restarts all episodes every {config.save_every_env_steps} steps, after {steps} "
            f"in each of {plan.num_envs} environments, but an episode of {spec.env_id} may last {longest}."
        )
        fitting = f"--save_every_env_steps={10 * plan.num_envs * longest}"
        yield Problem(("save_every_env_steps", "checkpoint_resets"), text, (fitting,))
    if not config.atari_preprocessing and not spec.made_of.startswith("ALE/"):
        text = f"--atari_preprocessing=False has no effect: {spec.env_id} is not a game of Atari."
        yield Problem(("atari_preprocessing", "env"), text)
    evaluate = ("--eval_every_env_steps=100000",) if config.eval_every_env_steps is None else ()
    is_not_chosen = config.save_best_metric == "auto" and evaluate
    end = ", and no best checkpoint is chosen by them." if is_not_chosen else "."
    if _misses_first_observations(config, spec):
        text = (
            f"{spec.env_id} resets its environments within a step (autoreset mode SAME_STEP or DISABLED). After a "
            f"truncation a recurrent policy misses the first observation, so training returns differ from what the "
            f"policy reaches{end}"
        )
        yield Problem(("env_backend", "use_rnn", "save_best_metric"), text, (*evaluate, "--env_backend=gym"))
    elif is_not_chosen:
        yield from _misleading_by_features(config, spec)
    like_images = [part for kind in spec.kinds for part in kind.observation.parts if _is_like_image(part)]
    if like_images:
        keys = ",".join(dict.fromkeys(part.name for part in like_images))
        text = (
            f"{spec.env_id} has {like_images[0]}, with the shape and the bounds of an image. It is not uint8, so it is "
            f"read as numbers, without convolutions; if it is an image, give --image_keys={keys}."
        )
        yield Problem(("image_keys", "env"), text)
    if suits_native_core(config, plan, spec) and native.kernels() is None:
        text = (
            "The native core is not built, so NumPy computes updates and actions of this perceptron, up to five times "
            "slower. Install a C compiler and then asyncrl again."
        )
        yield Problem((), text)


def suits_native_core(config: TrainConfig, plan: ResourcePlan, spec: EnvSpec) -> bool:
    """Whether the native core, if it is built, trains the networks, or at least acts with them."""
    is_perceptron = not config.use_rnn and not any(kind.observation.has_images for kind in spec.kinds)
    is_known = is_perceptron and knows_networks(config) and not config.squashes
    is_known &= len(config.encoder_mlp_layers) <= native.MOST_LAYERS
    return is_known and not config.is_off_policy and plan.device == "cpu"


def training_returns_mislead(config: TrainConfig, spec: EnvSpec) -> bool:
    """Whether returns in training say less about a policy than evaluations do."""
    return _misses_first_observations(config, spec) or any(_misleading_by_features(config, spec))


def _misleading_by_features(config: TrainConfig, spec: EnvSpec) -> Iterator[Problem]:
    """What features do to returns in training so that these choose no best checkpoint."""
    found = (load(place)(config, spec) for place in hooks("MISLEADING").values())
    return (problem for problem in found if problem is not None)


def _misses_first_observations(config: TrainConfig, spec: EnvSpec) -> bool:
    """Whether a recurrent state misses the first observation after a truncation (see `VectorEnvGroup`)."""
    return config.use_rnn and spec.resets_within_step


def _is_like_image(part: ObservationPart) -> bool:
    """Whether numbers may be meant as an image: three or more axes, and bounds of 1 or 255."""
    is_array = part.kind == "numbers" and not part.is_image and len(part.shape) > 2
    return is_array and has_shape_of_image(part.shape, part.channels) and part.largest in _LARGEST_OF_PIXELS
