"""An observed array is an image if it is uint8 and has the shape of one, or if `--image_keys` names it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl import evaluate, load_policy, train, validate
from asyncrl.storage import checkpoint

ENV = "--env=array_envs:LitHalf"
SMALL = ["--serial_mode=True", "--async_rl=False", "--num_workers=1", "--num_envs_per_worker=2", "--rollout=8"]
SMALL += ["--batch_size=16", "--num_batches_per_epoch=1", "--num_epochs=1", "--encoder_conv_mlp_layers=[8]"]
SMALL += ["--with_tensorboard=False", "--experiment=run"]
FLAT, CONVOLUTIONS = "a perceptron", "convolutions (impala)"


def kwargs_of(shape: tuple[int, ...], dtype: str = "float32", **others: Any) -> str:
    return f"--env_kwargs={json.dumps({'shape': shape, 'dtype': dtype, **others})}"


def networks(printed: str) -> list[str]:
    """What `validate` says of the networks, one line for each part of the observation."""
    _, _, below = printed.partition("networks:")
    first, *rest = below.splitlines() or [""]
    return [first.strip(), *(line.strip() for line in itertools.takewhile(lambda line: line.startswith(" "), rest))]


def convolutions_of(path: Path) -> list[str]:
    """Names of tensors of convolutions in the newest checkpoint of a run."""
    saved = checkpoint.latest(path / "run" / "checkpoints")
    assert saved is not None
    return sorted(name for name in checkpoint.load(saved).model if ".stack." in name)


@pytest.mark.parametrize(
    ("shape", "dtype", "keys", "network", "change"),
    [
        ((30, 10), "float32", "", FLAT, "; convolutions with --image_keys=observation"),
        ((8, 8, 111), "bool", "", FLAT, "; convolutions with --image_keys=observation"),
        ((4, 84, 84), "float64", "", FLAT, "; convolutions with --image_keys=observation"),
        ((30, 10), "float32", "observation", CONVOLUTIONS, "; a perceptron without --image_keys"),
        ((8, 8, 111), "int8", "observation", CONVOLUTIONS, "; a perceptron without --image_keys"),
        ((6, 7), "uint8", "", FLAT, "; convolutions with --image_keys=observation"),
        ((6, 7), "uint8", "observation", CONVOLUTIONS, "; a perceptron without --image_keys"),
        ((30, 10), "uint8", "", CONVOLUTIONS, "; a perceptron if a wrapper gives it another dtype than uint8"),
        ((128,), "uint8", "", FLAT, ""),
    ],
)
def test_an_array_is_an_image_if_it_is_uint8_or_named_and_all_others_are_numbers(
    shape: tuple[int, ...], dtype: str, keys: str, network: str, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [f"--image_keys={keys}"] if keys else []
    assert validate.main([ENV, kwargs_of(shape, dtype, high=1), *flags]) == 0
    assert networks(capsys.readouterr().out) == [f"observation: {network}{change}"]


def test_a_key_of_a_dict_is_named_and_one_that_is_not_there_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    of_camera = kwargs_of((36, 36, 3), high=1.0, key="camera")
    assert validate.main([ENV, of_camera, "--image_keys=camera"]) == 0
    printed = capsys.readouterr()
    assert networks(printed.out) == [
        "camera: convolutions (nature); a perceptron without --image_keys",
        "numbers: a perceptron",
    ]
    assert "if it is an image, give" not in printed.err
    assert validate.main([ENV, of_camera]) == 0
    assert "if it is an image, give --image_keys=camera." in capsys.readouterr().err, "it may have been one before"
    assert validate.main([ENV, of_camera, "--image_keys=screen,numbers"]) == 2
    printed = capsys.readouterr()
    text = "--image_keys=screen: not a key of the observations. array_envs:LitHalf has camera, numbers."
    assert text in printed.err
    assert "--image_keys=numbers: an image is an array of two to four axes" in printed.err


def test_bytes_and_floats_of_the_same_images_give_the_same_policy(tmp_path: Path) -> None:
    policies = {}
    for dtype, high in (("uint8", 255), ("float32", 1)):
        flags = [ENV, *SMALL, "--train_for_env_steps=48", f"--train_dir={tmp_path / dtype}", "--seed=5"]
        flags += [
            "--normalize_input=False",
            "--image_keys=observation",
            kwargs_of((8, 8, 1), dtype, high=high, lit=high),
        ]
        assert train.main(flags) == 0
        policies[dtype] = checkpoint.load(checkpoint.latest(tmp_path / dtype / "run" / "checkpoints")).model
    assert convolutions_of(tmp_path / "float32")
    for name in set(policies["uint8"]) - {"statistics"}:
        tensor = policies["uint8"][name]
        np.testing.assert_allclose(policies["float32"][name], tensor, atol=1e-4, err_msg=name)


def test_a_run_keeps_its_images_when_it_is_evaluated_and_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = [f"--train_dir={tmp_path}", "--experiment=run"]
    flags = [ENV, *SMALL, f"--train_dir={tmp_path}", kwargs_of((12, 10), high=1, key="camera")]
    assert train.main([*flags, "--image_keys=camera", "--train_for_env_steps=48"]) == 0
    names = convolutions_of(tmp_path)
    assert names
    policy = load_policy(tmp_path / "run")
    obs = {"camera": np.zeros((12, 10), np.float32), "numbers": np.zeros(2, np.float32)}
    assert policy.act(obs, deterministic=True) in (0, 1)
    assert evaluate.main([*where, "--episodes=1"]) == 0
    assert train.main([*where, "--restart_behavior=resume", "--train_for_env_steps=96"]) == 0
    assert convolutions_of(tmp_path) == names
    capsys.readouterr()
    again = [*where, "--restart_behavior=resume", "--train_for_env_steps=144"]
    assert train.main([*again, "--image_keys=numbers"]) == 2
    assert "Cannot resume: the checkpoint was made with image_keys=['camera']; you gave ['numbers']." in (
        capsys.readouterr().err
    )
    start = [*flags, "--experiment=new", f"--init_from={tmp_path / 'run'}", "--train_for_env_steps=48"]
    assert train.main(start) == 2
    assert "The flag --image_keys=camera may be missing." in capsys.readouterr().err
    assert train.main([*start, "--image_keys=camera"]) == 0
