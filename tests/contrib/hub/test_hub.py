"""A run goes to the Hugging Face Hub and comes back the same; what else a repository holds is neither read nor run."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from contrib.hub.fake_hub import FakeHub, running_hub
from path_options import check_users_folder
from small_training import SMALL

from asyncrl import TrainConfig, Trainer, UsageError, load_policy
from asyncrl import evaluate as evaluate_command
from asyncrl.contrib.hub import pull, push
from asyncrl.contrib.hub import repository as addresses
from asyncrl.storage import checkpoint as checkpoints
from asyncrl.storage.checkpoint import ForeignCheckpointError

OBSERVATIONS = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
REPO = "someone/cartpole"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose best checkpoint was saved by an evaluation, without an optimizer."""
    folder = tmp_path_factory.mktemp("trained")
    config = TrainConfig(**SMALL, train_dir=str(folder), experiment="mine", train_for_env_steps=1500)
    return Trainer(config, preset="none").run().folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with running_hub(tmp_path / "cache", monkeypatch) as found:
        yield found


def push_run(run: Path, *flags: str) -> int:
    return push.main([str(run), f"--repo={REPO}", *(flags or ("--episodes=0",))])


def actions(path: str | Path, which: Any = "newest") -> list[int]:
    policy = load_policy(path, which)
    return policy.act(OBSERVATIONS, deterministic=True).tolist()  # type: ignore[no-any-return]


def test_a_run_is_pushed_with_a_page_and_without_a_pickle(
    run: Path, hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "episode.mp4").write_bytes(b"a video")
    assert push_run(run, "--episodes=3", f"--video={tmp_path / 'episode.mp4'}", "--license=mit") == 0
    files = hub.files(REPO)
    steps = checkpoints.latest(run / "checkpoints"), checkpoints.latest(run / "checkpoints" / "best")
    expected = {".asyncrl-run", "README.md", "config.yaml", "environment.json", "metrics.jsonl", "results.json"}
    expected |= {"training.png", "replay.mp4"} | {"episodes.json"} & {path.name for path in run.iterdir()}
    for path in filter(None, steps):
        expected |= {f"{path.relative_to(run)}/{name}" for name in checkpoints.SHARED_FILES}
    assert set(files) == expected
    assert "command" not in json.loads(files["environment.json"])
    (result,) = json.loads(files["results.json"])
    _, metadata, page = files["README.md"].decode().split("---\n", 2)
    card = yaml.safe_load(metadata)
    assert (card["library_name"], card["license"]) == ("asyncrl", "mit")
    assert {"reinforcement-learning", "CartPole-v1", "ppo"} <= set(card["tags"])
    metrics = card["model-index"][0]["results"][0]["metrics"]
    sampled, deterministic = result, result["deterministic"]
    assert [(metric["name"], metric["value"]) for metric in metrics] == [
        (f"mean_reward, {kind} actions", f"{played['mean_reward']:.2f} +/- {played['std_reward']:.2f}")
        for kind, played in (("sampled", sampled), ("deterministic", deterministic))
    ]
    assert sampled["actions"] == "sampled" and sampled["mean_reward"] != deterministic["mean_reward"]
    assert page.count(" actions | ") == 2
    assert f'load_policy("hf://{REPO}", which="best")' in page and "training.png" in page and "replay.mp4" in page
    assert f"hf://{REPO}@{hub.repos[REPO][-1][0]}" in capsys.readouterr().out


def test_an_address_stands_for_the_run_and_a_revision_for_its_state_then(run: Path, hub: FakeHub) -> None:
    assert push_run(run) == 0
    address, first = f"hf://{REPO}", hub.repos[REPO][-1][0]
    assert actions(address, "best") == actions(run, "best")
    assert actions(address) == actions(run)
    best = checkpoints.latest(run / "checkpoints" / "best")
    assert best is not None
    assert push_run(run, "--checkpoint=best", "--episodes=0") == 0  # the same again
    other = {name: body for name, body in hub.files(REPO).items() if not name.startswith("checkpoints/")}
    for file in checkpoints.SHARED_FILES:
        other[f"checkpoints/{best.name}/{file}"] = (best / file).read_bytes()
    hub.commit(REPO, other)
    assert actions(address) == actions(run, "best")
    assert actions(f"{address}@{first}") == actions(run)
    hub.close()
    assert actions(address) == actions(run, "best"), "what was loaded once needs no connection"


