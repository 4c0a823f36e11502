"""Fakes of the interfaces that simulators document: a counter in each environment, which ends by itself or in time."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from torch import Tensor

LIMIT, END = 5, 1.0


class _Counters:
    """Environments that count their steps; one whose action is positive terminates."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.count = torch.zeros(num_envs)

    def advance(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the counts, who terminated and who is out of time. Nobody is reset."""
        assert isinstance(actions, Tensor) and actions.shape == (self.num_envs, 1)
        self.count = self.count + 1
        terminated = actions[:, 0] > 0
        return self.count.clone(), terminated, self.count >= LIMIT


class FakeIsaacLabEnv(_Counters):
    """`ManagerBasedRLEnv`: groups of observations, no final observation, `extras["log"]` of the last reset."""

    max_episode_length = LIMIT

    def __init__(self, num_envs: int, has_critic: bool = True) -> None:
        super().__init__(num_envs)
        groups = {"policy": spaces.Box(-np.inf, np.inf, (1,))}
        if has_critic:
            groups["critic"] = spaces.Box(-np.inf, np.inf, (2,))
        self.single_observation_space = spaces.Dict(groups)
        self.single_action_space = spaces.Box(-np.inf, np.inf, (1,))
        self.extras: dict[str, Any] = {}
        self.obs_buf: dict[str, Tensor] = {}
        self.is_closed = False

    @property
    def unwrapped(self) -> FakeIsaacLabEnv:
        return self

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        self.count = torch.zeros(self.num_envs)
        self.obs_buf = self._observe()
        return self.obs_buf, self.extras

    def step(self, action: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        counts, terminated, time_outs = self.advance(action)
        ended = terminated | time_outs
        if ended.any():
            self.count[ended] = 0.0
            self.extras["log"] = {"Episode_Reward/steps": counts[ended].mean(), "Episode_Termination/time_out": 1.5}
        for name, values in self._observe().items():
            self.obs_buf[name].copy_(values)  # it may reuse its memory
        return self.obs_buf, counts, terminated, time_outs, self.extras

    def close(self) -> None:
        self.is_closed = True

    def _observe(self) -> dict[str, Tensor]:
        groups = {"policy": self.count[:, None].clone(), "critic": self.count[:, None].repeat(1, 2)}
        return {name: groups[name] for name in self.single_observation_space.spaces}


class _Space:
    """mjlab's spaces are no spaces of Gymnasium."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class FakeMjlabEnv(FakeIsaacLabEnv):
    """`ManagerBasedRlEnv`: the interface of Isaac Lab, with spaces of its own."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        box = _Space(shape=(1,), low=-np.inf, high=np.inf)
        self.single_observation_space: Any = _Space(
            spaces={"policy": box, "critic": _Space(shape=(2,), low=-np.inf, high=np.inf)}
        )
        self.single_action_space: Any = box


class FakeManiSkillVectorEnv(VectorEnv[Any, Any, Any]):
    """`ManiSkillVectorEnv`: tensors, reset within the step, with the final observation and infos where one ended."""

    def __init__(self, env: FakeManiSkillEnv, auto_reset: bool = True) -> None:
        assert auto_reset
        self._env, self.num_envs, self.spec = env, env.num_envs, None
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (1,))
        self.single_action_space = spaces.Box(-1.0, 1.0, (1,))

    @property
    def unwrapped(self) -> Any:
        return self._env

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Tensor, dict[str, Any]]:
        self._env.count = torch.zeros(self.num_envs)
        return self._env.count[:, None].clone(), {}

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        counts, terminated, truncated = self._env.advance(actions)
        infos: dict[str, Any] = {"success": counts == 3, "elapsed_steps": counts}
        ended = terminated | truncated
        if ended.any():
            self._env.count[ended] = 0.0
            infos = {"final_info": infos, "final_observation": counts[:, None], "_final_info": ended}
        return self._env.count[:, None].clone(), counts, terminated, truncated, infos

    def close(self, **kwargs: Any) -> None:
        pass


class FakeManiSkillEnv(_Counters):
    """`BaseEnv`, as `gymnasium.make` returns it."""

    unwrapped = None


def install_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the fakes look like classes of the simulators' packages."""
    for kind, package in (
        (FakeIsaacLabEnv, "isaaclab.envs.manager_based_rl_env"),
        (FakeMjlabEnv, "mjlab.envs.manager_based_rl_env"),
        (FakeManiSkillEnv, "mani_skill.envs.sapien_env"),
        (FakeManiSkillVectorEnv, "mani_skill.vector.wrappers.gymnasium"),
    ):
        monkeypatch.setattr(kind, "__module__", package)
    wrappers = types.ModuleType("mani_skill.vector.wrappers.gymnasium")
    wrappers.ManiSkillVectorEnv = FakeManiSkillVectorEnv  # type: ignore[attr-defined]
    for name in ("mani_skill", "mani_skill.vector", "mani_skill.vector.wrappers"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "mani_skill.vector.wrappers.gymnasium", wrappers)


def make_isaac_like(num_envs: int) -> VectorEnv[Any, Any, Any]:
    from asyncrl.contrib.simulators.wrapping import wrap

    return wrap("isaaclab", FakeIsaacLabEnv(num_envs))
