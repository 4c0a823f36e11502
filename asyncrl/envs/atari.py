"""Atari games of the Arcade Learning Environment with the usual preprocessing (extra `atari`).

Observations are four frames of 84 x 84 grey bytes; an action lasts four frames; a game starts with up to 30 frames
without an action. In training a lost life ends the episode, and the game continues; an evaluation plays whole games.
Rewards are unchanged; training clips them (`reward_clip`). ALE's vectorized environment returns identical data.

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
    return env_id.startswith("ALE/")


def inner_kwargs(env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for the game inside `preprocessed`, which skips the frames."""
    return {**{name: value for name, value in env_kwargs.items() if name != "noop_max"}, "frameskip": 1}


def preprocessed(
    game: gymnasium.Env[Any, Any], env_kwargs: Mapping[str, Any], in_training: bool
) -> gymnasium.Env[Any, Any]:
    """Wraps a game that was made with `inner_kwargs(env_kwargs)`; `in_training`, a lost life ends an episode."""
    env: gymnasium.Env[Any, Any] = AtariPreprocessing(
        game, noop_max=env_kwargs.get("noop_max", _NOOP_MAX), frame_skip=env_kwargs.get("frameskip", ATARI_FRAMESKIP)
    )
    env = FrameStackObservation(env, _FRAMES, padding_type="zero")
    return EpisodeOfOneLife(env) if in_training else env


def vectorized_kwargs(env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with which ALE's vectorized environment behaves as `preprocessed` in training."""
    usual = {"frameskip": ATARI_FRAMESKIP, "noop_max": _NOOP_MAX, "stack_num": _FRAMES, "num_threads": 1}
    fixed = {
        "life_loss_info": True,  # a lost life ends an episode, and the game continues
        "reward_clipping": False,
        "use_fire_reset": False,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }
    return {**usual, **env_kwargs, **fixed}


class EpisodeOfOneLife(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Ends an episode when a life is lost; the next reset continues the game unless it is over."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._lives = 0
        self._last_obs: Any = None
        self._continues = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts the next life, or the next game; with a seed always a game."""
        if self._continues and seed is None:
            self._continues = False
            return self._last_obs, {}
        obs, info = self.env.reset(seed=seed, options=options)
        self._lives, self._continues = self._lives_left(), False
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        lives = self._lives_left()
        is_lost, self._lives = lives < self._lives, lives
        self._continues = is_lost and not (terminated or truncated)
        self._last_obs = obs
        return obs, reward, terminated or is_lost, truncated, info

    def _lives_left(self) -> int:
        return int(self.env.unwrapped.ale.lives())  # type: ignore[attr-defined]
