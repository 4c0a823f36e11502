"""What `docs/environments.md` and `docs/custom.md` show is run as it stands, and what they say of spaces is tried."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from command import PROBE, Command
from gymnasium import spaces

import asyncrl
from asyncrl.config.errors import UsageError
from asyncrl.envs.probe import probe
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.runtime import checkpoint

DOCS = Path(__file__).resolve().parents[2] / "docs"
ENVIRONMENTS = (DOCS / "environments.md").read_text()
CUSTOM = (DOCS / "custom.md").read_text()
MODULE = re.compile(r"^```python\n(# (\w+\.py)\n.*?)^```", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^python -m asyncrl\.train (.*)$", re.MULTILINE)
SMALL = (*PROBE, "--num_workers=1", "--encoder_conv_mlp_layers=[16]", "--train_for_env_steps=128", "--quiet")
EXAMPLES = [
    # document, a flag by which its command is known, a tensor that training it leaves in the checkpoint
    (ENVIRONMENTS, "--env=corridor:Corridor-v0", "policy_head.weight"),
    (ENVIRONMENTS, "--env=grid:Grid-v0", "actor.encoders.0.stack.0.weight"),
    (CUSTOM, "--encoder=waves", "actor.layer.weight"),
    (CUSTOM, "--core=traces", "actor_core.pace"),
    (CUSTOM, "--model=wide_critic", "critic.encoders.0.linears.1.weight"),
    (CUSTOM, "--env=hidden:Hidden-v0", "actor_core.rnn.weight_hh_l0"),
]
NUMBER, CHOICE = spaces.Box(-1.0, 1.0, (1,)), spaces.Discrete(2)


def write_modules(document: str, folder: Path) -> None:
    for text, name in MODULE.findall(document):
        (folder / name).write_text(text)


def example(document: str, flag: str) -> list[str]:
    """The flags of the command that has this one."""
    found = [shlex.split(flags) for flags in COMMAND.findall(document)]
    (flags,) = [flags for flags in found if flag in flags]
    return flags


def spaces_in(section: str) -> list[spaces.Space[Any]]:
    """Those in the first column of the first table of a section of `environments.md`."""
    rows = ENVIRONMENTS.split(f"\n## {section}\n\n")[1].split("\n\n")[0].splitlines()[2:]
    codes = [re.match(r"\| `(.*?)` \|", row) for row in rows]
    assert codes and all(codes)
    return [eval(code[1], {**vars(spaces), "np": np}) for code in codes if code is not None]


def sentences() -> dict[str, str]:
    """What is said of each mistake, by the mistake."""
    return dict(re.findall(r"^\| (\S.*?) \| `(.*)` \|$", ENVIRONMENTS.split("\n## When it fails\n")[1], re.MULTILINE))


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize(("document", "flag", "parameter"), EXAMPLES, ids=[flag for _, flag, _ in EXAMPLES])
def test_an_example_trains_and_what_it_has_trained_can_be_used(
    document: str, flag: str, parameter: str, tmp_path: Path, start: Callable[..., Command]
) -> None:
    write_modules(document, tmp_path)
    training = start("asyncrl.train", *example(document, flag), *SMALL)
    code, _, stderr = training.finish()
    assert (code, stderr) == (0, "")
    saved = training.checkpoint()
    assert saved is not None
    model = checkpoint.load(saved).model
    assert parameter in model
    if flag == "--model=wide_critic":
        assert len(model[parameter]) == 256
    if flag == "--encoder=waves":  # its module is found again by whoever uses the policy
        code, stdout, stderr = start("asyncrl.evaluate", "--episodes=1").finish()
        assert code == 0 and "1 episodes" in stdout, stderr


def test_every_example_is_run() -> None:
    shown = COMMAND.findall(ENVIRONMENTS + CUSTOM)
    assert len(shown) == len(EXAMPLES) == len(MODULE.findall(ENVIRONMENTS + CUSTOM))


@pytest.mark.parametrize("space", spaces_in("Observations"), ids=str)
def test_an_observation_that_is_said_to_train_does(space: spaces.Space[Any]) -> None:
    assert spec_of_spaces(space, CHOICE, "X-v0", None).observation.parts


@pytest.mark.parametrize("space", spaces_in("Actions"), ids=str)
def test_an_action_that_is_said_to_train_does(space: spaces.Space[Any]) -> None:
    assert spec_of_spaces(NUMBER, space, "X-v0", None).action.num_parameters > 0


@pytest.mark.parametrize("space", spaces_in("What is refused"), ids=str)
def test_a_space_that_is_said_to_be_refused_is(space: spaces.Space[Any]) -> None:
    with pytest.raises(UsageError):
        spec_of_spaces(space, CHOICE, "X-v0", None)


@pytest.mark.parametrize(
    "space", [*spaces_in("What is refused")[:4], spaces.Box(-1_000_000, 1_000_000, (1,), np.int64)]
)
def test_an_action_that_is_said_to_be_refused_is(space: spaces.Space[Any]) -> None:
    with pytest.raises(UsageError):
        spec_of_spaces(NUMBER, space, "X-v0", None)


@pytest.mark.parametrize(
    ("mistake", "env_id", "env_kwargs"),
    [
        ("no such module", "corridr:Corridor-v0", {}),
        ("an id that the module does not register", "corridor:Corridor-v1", {}),
        ("no module given", "Hallway-v0", {}),
        ("an argument that it does not take", "corridor:Corridor-v0", {"size": 3}),
        ("an observation that is not of its space", "wrong:Corridor-v0", {}),
    ],
)
def test_a_mistake_is_answered_as_the_document_says(
    mistake: str, env_id: str, env_kwargs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_modules(ENVIRONMENTS, tmp_path)
    corridor = (tmp_path / "corridor.py").read_text()
    (tmp_path / "wrong.py").write_text(corridor.replace("np.array([self._position]", "np.array([self._position, 0]"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        probe(env_id, env_kwargs)
    assert sentences()[mistake] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_registered_environment_is_gymnasiums_own() -> None:
    @asyncrl.register_env("RegisteredHere-v0", max_episode_steps=7)
    def make(width: int = 1) -> gymnasium.Env[Any, Any]:
        env = gymnasium.make("CartPole-v1")
        env.metadata = {"width": width}
        return env

    try:
        env = gymnasium.make("RegisteredHere-v0", width=3)
        assert (env.metadata["width"], env.spec and env.spec.max_episode_steps) == (3, 7)
        assert make().metadata["width"] == 1
    finally:
        del gymnasium.registry["RegisteredHere-v0"]
