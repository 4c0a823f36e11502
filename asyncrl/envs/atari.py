"""Atari games of the Arcade Learning Environment with the usual preprocessing (extra `atari`).

Observations are four frames of 84 x 84 grey bytes; an action lasts four frames; a game starts with up to 30 frames
without an action. In training a lost life ends the episode, and the game continues; an evaluation plays whole games.
Rewards are unchanged; training clips them (`reward_clip`). ALE's vectorized environment returns identical data.
This is so for every id of a game, `BreakoutNoFrameskip-v4` too, and for a function that returns a game's raw frames.

Source: Mnih et al. 2015, Human-level control through deep reinforcement learning; Machado et al. 2018, Revisiting the
Arcade Learning Environment, for what the ids ending in -v5 mean (an action sticks with probability 0.25).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, MaxAndSkipObservation

_FRAMES = 4
_FRAMESKIP = 4
_NOOP_MAX = 30
_ID_OF_GAME = re.compile(r"ALE/.*|[A-Z]\w*(NoFrameskip|Deterministic)(-v\d+)?|[A-Z]\w*-ram(NoFrameskip)?(-v\d+)?")
_MEMORY = re.compile(r"(?:ALE/)?(\w+?)-ram(?:NoFrameskip|Deterministic)?(?:-v\d+)?")


def looks_like_game(registered_id: str) -> bool:
    """Whether an id can only be that of a game; ids such as `Breakout-v4` have no mark."""
    return _ID_OF_GAME.fullmatch(registered_id) is not None


def game_of_memory(registered_id: str) -> str | None:
    """The game whose memory an id of earlier versions observes, such as `Breakout-ram-v4`; None for other ids."""
    named = _MEMORY.fullmatch(registered_id)
    return None if named is None else f"ALE/{named[1]}-v5"


def is_game(registered: EnvSpec | None) -> bool:
    """Whether a registered id is that of a game."""
    return registered is not None and str(registered.entry_point).startswith("ale_py.")


def observes_memory(registered: EnvSpec | None, env_kwargs: Mapping[str, Any]) -> bool:
    """Whether a game's observations are its memory, which has no frames to preprocess."""
    return {**({} if registered is None else registered.kwargs), **env_kwargs}.get("obs_type") == "ram"


def id_of_game(env: gymnasium.Env[Any, Any]) -> str | None:
    """The id `ALE/Name-v5` of the game inside an environment; None if it is not a game."""
    game: Any = env.unwrapped
    is_of_ale = type(game).__module__.partition(".")[0] == "ale_py"
    return f"ALE/{game._game.title().replace('_', '')}-v5" if is_of_ale else None


def has_raw_frames(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether an environment is a game whose frames no wrapper has changed."""
    if id_of_game(env) is None:
        return False
    space = env.observation_space
    return space == env.unwrapped.observation_space and len(space.shape or ()) > 1


def skipping_wrapper(env: gymnasium.Env[Any, Any]) -> str | None:
    """A wrapper that repeats actions, or that may, because its `step` is not one of Gymnasium's; None without one."""
    while isinstance(env, gymnasium.Wrapper):
        is_known = type(env).step.__module__.partition(".")[0] == "gymnasium"
        if not is_known or isinstance(env, (AtariPreprocessing, MaxAndSkipObservation)):
            return type(env).__name__
        env = env.env
    return None


def inner_kwargs(env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for the game inside `Preprocessed`, which skips the frames."""
    return {**{name: value for name, value in env_kwargs.items() if name != "noop_max"}, "frameskip": 1}


class Preprocessed(FrameStackObservation[Any, Any, Any]):
    """The usual preprocessing of a game with raw frames.

    Where the game skips frames itself, because the user's function has made it so, no more are skipped.

    Attributes:
        game: the environment inside.
    """

    def __init__(self, game: gymnasium.Env[Any, Any], env_kwargs: Mapping[str, Any]) -> None:
        self.game = game
        skips_itself = game.unwrapped._frameskip != 1  # type: ignore[attr-defined]
        frames = AtariPreprocessing(
            game,
            noop_max=env_kwargs.get("noop_max", _NOOP_MAX),
            frame_skip=1 if skips_itself else env_kwargs.get("frameskip", _FRAMESKIP),
        )
        super().__init__(frames, _FRAMES, padding_type="zero")

    @property
    def frames_per_step(self) -> int:
        """Frames of the game in one step; 1 if the game draws the number for each step."""
        of_game = self.unwrapped._frameskip  # type: ignore[attr-defined]
        skipped: int = self.env.frame_skip  # type: ignore[attr-defined]
        return skipped * of_game if isinstance(of_game, int) else 1


def preprocessed(
    game: gymnasium.Env[Any, Any], env_kwargs: Mapping[str, Any], in_training: bool
) -> gymnasium.Env[Any, Any]:
    """Wraps a game with raw frames; `in_training`, a lost life ends an episode."""
    env = Preprocessed(game, env_kwargs)
    return EpisodeOfOneLife(env) if in_training else env


def vectorized_kwargs(env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with which ALE's vectorized environment behaves as `preprocessed` in training."""
    usual = {"frameskip": _FRAMESKIP, "noop_max": _NOOP_MAX, "stack_num": _FRAMES, "num_threads": 1}
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
