"""A policy in a file: what onnxruntime and `torch.export` compute is what the policy does, without asyncrl."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import space_envs  # noqa: F401
import torch
from gymnasium import spaces
from hidden_parts import KINDS, made, rows_of, seen_of
from path_options import check_users_folder

from asyncrl import train
from asyncrl.config.errors import UsageError
from asyncrl.config.hooks import hooks
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.export import command, exported
from asyncrl.envs.observations import ObservationMismatch
from asyncrl.envs.spaces import read_spec
from asyncrl.envs.spec import BoxAction, EnvSpec, ObservationLayout, ObservationPart
from asyncrl.inference.policy import Policy
from asyncrl.models.factory import make_acting_model
from asyncrl.storage import checkpoint

IMAGE = spaces.Box(0, 255, (16, 16, 3), np.uint8)
RNN = {"use_rnn": True, "rnn_size": 16}
LAYERS = [("residual_blocks", "hyperspherical_weights"), ("residual_blocks", "batch_renorm")]
LAYERS = LAYERS if hooks("CRITICS") else []
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo-choice": ("CartPole-v1", {}),
    "ppo-squashed": ("Pendulum-v1", {"squash_actions": True, "adaptive_stddev": True}),
    "a2c-shared-relu": (
        "CartPole-v1",
        {"algo": "a2c", "actor_critic_share_weights": True, "nonlinearity": "relu", "normalize_input": False},
    ),
    "sac": ("Pendulum-v1", {"algo": "sac"}),
    "sac-choice": ("CartPole-v1", {"algo": "sac"}),
    **{f"sac-{'-'.join(names)}": ("Pendulum-v1", {"algo": "sac", **dict.fromkeys(names, True)}) for names in LAYERS},
    "sac-images": ("SeeAndTell-v0", {"algo": "sac"}),
    "gru": ("CartPole-v1", RNN),
    "lstm-two-layers-choices": ("Recall-v0", {**RNN, "rnn_type": "lstm", "rnn_num_layers": 2}),
    "lstm-sac": ("Pendulum-v1", {**RNN, "algo": "sac", "rnn_type": "lstm"}),
    "gru-td3": ("Pendulum-v1", {**RNN, "algo": "td3"}),
    "dict-tuple-image": ("SeeAndTell-v0", {}),
    "masks": ("Masked-v0", {}),
    "td3": ("Pendulum-v1", {"algo": "td3"}),
    "dqn": ("CartPole-v1", {"algo": "dqn", "dueling": True, "exploration_initial_eps": 0.5}),
    "dqn-masks": ("MaskedChoice-v0", {"algo": "dqn", "exploration_initial_eps": 0.5}),
}

QUICK = ("sac-residual_blocks-hyperspherical_weights", "lstm-two-layers-choices", "masks", "dict-tuple-image")
"""Cases whose file is computed by onnxruntime in the default suite: each kind of input, core and action."""


def make_policy(env_id: str, settings: dict[str, Any]) -> Policy:
    """A policy with weights that matter, statistics included."""
    config = TrainConfig(**{"env": env_id, "encoder_mlp_layers": [16], "encoder_conv_mlp_layers": [16], **settings})
    with gymnasium.make(env_id) as env:
        spec = read_spec(env, env_id)
    model = make_acting_model(spec, config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
        mean = torch.randn(spec.observation.num_floats, generator=generator)
        model.set_obs_statistics(mean, torch.rand(mean.shape, generator=generator) + 0.5)
    return Policy(model, spec, config, seed=3)


def recorded(policy: Policy, num_steps: int) -> list[Any]:
    """Observations of an environment that the policy plays."""
    env = gymnasium.make(policy.config.env_id).unwrapped
    found = [env.reset(seed=0)[0]]
    policy.reset()
    while len(found) < num_steps:
        obs, _, terminated, truncated, _ = env.step(policy.act(found[-1]))
        if terminated or truncated:
            obs, _ = env.reset()
        found.append(obs)
    return found


def feed_of(policy: Policy, observations: list[Any], names: list[str]) -> dict[str, np.ndarray]:
    """The inputs of a file for observations as the environment gave them, one row each."""
    feed = {}
    for name, part in zip(names, policy.spec.observation.parts, strict=False):
        values = observations
        for key in part.path:
            values = [each[key] for each in values]
        dtype = {"choices": np.int64, "image": np.uint8}.get(part.kind, np.float32)
        feed[name] = np.stack(values).astype(dtype)
    return feed


def flat_actions(actions: Any) -> list[np.ndarray]:
    """The leaves of a batch of actions, each `[B, ...]`."""
    if isinstance(actions, list):
        return [np.stack([action[idx] for action in actions]) for idx in range(len(actions[0]))]
    return [actions]


def batch_of(observations: list[Any]) -> Any:
    first = observations[0]
    if isinstance(first, dict):
        return {key: np.stack([each[key] for each in observations]) for key in first}
    return np.stack(observations)


def check_steps(policy: Policy, module: Any, compute: Callable[[dict[str, np.ndarray]], Sequence[np.ndarray]]) -> None:
    """Fails unless `compute` returns what the policy does in three steps of eight environments.

    Args:
        policy: the policy.
        module: what names the inputs and outputs.
        compute: returns the outputs in the order of their names.
    """
    observations = recorded(policy, 24)
    state = policy.initial_state(8)
    policy.reset()
    for step in (observations[start : start + 8] for start in range(0, 24, 8)):
        feed = feed_of(policy, step, module.input_names) | {"noise": np.zeros((8, module.num_noise), np.float32)}
        if policy._model.rnn_state_size > 0:
            feed["state"] = state
        assert feed.keys() == set(module.input_names)
        found = dict(zip(module.output_names, compute(feed), strict=True))
        rows = torch.from_numpy(policy._rows_of(batch_of(step)))
        acted = policy._model.act(rows, None, torch.from_numpy(state), deterministic=True)
        np.testing.assert_allclose(found["parameters"], acted.action_parameters.numpy(), rtol=1e-5, atol=1e-6)
        expected, state = policy.step(rows.numpy(), state, deterministic=True)
        actions = [found[name] for name in module.output_names if name.startswith("action")]
        for one, other in zip(actions, flat_actions(expected), strict=True):
            assert one.dtype == other.dtype and one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        if policy._model.rnn_state_size > 0:
            np.testing.assert_allclose(found["next_state"], state, rtol=1e-5, atol=1e-6)
            assert np.abs(state).max() > 0.01


def module_of(policy: Policy) -> exported.ExportedPolicy:
    return exported.ExportedPolicy(policy._model, policy.spec, policy.config).eval()


@pytest.mark.parametrize("case", CASES)
def test_the_module_of_a_file_computes_what_the_policy_does_on_the_environments_observations(case: str) -> None:
    policy = make_policy(*CASES[case])
    module = module_of(policy)

    def compute(feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [result.numpy() for result in module(*(torch.from_numpy(feed[name]) for name in module.input_names))]

    check_steps(policy, module, compute)


@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.long) for case in CASES]
)
def test_onnxruntime_computes_what_the_policy_does_on_the_environments_observations(case: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    policy = make_policy(*CASES[case])
    path = tmp_path / "policy.onnx"
    policy.export(path)
    assert list(tmp_path.iterdir()) == [path], "one file"
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    about = {key.removeprefix("asyncrl."): json.loads(metadata[key]) for key in metadata if key.startswith("asyncrl.")}
    module = module_of(policy)
    assert (about["inputs"], about["outputs"]) == (module.input_names, module.output_names)
    assert about["noise"] == [list(kind) for kind in module.noise_kinds]
    assert about["state_size"] == policy._model.rnn_state_size
    assert {each.name for each in session.get_inputs()} == set(about["inputs"])
    check_steps(policy, module, lambda feed: session.run(about["outputs"], feed))


def test_torch_loads_the_other_format_without_asyncrl(tmp_path: Path) -> None:
    policy = make_policy(*CASES["gru"])
    path = tmp_path / "policy.pt2"
    assert policy.export(path, "torch_export") < 1e-6
    code = (
        "import json, sys, torch\n"
        "files = {'asyncrl.json': ''}\n"
        f"module = torch.export.load({str(path)!r}, extra_files=files).module()\n"
        "print(json.loads(files['asyncrl.json'])['outputs'], 'asyncrl' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("['parameters', 'action") and done.stdout.endswith("False\n")


@pytest.mark.parametrize(
    ("space", "settings", "format"),
    [
        pytest.param(IMAGE, {}, "onnx", id="onnx"),
        pytest.param(spaces.Dict(left=IMAGE, right=IMAGE), {}, "torch_export", id="two"),
        pytest.param(IMAGE, RNN, "torch_export", id="recurrent"),
        pytest.param(
            spaces.Dict(image=IMAGE, nothing=spaces.Box(-1.0, 1.0, (0,))), {}, "torch_export", id="numbers-of-size-0"
        ),
    ],
)
def test_a_policy_of_images_alone_is_exported(
    space: spaces.Space[Any], settings: dict[str, Any], format: exported.ExportFormat, tmp_path: Path
) -> None:
    if format == "onnx":
        pytest.importorskip("onnxruntime")
    env: Any = gymnasium.Env()
    env.observation_space, env.action_space = space, spaces.Discrete(3)
    config = TrainConfig(env="Images-v0", encoder_mlp_layers=[8], encoder_conv_mlp_layers=[8], **settings)
    spec = read_spec(env, "Images-v0")
    policy = Policy(make_acting_model(spec, config).eval(), spec, config)
    assert policy.export(tmp_path / "policy.pt2", format) < 1e-5


def test_noise_makes_the_policys_distribution() -> None:
    policy = make_policy("SeeAndTell-v0", {"action_unit": "raw"})
    module = module_of(policy)
    assert module.noise_kinds == [("gumbel", 2), ("normal", 1)]
    generator, num_rows = np.random.default_rng(0), 20_000
    observation = recorded(policy, 1)[0]
    noise = np.concatenate([generator.gumbel(size=(num_rows, 2)), generator.standard_normal((num_rows, 1))], axis=1)
    feed = feed_of(policy, [observation] * num_rows, module.input_names) | {"noise": noise.astype(np.float32)}
    arguments = [torch.from_numpy(feed[name]) for name in module.input_names]
    parameters, choice, number = (result.numpy() for result in module(*arguments))
    probability, mean, std = np.exp(parameters[0, 1]), parameters[0, 2], np.exp(parameters[0, 3])
    assert abs(choice.mean() - probability) < 4 * np.sqrt(probability * (1 - probability) / num_rows) + 1e-3
    expected = np.clip(mean + std * noise[:, 2], -1.0, 1.0)
    np.testing.assert_allclose(number[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_a_bounded_action_of_another_dtype_is_in_the_environments_unit(tmp_path: Path) -> None:
    layout = ObservationLayout(
        (ObservationPart((0,), "numbers", (2, 2), "float64"), ObservationPart((1,), "flags", (3,), "int8"))
    )
    action = BoxAction((2, 1), (0.0, -1.0), (100.0, float("inf")), "float64")
    spec, config = EnvSpec("X-v0", layout, action, None), TrainConfig(env="X-v0", encoder_mlp_layers=[8])
    policy = Policy(make_acting_model(spec, config).eval(), spec, config)
    policy.export(tmp_path / "policy.pt2", "torch_export")
    module = torch.export.load(tmp_path / "policy.pt2").module()
    numbers, flags = np.random.default_rng(0).normal(size=(4, 2, 2)), np.ones((4, 3))
    arguments = (torch.tensor(numbers).float(), torch.tensor(flags).float(), torch.zeros(4, 2))
    _, found = module(*arguments)
    expected = policy.act((numbers, flags.astype(np.int8)), deterministic=True)
    assert found.dtype == torch.float64 and found.shape == (4, 2, 1)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    with pytest.raises(ObservationMismatch):
        policy.act((numbers, 2 * np.ones((4, 3), np.int8)))


@pytest.mark.parametrize(
    ("space", "kind"), [("numbers", "plain"), ("images", "plain"), ("nested", "sac"), ("numbers", "rnn")]
)
def test_a_file_does_without_the_parts_that_only_the_critic_sees(space: str, kind: str, tmp_path: Path) -> None:
    model, spec, config = made(space, **KINDS[kind])
    policy = Policy(model, spec, config)
    _, _, observations = rows_of(spec, space, 1)
    expected = policy.act(observations[0], deterministic=True)
    seen = seen_of(space, observations[0])
    policy.export(tmp_path / "policy.pt2", "torch_export")
    arguments = [seen["a"]["seen"] if space == "nested" else seen[key] for key in seen]
    tensors = [torch.from_numpy(np.array(each))[None] for each in arguments]
    tensors = [each if each.dtype in (torch.uint8, torch.int64) else each.float() for each in tensors]
    state = [torch.zeros(1, model.rnn_state_size)] if kind == "rnn" else []
    loaded = torch.export.load(tmp_path / "policy.pt2").module()
    action = loaded(*tensors, torch.zeros(1, 2), *state)[1]
    np.testing.assert_allclose(action[0].numpy(), expected, atol=1e-5)


def save(folder: Path, policy: Policy) -> Path:
    state = {"config": policy.config.model_dump(mode="json"), "spec": policy.spec.to_data()}
    return checkpoint.save(folder, checkpoint.Checkpoint(policy._model.state_dict(), {}, state), 100, keep=5)


def test_the_command_exports_one_of_several_policies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policies = [make_policy("CartPole-v1", {}) for _ in range(2)]
    with torch.no_grad():
        for idx, policy in enumerate(policies):
            policy._model.policy_head.bias[idx] += 50.0
    run = tmp_path / "run"
    for idx, policy in enumerate(policies):
        save(run / "checkpoints" / f"policy_{idx}", policy)
    (run / ".asyncrl-run").touch()
    chosen = []
    for idx in range(2):
        out = tmp_path / f"{idx}.exported"
        named = [str(run), f"--policy={idx}", "--format=torch_export", f"--out={out}"]
        assert command.main(named) == 0
        assert "largest difference of a parameter" in capsys.readouterr().out
        _, action = torch.export.load(out).module()(torch.randn(50, 4), torch.zeros(50, 2))
        chosen.append(action.float().mean())
    assert chosen == [0.0, 1.0]


@pytest.mark.filterwarnings("error")
def test_the_command_shows_what_noise_means_and_no_warnings_of_other_packages(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def export(*_: object) -> float:
        warnings.warn("of torch", FutureWarning, stacklevel=1)
        logging.getLogger("torch.onnx").warning("torchvision is not installed")
        return 0.0

    handler = logging.StreamHandler()
    monkeypatch.setattr(logging.getLogger("torch.onnx"), "handlers", [handler])
    monkeypatch.setattr(Policy, "export", export)
    assert command.main([str(save(tmp_path, make_policy("CartPole-v1", {})))]) == 0
    shown = capfd.readouterr()
    assert shown.err == ""
    assert shown.out.splitlines()[-1] == "With noise 0 the file's actions are the deterministic ones."


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "No run was given: give RUN"),
        (("--format=onx", "--experiment=x"), "--format=onx"),
        (("--checkpoint=/no/such",), "There is no run"),
        (("--checkpoint={}", "--format=torch_export", "--out=/no/such/folder/x.pt2"), "Cannot write"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    folder = save(tmp_path, make_policy("CartPole-v1", {}))
    assert command.main([argument.format(folder) for argument in arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(exported.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as raised:
        make_policy("CartPole-v1", {}).export(tmp_path / "policy.onnx")
    assert "(onnx, onnxscript, onnxruntime)" in str(raised.value) and 'pip install -e ".[export]"' in str(raised.value)


def test_a_path_may_begin_with_the_users_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    check_users_folder(command._Options, ("out",), monkeypatch)


@pytest.mark.usefixtures("probes_here")
def test_the_policy_of_a_run_with_named_images_is_exported(tmp_path: Path) -> None:
    where = [f"--train_dir={tmp_path}", "--experiment=run"]
    images = {"shape": (12, 10), "dtype": "float32", "high": 1, "key": "camera"}
    flags = ["--env=array_envs:LitHalf", f"--env_kwargs={json.dumps(images)}", "--image_keys=camera"]
    flags += ["--serial_mode=True", "--async_rl=False", "--num_workers=1", "--num_envs_per_worker=2", "--rollout=8"]
    flags += ["--batch_size=16", "--num_batches_per_epoch=1", "--num_epochs=1", "--encoder_conv_mlp_layers=[8]"]
    assert train.main([*where, *flags, "--with_tensorboard=False", "--train_for_env_steps=48"]) == 0
    assert command.main([*where, "--format=torch_export", f"--out={tmp_path / 'policy.pt2'}"]) == 0
