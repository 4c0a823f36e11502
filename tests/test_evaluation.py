import dataclasses

import gymnasium
import numpy as np
import pytest
import torch

from asyncrl.config.schema import TrainConfig
from asyncrl.envs.errors import EnvironmentFailed
from asyncrl.envs.factory import make_env
from asyncrl.envs.spaces import read_spec
from asyncrl.evaluation import episodes as evaluation
from asyncrl.evaluation.episodes import EvaluationResult, evaluate, student_t_975
from asyncrl.inference.policy import Policy
from asyncrl.models.actor_critic import ActorCritic, ActResult


class EchoEnv(gymnasium.Env):
    """Shows a number and pays it if the action names it; lasts 1 step or 40, as the episode's seed decides.

    Its observation is one array that it changes in place.
    """

    observation_space = gymnasium.spaces.Box(0, 10, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(10, start=100)

    def __init__(self, fails_at=None, error="ZeroDivisionError"):
        self._obs = np.zeros(1)
        self._fails_at = fails_at
        self._error = {"ZeroDivisionError": ZeroDivisionError, "SystemExit": SystemExit}[error]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = int(self.np_random.choice([1, 40]))
        self._obs[0] = self.np_random.integers(10)
        return self._obs, {}

    def step(self, action):
        if self._left == self._fails_at:
            raise self._error("wheels came off")
        assert 100 <= action < 110
        reward = float(action - 100 == self._obs[0])
        self._left -= 1
        self._obs[0] = self.np_random.integers(10)
        return self._obs, reward, self._left == 0, False, {}


class Reader:
    """A model that reads the number and names it."""

    statistics = torch.zeros(1)
    rnn_state_size = 0

    def act(self, obs, generator, rnn_state, deterministic):
        action = obs[:, 0].long()
        return ActResult(action, obs[:, 0], obs[:, 0], obs, rnn_state)


def reader(**settings):
    spec, config = setup(**settings)
    return Policy(Reader(), spec, config)


@pytest.fixture(scope="module", autouse=True)
def registered():
    gymnasium.register("EvaluationEcho-v0", EchoEnv)
    yield
    del gymnasium.registry["EvaluationEcho-v0"]


def setup(**settings):
    config = TrainConfig(env="EvaluationEcho-v0", **settings)
    env = make_env(config.env, config.env_kwargs)
    return read_spec(env, config.env), config


@pytest.mark.parametrize("num_envs", [1, 3, 50])
def test_every_episode_counts_however_long_and_each_environment_gets_its_own_action(num_envs):
    policy = reader(reward_scale=0.1, reward_clip=0.01)
    result = evaluate(policy, episodes=30, num_envs=num_envs, deterministic=True)
    alone = evaluate(policy, episodes=30, num_envs=1, deterministic=True)
    assert result == alone
    # The reward is 1 at every step only if no row was mixed up, and neither scale nor clip was applied.
    assert result.returns == result.lengths
    assert set(result.lengths) == {1, 40}


def test_an_environment_of_tensors_is_made_once():
    policy = reader()
    policy.spec = dataclasses.replace(policy.spec, gives_tensors=True)
    made = []
    result = evaluate(policy, episodes=5, num_envs=8, make=lambda idx: (made.append(idx), EchoEnv())[1])
    assert made == [0] and len(result.returns) == 5


def test_draws_follow_the_seed_and_the_policy_stays_as_it_was():
    spec, config = setup()
    model = ActorCritic(spec, config)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first, again, other = (evaluate(Policy(model, spec, config, seed), episodes=8, num_envs=4) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("error", ["ZeroDivisionError", "SystemExit"])
def test_an_exception_of_the_environment_names_place_and_cause(error):
    policy = reader(env_kwargs={"fails_at": 37, "error": error})
    with pytest.raises(EnvironmentFailed, match=r"failed in step, episode \d+, at its step 3:\n(.|\n)*wheels came off"):
        evaluate(policy, episodes=20, deterministic=True)


@pytest.mark.parametrize(
    ("at_end", "wrong", "what"),
    [
        (False, {1: None}, r"at its step 3: step\(\) returned reward = 'None'; Gymnasium expects a number"),
        (True, {4: None}, r"step\(\) returned info = 'None'; Gymnasium expects a dict"),
        (True, {4: {"is_success": "yes"}}, r"returned info\[.is_success.\] = 'yes'; it must be True, False or"),
        (True, {4: {"episode_extra_stats": 3}}, r"returned info\[.episode_extra_stats.\] = '3'; it must be a dict"),
        (False, {5: "more"}, r"at its step 3: step\(\) returned 6 values \(.*\); Gymnasium expects 5 values: "),
    ],
)
def test_a_result_that_cannot_be_read_is_named_with_its_place(at_end, wrong, what):
    class Wrong(EchoEnv):
        def step(self, action):
            is_third = self._left == 37
            result = dict(enumerate(super().step(action)))
            is_wrong = result[2] if at_end else is_third
            return tuple({**result, **wrong}.values() if is_wrong else result.values())

    with pytest.raises(EnvironmentFailed, match=rf"returned a wrong value, episode \d+, .*{what}") as caught:
        evaluate(reader(), episodes=20, deterministic=True, make=lambda idx: Wrong())
    assert "\n" not in str(caught.value)


def test_the_interval_is_that_of_students_t():
    result = EvaluationResult(returns=(1.0, 2.0, 3.0, 4.0), lengths=(1, 2, 3, 6))
    half = 3.18245 * 1.290994 / 2
    assert result.mean_ep_length == 3.0
    assert result.std_reward == pytest.approx(1.290994, rel=1e-5)
    assert result.ci95 == pytest.approx((2.5 - half, 2.5 + half), rel=1e-5)
    assert EvaluationResult((5.0,), (1,)).ci95 is None


@pytest.mark.parametrize(
    ("degrees_of_freedom", "quantile"), [(1, 12.7062), (2, 4.30265), (5, 2.57058), (10, 2.22814), (99, 1.98422)]
)
def test_quantiles_of_students_t_are_those_of_the_tables(degrees_of_freedom, quantile):
    assert student_t_975(degrees_of_freedom) == pytest.approx(quantile, rel=1e-5)


def test_an_environment_that_cannot_be_made_is_a_failure_of_the_environment(monkeypatch):
    def fail(config):
        raise ZeroDivisionError("no wheels")

    monkeypatch.setattr(evaluation, "make_run_env", fail)
    with pytest.raises(EnvironmentFailed, match=r"(?s)could not be made:\n.*no wheels"):
        evaluate(reader(), episodes=1)
