"""A policy taken away: found, loaded without its environment, and acting as the one that was evaluated."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from layouts import vector_observation

import asyncrl
from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.observations import space_text
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.envs.spec import BoxAction, DiscreteAction, EnvSpec
from asyncrl.inference.policy import Policy
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.factory import make_acting_model
from asyncrl.storage import checkpoint
from asyncrl.storage.run_folder import RunFolder

CHOICE = EnvSpec("CartPole-v1", vector_observation(4), DiscreteAction(2, 0), 500)
BOX = EnvSpec(
    "gone:Gone-v0",
    vector_observation(3, "float64"),
    BoxAction((2, 1), (-0.5, -1.0), (0.5, float("inf")), "float32"),
    None,
)


def save(folder: Path, spec: EnvSpec, bias: float = 0.0, env_steps: int = 100) -> Policy:
    """Writes a checkpoint of a policy and returns the policy."""
    config = TrainConfig(env=spec.env_id, encoder_mlp_layers=[8])
    model = ActorCritic(spec, config).eval()
    with torch.no_grad():
        model.statistics.copy_(torch.rand_like(model.statistics) + 0.5)
        model.policy_head.weight.normal_()
        model.policy_head.bias[0] = bias
    state = {"config": config.model_dump(mode="json"), "spec": spec.to_data()}
    checkpoint.save(folder, checkpoint.Checkpoint(model.state_dict(), {}, state), env_steps, keep=5)
    return Policy(model, spec, config, seed=4)


@pytest.mark.parametrize("spec", [CHOICE, BOX], ids=["choice", "box"])
def test_it_acts_as_the_policy_that_was_saved(spec: EnvSpec, tmp_path: Path) -> None:
    saved = save(tmp_path, spec)
    loaded = asyncrl.load_policy(tmp_path / "checkpoint_000000000100", seed=4)
    assert "gone" not in sys.modules
    obs = np.random.default_rng(0).normal(size=(50, spec.observation_size))
    for deterministic in (False, True):
        np.testing.assert_array_equal(loaded.act(obs, deterministic), saved.act(obs, deterministic))
    loaded.reset()
    single = loaded.act(obs[7], deterministic=True)
    np.testing.assert_allclose(single, saved.act(obs, deterministic=True)[7], rtol=1e-5)
    if spec is BOX:
        assert single.shape == (2, 1)
        assert (loaded.act(obs)[:, 0] <= 0.5).all()


@pytest.mark.parametrize("algo", ["ppo", "sac", "td3"])
def test_it_acts_in_the_environments_unit_whatever_the_policys_is(algo: str, tmp_path: Path) -> None:
    spec = EnvSpec("X-v0", vector_observation(3), BoxAction((1,), (0.0,), (100.0,), "float32"), None)
    obs, taken = np.zeros(3, np.float32), {}
    for unit in ("bounds", "raw"):
        config = TrainConfig(env=spec.env_id, algo=algo, action_unit=unit)
        model = make_acting_model(spec, config)
        with torch.no_grad():
            head = model.policy_head.bias if isinstance(model, ActorCritic) else model.mlp.layers()[-1].bias.view(-1)
            head[0] = 0.5
        state = {"config": config.model_dump(mode="json"), "spec": spec.to_data()}
        folder = checkpoint.save(tmp_path / unit, checkpoint.Checkpoint(model.state_dict(), {}, state), 100, keep=5)
        taken[unit] = float(asyncrl.load_policy(folder).act(obs, deterministic=True)[0])
    squashed = pytest.approx(50.0 + 50.0 * np.tanh(0.5))
    wanted = (
        {"bounds": pytest.approx(75.0), "raw": pytest.approx(0.5)} if algo == "ppo" else dict.fromkeys(taken, squashed)
    )
    assert taken == wanted


def test_it_is_shown_with_what_it_was_trained_on_and_for_how_long(tmp_path: Path) -> None:
    save(tmp_path, CHOICE, env_steps=20_480)
    assert repr(asyncrl.load_policy(tmp_path / "checkpoint_000000020480")) == (
        "Policy(CartPole-v1, ppo, 20,480 steps, observations Box((4,), float32), actions Discrete(2))"
    )
    spec = spec_of_spaces(
        spaces.Dict(
            {
                "camera": spaces.Box(0, 255, (16, 16, 3), np.uint8),
                "gear": spaces.Discrete(5, start=-1),
                "inner": spaces.Tuple([spaces.MultiBinary(3), spaces.Box(-1.0, 1.0, (2,), np.float32)]),
            }
        ),
        spaces.Dict({"steer": spaces.Box(-1.0, 1.0, (2,), np.float32), "keys": spaces.MultiDiscrete([2, 3])}),
        "X-v0",
        None,
    )
    assert space_text(spec.observation) == (
        "Dict('camera': Box(0, 255, (16, 16, 3), uint8), 'gear': Discrete(5, start=-1), "
        "'inner': Tuple(MultiBinary(3), Box((2,), float32)))"
    )
    action = spaces.Dict({"steer": spaces.Box(-1.0, 1.0, (2,), np.float32), "keys": spaces.MultiDiscrete([2, 3])})
    assert space_text(spec.action) == repr(action)


def test_predict_acts_with_given_or_kept_states_and_resets_those_of_episodes_that_begin() -> None:
    config = TrainConfig(env=CHOICE.env_id, encoder_mlp_layers=[8], use_rnn=True, rnn_size=6)
    model = make_acting_model(CHOICE, config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(parameter.numel()))
    policy, other = Policy(model, CHOICE, config), Policy(model, CHOICE, config)
    obs = np.random.default_rng(0).normal(size=(3, 2, CHOICE.observation_size)).astype(np.float32)

    actions, first = policy.predict(obs[0], deterministic=True)
    np.testing.assert_array_equal(actions, other.act(obs[0], deterministic=True))
    assert first is not None and first.shape == policy.initial_state(2).shape
    given = first.copy()
    _, kept = policy.predict(obs[1], episode_start=[False, True], deterministic=True)
    np.testing.assert_array_equal(first, given)
    for state in (first, other.predict(obs[0], episode_start=[True, True])[1]):
        other.act(obs[2])  # changes the state that it keeps
        _, again = other.predict(obs[1], state=state, episode_start=[False, True], deterministic=True)
        np.testing.assert_array_equal(again, kept)
    _, fresh = other.step(obs[1], other.initial_state(2), deterministic=True)
    np.testing.assert_allclose(kept[1], fresh[1], rtol=1e-5)
    assert not np.allclose(kept[0], fresh[0], rtol=1e-2)

    _, single = policy.predict(obs[0, 0], episode_start=True)  # another number of environments
    assert single is not None and len(single) == 1
    with pytest.raises(ValueError, match=r"states that predict returned, of shape \(B, 12\), got \(2, 5\)"):
        policy.predict(obs[0], state=np.zeros((2, 5)))
    plain = Policy(make_acting_model(CHOICE, TrainConfig(env=CHOICE.env_id)), CHOICE, TrainConfig(env=CHOICE.env_id))
    actions, nothing = plain.predict(obs[0], state=None, episode_start=[True, False])
    assert actions.shape == (2,) and nothing is None


def test_stable_baselines3_evaluates_it() -> None:
    evaluation = pytest.importorskip("stable_baselines3.common.evaluation")
    from stable_baselines3.common.env_util import make_vec_env

    config = TrainConfig(env=CHOICE.env_id, use_rnn=True, rnn_size=6)
    policy = Policy(make_acting_model(CHOICE, config).eval(), CHOICE, config)
    returns, lengths = evaluation.evaluate_policy(
        policy, make_vec_env("CartPole-v1", n_envs=2, seed=0), n_eval_episodes=3, return_episode_rewards=True
    )
    assert returns == lengths and len(returns) == 3


def test_a_runs_newest_and_best_are_found(tmp_path: Path) -> None:
    with RunFolder.create(str(tmp_path), "run", "resume") as folder:
        with pytest.raises(UsageError, match="no newest checkpoint yet"):
            asyncrl.load_policy(folder.path)
        save(folder.checkpoints, CHOICE, bias=-50.0, env_steps=100)
        save(folder.checkpoints, CHOICE, bias=50.0, env_steps=200)
        save(folder.checkpoints / "best", CHOICE, bias=-50.0, env_steps=100)
    obs = np.zeros((20, 4))
    assert not asyncrl.load_policy(folder.path).act(obs).any()
    assert asyncrl.load_policy(str(folder.path), which="best").act(obs).all()
    with pytest.raises(UsageError, match=r"no run 'rum' in .*; the newest there: run\.$"):
        asyncrl.load_policy(tmp_path / "rum")


def test_a_run_that_is_not_found_by_its_name_may_be_given_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UsageError, match=r"no run 'p1' in train_dir: that folder does not exist; give the run's path\.$"
    ):
        asyncrl.load_policy("p1")


def test_mistakes_in_batches_of_dicts_are_one_sentence(tmp_path: Path) -> None:
    space = spaces.Dict({"numbers": spaces.Box(-1.0, 1.0, (6,), np.float32), "mode": spaces.Discrete(4)})
    policy = save(tmp_path, spec_of_spaces(space, spaces.Discrete(2), "X-v0", None))
    one = {"numbers": np.zeros(6, np.float32), "mode": 1}
    with pytest.raises(ValueError, match="expected one dict of arrays whose first axis is B, got a list of dicts"):
        policy.act([one, one])
    with pytest.raises(ValueError, match=r"numbers has shape \(2, 6\), for a batch of 3 it must have \(3, 6\)"):
        policy.act({"numbers": np.zeros((2, 6), np.float32), "mode": np.zeros(3, np.int64)})


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither a run's folder nor a checkpoint's"):
        asyncrl.load_policy(tmp_path)
    policy = save(tmp_path, CHOICE)
    with pytest.raises(UsageError, match="expected cpu, cuda or cuda:N"):
        asyncrl.load_policy(tmp_path / "checkpoint_000000000100", device="tpu")
    for shape in ((5,), (2, 5), (), (2, 2, 4)):
        with pytest.raises(ValueError, match="expected observations of shape"):
            policy.act(np.zeros(shape))
    for wrong in (np.nan, np.inf):
        with pytest.raises(ValueError, match="the observation has a number that is not finite"):
            policy.act(np.full((2, CHOICE.observation.row_size), wrong))
    with pytest.raises(ValueError, match=r"got \(observation, info\) of env.reset\(\): pass its first element"):
        policy.act((np.zeros(CHOICE.observation.row_size), {}))
    state = {"config": {"encoder_mlp_layers": [9]}, "spec": CHOICE.to_data()}
    content = checkpoint.Checkpoint(checkpoint.load(tmp_path / "checkpoint_000000000100").model, {}, state)
    with pytest.raises(UsageError, match="holds no usable policy"):
        asyncrl.load_policy(checkpoint.save(tmp_path, content, 300, keep=5))


def test_a_feature_writes_the_formats_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = save(tmp_path, CHOICE)

    def write(model: ActorCritic, spec: EnvSpec, config: TrainConfig, path: Path, format: str) -> float:
        path.write_text(f"{format} of {spec.env_id}, {len(list(model.parameters()))} parameters")
        return 0.5

    monkeypatch.setattr("asyncrl.inference.policy.hooks", {"FORMATS": {"text": (write, ".txt")}}.get)
    assert policy.export(str(tmp_path / "policy.txt"), "text") == 0.5
    num_parameters = len(list(policy._model.parameters()))
    assert (tmp_path / "policy.txt").read_text() == f"text of CartPole-v1, {num_parameters} parameters"
    with pytest.raises(UsageError, match="There is no format 'onnx': expected one of text"):
        policy.export(tmp_path / "policy.onnx")
    monkeypatch.setattr("asyncrl.inference.policy.hooks", lambda name: {})
    with pytest.raises(UsageError, match="There is no format 'onnx': no format is installed"):
        policy.export(tmp_path / "policy.onnx")