def test_a_run_starts_from_the_weights_at_an_address(run: Path, hub: FakeHub, tmp_path: Path) -> None:
    assert push_run(run) == 0
    small = {**SMALL, "learning_rate": 0.0, "eval_every_env_steps": None, "train_for_env_steps": 200}
    config = TrainConfig(**small, train_dir=str(tmp_path), experiment="next", init_from=f"hf://{REPO}")
    result = Trainer(config, preset="none").run()
    assert result.summary.env_steps < 1000
    before, after = (checkpoints.latest(folder / "checkpoints") for folder in (run, result.folder))
    assert before is not None and after is not None
    weights, same = (checkpoints.load(path).model for path in (before, after))
    kept = [name for name in weights if name.endswith("weight") and "value" not in name]  # values are rescaled
    assert kept and all(torch.equal(weights[name], same[name]) for name in kept)


def test_a_later_push_replaces_the_checkpoints(run: Path, hub: FakeHub) -> None:
    hub.commit(REPO, {"checkpoints/checkpoint_000000000001/model.safetensors": b"old", "notes.txt": b"mine"})
    assert push_run(run, "--checkpoint=newest", "--episodes=0") == 0
    newest = checkpoints.latest(run / "checkpoints")
    assert newest is not None
    folders = {name.split("/")[1] for name in hub.files(REPO) if name.startswith("checkpoints/")}
    assert folders == {newest.name}
    assert hub.files(REPO)["notes.txt"] == b"mine"


