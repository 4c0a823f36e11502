"""A policy taken away: found, loaded without its environment, and acting as the one that was evaluated."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from layouts import vector_observation

import asyncrl
from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
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


def test_a_run_that_is_not_found_by_its_name_may_be_given_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UsageError, match=r"no run 'p1' in train_dir: that folder does not exist; give the run's path\.$"
    ):
        asyncrl.load_policy("p1")


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither a run's folder nor a checkpoint's"):
        asyncrl.load_policy(tmp_path)
    policy = save(tmp_path, CHOICE)
    with pytest.raises(UsageError, match="expected cpu, cuda or cuda:N"):
        asyncrl.load_policy(tmp_path / "checkpoint_000000000100", device="tpu")
    for shape in ((5,), (2, 5), (), (2, 2, 4)):
        with pytest.raises(ValueError, match="expected observations of shape"):
            policy.act(np.zeros(shape))
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
