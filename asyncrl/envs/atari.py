"""Atari games of the Arcade Learning Environment, as they are usually learned from (extra `atari`).

Four frames of 84 x 84 grey bytes, one action for four frames, up to 30 frames without an action at a game's start. In
training a lost life ends the episode, and the game goes on; an evaluation plays whole games. Rewards stay the game's
own: `reward_clip` is what training makes of them. ALE's vectorized environment gives the same to the bit.

Source: Mnih et al. 2015, Human-level control through deep reinforcement learning; Machado et al. 2018, Revisiting the
Arcade Learning Environment, for what the ids ending in -v5 mean (an action sticks with probability 0.25).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from asyncrl.config.schema import ATARI_FRAMESKIP

_FRAMES = 4
_NOOP_MAX = 30


def is_atari(env_id: str) -> bool:
    """Whether the id is that of a game."""
    return env_id.startswith("ALE/")


def inner_kwargs(env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for the game inside `preprocessed`, which skips frames itself."""
    return {**{name: value for name, value in env_kwargs.items() if name != "noop_max"}, "frameskip": 1}


def preprocessed(
    game: gymnasium.Env[Any, Any], env_kwargs: Mapping[str, Any], in_training: bool
) -> gymnasium.Env[Any, Any]:
    """The game as a policy sees it.

    Args:
        game: made with `inner_kwargs(env_kwargs)`.
        env_kwargs: `frameskip` and `noop_max` may differ from what is usual.
        in_training: end an episode where a life is lost.
    """
    env: gymnasium.Env[Any, Any] = AtariPreprocessing(
        game, noop_max=env_kwargs.get("noop_max", _NOOP_MAX), frame_skip=env_kwargs.get("frameskip", ATARI_FRAMESKIP)
    )
    env = FrameStackObservation(env, _FRAMES, padding_type="zero")
    return EpisodeOfOneLife(env) if in_training else env


def vectorized_kwargs(env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with which ALE's vectorized environment does the same as `preprocessed` in training."""
    usual = {"frameskip": ATARI_FRAMESKIP, "noop_max": _NOOP_MAX, "stack_num": _FRAMES, "num_threads": 1}
    fixed = {
        "life_loss_info": True,  # says that a life is lost as the end of an episode, but goes on with the game
        "reward_clipping": False,
        "use_fire_reset": False,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }
    return {**usual, **env_kwargs, **fixed}


class EpisodeOfOneLife(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Says that an episode is over where a life is lost; the next reset goes on with the game unless that is over."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        """Takes a game, with whatever wrappers there are around it."""
        super().__init__(env)
        self._lives = 0
        self._last_obs: Any = None
        self._goes_on = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts the next life, or the next game; with a seed always a game."""
        if self._goes_on and seed is None:
            self._goes_on = False
            return self._last_obs, {}
        obs, info = self.env.reset(seed=seed, options=options)
        self._lives, self._goes_on = self._lives_left(), False
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Takes a step of the game."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        lives = self._lives_left()
        is_lost, self._lives = lives < self._lives, lives
        self._goes_on = is_lost and not (terminated or truncated)
        self._last_obs = obs
        return obs, reward, terminated or is_lost, truncated, info

    def _lives_left(self) -> int:
        return int(self.env.unwrapped.ale.lives())  # type: ignore[attr-defined]