def test_a_pulled_run_is_evaluated_and_resumed(
    run: Path, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push_run(run) == 0
    monkeypatch.chdir(tmp_path)
    assert pull.main([f"--repo=hf://{REPO}"]) == 0
    pulled = tmp_path / "train_dir" / "cartpole"
    for path in (run / "checkpoints").rglob("*.safetensors"):
        if "milestones" not in path.parts and (pulled / path.relative_to(run)).exists():
            assert (pulled / path.relative_to(run)).read_bytes() == path.read_bytes()
    assert actions("cartpole", "best") == actions(run, "best")
    capsys.readouterr()
    for given in ("--experiment=cartpole", f"--experiment=hf://{REPO}"):
        assert evaluate_command.main([given, "--checkpoint=best", "--episodes=2", "--json"]) == 0
    first, second = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert first["mean_reward"] == second["mean_reward"]
    assert pull.main([f"--repo={REPO}"]) == 2
    assert "exists: give another --experiment" in capsys.readouterr().err
    result = Trainer(TrainConfig(experiment="cartpole", train_for_env_steps=2500)).run()
    before = checkpoints.latest(run / "checkpoints")
    assert before is not None
    assert result.summary.env_steps >= 2500
    assert result.records[0].env_steps < checkpoints.saved_env_steps(before) < result.records[-1].env_steps


class Runs:
    """What a pickle does when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_is_refused_and_other_files_are_not_downloaded(
    run: Path, hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push_run(run, "--checkpoint=newest", "--episodes=0") == 0
    ran = tmp_path / "code_ran"
    files = dict(hub.files(REPO))
    (name,) = [name for name in files if name.endswith("model.safetensors")]
    sums = name.replace("model.safetensors", "SHA256SUMS")
    evil = pickle.dumps(Runs(ran))
    before = hashlib.sha256(files[name]).hexdigest()
    files[sums] = files[sums].replace(before.encode(), hashlib.sha256(evil).hexdigest().encode())
    files |= {name: evil, "policy.pkl": evil, "checkpoints/hubconf.py": b"raise SystemExit"}
    hub.commit(REPO, files)
    with pytest.raises(ForeignCheckpointError, match="is not a safetensors file"):
        load_policy(f"hf://{REPO}")
    assert pull.main([f"--repo={REPO}", f"--train_dir={tmp_path}", "--experiment=here"]) == 2
    assert "is not a safetensors file" in capsys.readouterr().err
    assert not ran.exists() and not (tmp_path / "here").exists()
    assert not any("policy.pkl" in path or "hubconf.py" in path for _, path in hub.requests)


@pytest.mark.parametrize("place", ["config.yaml", "state.json"])
def test_a_run_that_names_code_is_not_used_from_its_address(
    run: Path, hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    assert push_run(run, "--checkpoint=newest", "--episodes=0") == 0
    ran = tmp_path / "code_ran"
    given = {"env": "subprocess:getoutput", "env_kwargs": {"cmd": f"touch {ran}"}}
    files = dict(hub.files(REPO))
    if place == "config.yaml":
        files[place] = yaml.safe_dump({**yaml.safe_load(files[place]), **given}).encode()
    else:
        (name,) = [name for name in files if name.endswith(place)]
        state = json.loads(files[name])
        state["state"]["config"] |= given
        before, files[name] = hashlib.sha256(files[name]).hexdigest(), json.dumps(state).encode()
        sums = name.replace(place, "SHA256SUMS")
        files[sums] = files[sums].replace(before.encode(), hashlib.sha256(files[name]).hexdigest().encode())
    hub.commit(REPO, files)
    named = f"env=subprocess:getoutput with env_kwargs={given['env_kwargs']}"
    with pytest.raises(UsageError, match="names code that would be imported or called") as raised:
        load_policy(f"hf://{REPO}")
    assert named in str(raised.value)
    assert evaluate_command.main([f"--experiment=hf://{REPO}", "--episodes=1"]) == 2
    assert named in capsys.readouterr().err
    assert pull.main([f"--repo={REPO}", f"--train_dir={tmp_path}", "--experiment=here"]) == 0
    assert named in capsys.readouterr().out
    assert not ran.exists()


def test_a_pull_says_which_code_a_run_names_and_imports_none(
    run: Path, hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert push_run(run, "--checkpoint=newest", "--episodes=0") == 0
    (tmp_path / "module_of_a_stranger.py").write_text(f"open({str(tmp_path / 'code_ran')!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    files = dict(hub.files(REPO))
    given = {"algo": "module_of_a_stranger:ALGO", "import_modules": ["module_of_a_stranger"]}
    files["config.yaml"] = yaml.safe_dump({**yaml.safe_load(files["config.yaml"]), **given}).encode()
    hub.commit(REPO, files)
    assert pull.main([f"--repo={REPO}", f"--train_dir={tmp_path}", "--experiment=here"]) == 0
    said = capsys.readouterr().out
    assert "import_modules=['module_of_a_stranger'], algo=module_of_a_stranger:ALGO" in said
    assert said.endswith("here: CartPole-v1, 1 checkpoint\n")
    assert not (tmp_path / "code_ran").exists()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"env": "CartPole-v1", "callbacks": [], "import_modules": []}, []),
        ({"env": "pettingzoo:connect_four_v3"}, []),
        ({"env": "pettingzoo:utils.wrappers.base.os.system"}, ["env=pettingzoo:utils.wrappers.base.os.system"]),
        ({"env": "ALE/Pong-v5", "import_modules": ["mine"]}, ["import_modules=['mine']"]),
        ({"policies": {"1": {"algo": "mine:ALGO"}}}, ["algo=mine:ALGO"]),
        ({"policy_mapping": "os:system", "callbacks": ["a:b"]}, ["callbacks=['a:b']", "policy_mapping=os:system"]),
    ],
)
def test_settings_that_name_code_are_found(tmp_path: Path, settings: dict[str, Any], named: list[str]) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    assert addresses.named_code(tmp_path) == named


def test_a_cluster_to_connect_to_is_no_code_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    for settings, named in (
        ({"cluster": "ray", "ray_address": "auto", "ray_runtime_env": {}}, []),
        (
            {"ray_address": "host:6379", "ray_runtime_env": {"pip": ["a"]}},
            ["ray_address=host:6379", "ray_runtime_env={'pip': ['a']}"],
        ),
    ):
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
        assert (addresses.named_code(tmp_path), addresses.named_clusters(tmp_path)) == ([], named)


@pytest.mark.parametrize("line", ["env: !!null subprocess:getoutput", "!!null env: subprocess:getoutput"])
def test_settings_are_read_as_a_run_reads_them(tmp_path: Path, line: str) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.yaml").write_text(f"{line}\nenv_kwargs: {{cmd: ls}}\n")
    with pytest.raises(UsageError, match="has the tag"):
        addresses.named_code(tmp_path)


def test_a_mistake_is_one_sentence(
    run: Path, hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.commit("someone/else", {"config.json": b"{}"})
    for address, said in (
        ("hf://someone/else", "is not a run of asyncrl"),
        ("hf://someone/none", "Cannot read hf://someone/none: RepositoryNotFoundError"),
        ("hf://someone/else@v9", "Cannot read hf://someone/else: RevisionNotFoundError"),
        ("hf://cartpole", "expected hf://user/name"),
    ):
        with pytest.raises(UsageError) as raised:
            load_policy(address)
        assert said in str(raised.value) and "\n" not in str(raised.value)
    for flags in ((), ("--checkpoint=bst",), ("--video=film.avi",)):
        assert push_run(run, *flags, f"--out={tmp_path}") == 2
    assert push.main([str(run)]) == push.main(["--repo=a/b", "--experiment=nothing"]) == 2
    capsys.readouterr()
    monkeypatch.setattr(addresses.importlib.util, "find_spec", lambda name: None)
    assert push_run(run) == 2
    assert capsys.readouterr().err == (
        "error: The Hugging Face Hub needs the package huggingface_hub, which is not installed: "
        'pip install -e ".[hub]"\n'
    )


def test_the_files_can_be_looked_at_first(run: Path, tmp_path: Path, hub: FakeHub) -> None:
    assert push_run(run, "--episodes=0", f"--out={tmp_path / 'look'}") == 0
    assert hub.repos == {} and (tmp_path / "look" / "README.md").exists()
    copied = tmp_path / "runs" / "copy"  # it is the folder of a run
    shutil.copytree(tmp_path / "look", copied)
    assert actions(copied) == actions(run)


def test_a_run_that_deletes_its_checkpoints_while_it_is_pushed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate, choose = push._evaluate, push._choose
    training = tmp_path / "training"

    def delete() -> None:
        shutil.rmtree(training / "checkpoints")

    shutil.copytree(run, training)
    monkeypatch.setattr(push, "_evaluate", lambda *given: (delete(), evaluate(*given))[1])
    assert push_run(training, "--episodes=1", f"--out={tmp_path / 'look'}") == 0, "what is pushed was evaluated"
    (result,) = json.loads((tmp_path / "look" / "results.json").read_text())
    assert (tmp_path / "look" / "checkpoints" / "best" / result["checkpoint"]).is_dir()

    shutil.rmtree(training)
    shutil.copytree(run, training)
    monkeypatch.setattr(push, "_choose", lambda *given: (choose(*given), delete())[0])
    assert push_run(training, "--episodes=0", f"--out={tmp_path / 'again'}") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: Cannot copy {training}/checkpoints/") and error.count("\n") == 1


def test_a_folder_that_cannot_be_written_is_a_mistake(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert push_run(run, "--episodes=0", f"--out={tmp_path / 'file' / 'look'}") == 2
    assert capsys.readouterr().err == f"error: Cannot write {tmp_path / 'file' / 'look'}: Not a directory.\n"


def test_a_path_may_begin_with_the_users_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    check_users_folder(push._Options, ("video", "out"), monkeypatch)
