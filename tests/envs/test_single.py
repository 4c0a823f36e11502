"""What is there in its vectorized form alone is played as one environment, in each of Gymnasium's autoreset modes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from probe_envs import EndlessReward, Sentinel
from tensor_envs import AsTensors

from asyncrl.envs.factory import make_env
from asyncrl.envs.interface import give_training_info
from asyncrl.envs.single import SingleEnv
from asyncrl.envs.tensors import SingleTensorEnv


@pytest.mark.parametrize("of_tensors", [False, True])
@pytest.mark.parametrize("terminates", [False, True])
@pytest.mark.parametrize("mode", AutoresetMode)
def test_every_reset_begins_an_episode(mode: AutoresetMode, terminates: bool, of_tensors: bool) -> None:
    vectorized = SyncVectorEnv([lambda: EndlessReward(terminates, length=3)], autoreset_mode=mode)
    env = SingleTensorEnv(AsTensors(vectorized), "X") if of_tensors else SingleEnv(vectorized, "X")
    for episode in range(3):
        observation, _ = env.reset(seed=2**31 + 5 if episode == 0 else None)
        assert isinstance(observation, np.ndarray) and observation.tolist() == [1.0, 0.0]
        results = [env.step(np.int64(0))[1:4] for _ in range(3)]
        assert results == [(-5.0, False, False), (1.0, False, False), (1.0, terminates, not terminates)]
    env.close()


def test_actions_reach_the_environment_as_they_are() -> None:
    class Echo(Sentinel):
        def __init__(self) -> None:
            super().__init__(run_seed=0)
            self._number = 9

    env = SingleEnv(SyncVectorEnv([Echo]), "X")
    env.reset()
    action = np.array([0.1, -0.2], np.float32)
    assert env.step(action)[1] == pytest.approx(Sentinel.echo(action))

    class Nested(EndlessReward):
        def __init__(self) -> None:
            super().__init__(terminates=False)
            self.action_space = Dict({"a": Discrete(5)})

        def step(self, action):  # type: ignore[no-untyped-def]
            obs, _, *rest = super().step(0)
            return obs, float(action["a"]), *rest

    nested = SingleEnv(SyncVectorEnv([Nested]), "X")
    nested.reset()
    assert nested.step({"a": 3})[1] == 3.0


def test_methods_of_the_vectorized_environment_are_found() -> None:
    class Told(SyncVectorEnv):
        def set_training_info(self, info: dict[str, Any]) -> None:
            self.info = info

    vectorized = Told([lambda: EndlessReward(terminates=True)])
    give_training_info(SingleEnv(vectorized, "X"), {"level": 2})
    assert vectorized.info == {"level": 2}


def test_any_name_of_a_function_is_an_id() -> None:
    assert SingleEnv(SyncVectorEnv([lambda: EndlessReward(True)]), "__main__:main.<locals>.<lambda>").spec is not None


def test_infos_of_the_last_step_are_passed_on() -> None:
    class Telling(EndlessReward):
        def step(self, action):  # type: ignore[no-untyped-def]
            *result, info = super().step(action)
            return *result, {**info, "is_success": True, "episode_extra_stats": {"laps": 3.0}}

    env = SingleEnv(SyncVectorEnv([lambda: Telling(terminates=True, length=3)]), "X")
    env.reset()
    infos = [env.step(np.int64(0))[4] for _ in range(3)]
    assert infos[:2] == [{}, {}]
    assert infos[2] == {"episode_extra_stats": {"laps": 3.0, "is_success": True}}


def test_an_id_without_a_single_environment_is_played_by_its_vectorized_one() -> None:
    env = make_env("tensor_envs:ArrayCartPole-v0")
    first, _ = env.reset(seed=4)
    again, _ = env.reset(seed=4)
    np.testing.assert_array_equal(first, again)
    assert env.step(1)[1] == 1.0
