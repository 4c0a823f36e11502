"""The blocks of README.md and docs are pasted into a shell, and what `docs/environments.md` says of spaces is tried."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from document_blocks import ROOT, Block, Clone, blocks_of
from gymnasium import spaces

import asyncrl
from asyncrl.config.errors import UsageError
from asyncrl.envs.probe import probe
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.storage import checkpoint

DOCUMENTS = {path.name: path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
ENVIRONMENTS = DOCUMENTS["environments.md"]
# What the README has pasted before anything in docs.
ENVIRONMENT = Block("bash", "python3 -m venv .venv\nsource .venv/bin/activate\n", None, "")
EXAMPLES = {
    # by document: a flag by which a command is known, a tensor that training it leaves in the checkpoint
    "environments.md": {
        "--env=corridor:Corridor-v0": "policy_head.weight",
        "--env=grid:Grid-v0": "actor.encoders.0.stack.0.weight",
        "--env=reach:Reach-v0": "mlp._layers.0.0",
    },
    "custom.md": {
        "--encoder=waves": "actor.layer.weight",
        "--core=traces": "actor_core.pace",
        "--model=wide_critic": "critic.encoders.0.linears.1.weight",
        "--env=hidden:Hidden-v0": "actor_core.rnn.weight_hh_l0",
        "--algo=powered_reinforce": "policy_head.weight",
    },
}
NUMBER, CHOICE = spaces.Box(-1.0, 1.0, (1,)), spaces.Discrete(2)


def write_modules(document: str, folder: Path) -> None:
    for block in blocks_of(document):
        if block.module is not None:
            (folder / block.module).write_text(block.text)


def spaces_in(section: str) -> list[spaces.Space[Any]]:
    """Those in the first column of the first table of a section of `environments.md`."""
    rows = ENVIRONMENTS.split(f"\n## {section}\n\n")[1].split("\n\n")[0].splitlines()[2:]
    codes = [re.match(r"\| `(.*?)` \|", row) for row in rows]
    assert codes and all(codes)
    return [eval(code[1], {**vars(spaces), "np": np}) for code in codes if code is not None]


def sentences() -> dict[str, str]:
    """What is said of each mistake, by the mistake."""
    return dict(re.findall(r"^\| (\S.*?) \| `(.*)` \|$", ENVIRONMENTS.split("\n## Failures\n")[1], re.MULTILINE))


def shown_blocks(name: str) -> list[Block]:
    """The blocks of a document that can be run here."""
    lacking = "envpool" if importlib.util.find_spec("envpool") is None else None  # no wheels for every Python
    blocks = [block for block in blocks_of(DOCUMENTS[name]) if not block.reason]
    return [block for block in blocks if lacking is None or lacking not in block.text]


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("name", [name for name in DOCUMENTS if any(b.language == "bash" for b in shown_blocks(name))])
def test_the_blocks_of_a_document_work_when_pasted_in_order(name: str, tmp_path: Path) -> None:
    # Where user code is imported, each process has to find it. Elsewhere one process is quicker.
    clone = Clone(tmp_path, "" if name in EXAMPLES else "--serial_mode=True")
    blocks = shown_blocks(name)
    pasted = clone.paste(blocks if name == "README.md" else [ENVIRONMENT, *blocks])
    assert pasted.returncode == 0, f"{pasted.stdout}\n{pasted.stderr}"
    for flag, parameter in EXAMPLES.get(name, {}).items():
        (run,) = [run for run in clone.runs() if flag in run["flags"]]
        saved = checkpoint.latest(tmp_path / "train_dir" / run["experiment"] / "checkpoints")
        assert saved is not None
        model = checkpoint.load(saved).model
        assert parameter in model
        if flag == "--model=wide_critic":
            assert len(model[parameter]) == 256
        if flag == "--encoder=waves":  # evaluation finds the module that the run was trained with
            evaluation = f"asyncrl evaluate {run['experiment']}\n"
            evaluated = clone.paste([ENVIRONMENT, Block("bash", evaluation, None, "")])
            assert evaluated.returncode == 0 and "1 episodes" in evaluated.stdout, evaluated.stderr


def test_every_example_has_its_module() -> None:
    for name, examples in EXAMPLES.items():
        blocks = blocks_of(DOCUMENTS[name])
        assert sum(block.module is not None for block in blocks) == len(examples)
        assert sum(block.text.count("asyncrl train") for block in blocks if block.language == "bash") == len(examples)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_block_that_is_not_run_says_why(name: str) -> None:
    text = DOCUMENTS[name]
    reasons = [block.reason for block in blocks_of(text) if block.reason]
    assert text.count("<!-- not run") + text.count("<!-- the test command -->") == len(reasons), "each is above a block"
    needed = ("GPU", "VizDoom", "Isaac Lab", "machines", "of yours", "takes minutes", "the test command")
    assert [reason for reason in reasons if not any(word in reason for word in needed)] == []


def test_nothing_is_installed_from_an_index_under_our_name() -> None:
    sources = [*(ROOT / "asyncrl").rglob("*.py"), *(ROOT / "scripts").iterdir()]
    texts = [*DOCUMENTS.values(), *(path.read_text() for path in sources if path.is_file())]
    assert not any(re.search(r"pip install [\w\s-]*[\"']?asyncrl", text) for text in texts)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("asyncrl validate --env=CartPole-v1", "asyncrl: command not found"),
        ("python3 -m venv .venv\npip install matplotlib", "pip: command not found"),
        (ENVIRONMENT.text + "pip install 'asyncrl[plot]'", "a clone cannot install asyncrl[plot]"),
        (ENVIRONMENT.text + "pip install -e '.[plots]'", "a clone cannot install .[plots]"),
        (
            ENVIRONMENT.text + "asyncrl validate --env=CartPole-v1 --wrokers=2",
            "failed: asyncrl validate",
        ),
    ],
)
def test_a_block_that_a_fresh_clone_could_not_run_fails(script: str, said: str, tmp_path: Path) -> None:
    pasted = Clone(tmp_path).paste([Block("bash", script, None, "")])
    assert pasted.returncode != 0
    assert said in pasted.stderr


@pytest.mark.parametrize("space", spaces_in("Observations"), ids=str)
def test_an_observation_that_is_said_to_train_does(space: spaces.Space[Any]) -> None:
    assert spec_of_spaces(space, CHOICE, "X-v0", None).observation.parts


@pytest.mark.parametrize("space", spaces_in("Actions"), ids=str)
def test_an_action_that_is_said_to_train_does(space: spaces.Space[Any]) -> None:
    assert spec_of_spaces(NUMBER, space, "X-v0", None).action.num_parameters > 0


@pytest.mark.parametrize("space", spaces_in("Spaces that are refused"), ids=str)
def test_a_space_that_is_said_to_be_refused_is(space: spaces.Space[Any]) -> None:
    with pytest.raises(UsageError):
        spec_of_spaces(space, CHOICE, "X-v0", None)


@pytest.mark.parametrize(
    "space", [*spaces_in("Spaces that are refused")[:4], spaces.Box(-1_000_000, 1_000_000, (1,), np.int64)]
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
        ("an observation that does not match its space", "wrong:Corridor-v0", {}),
        ("the older interface of gym, with four values", "older:Corridor-v0", {}),
    ],
)
def test_a_mistake_is_answered_as_the_document_says(
    mistake: str, env_id: str, env_kwargs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_modules(ENVIRONMENTS, tmp_path)
    corridor = (tmp_path / "corridor.py").read_text()
    (tmp_path / "wrong.py").write_text(corridor.replace("np.array([self._position]", "np.array([self._position, 0]"))
    (tmp_path / "older.py").write_text(corridor.replace("has_arrived, False, {", "has_arrived, {"))
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
