"""`enjoy`: what it shows, and in which file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from drawn_envs import greys

from asyncrl.config.schema import TrainConfig
from asyncrl.enjoy import main
from asyncrl.envs import showing
from asyncrl.envs.factory import make_env
from asyncrl.envs.spaces import read_spec
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.storage import checkpoint as checkpoints
from asyncrl.storage.checkpoint import Checkpoint
from asyncrl.storage.run_folder import MARKER

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def without_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(showing, "_can_draw_by", lambda backend: False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of `drawn_envs:counter`: the best policy always takes action 1, the newest one action 0."""
    config = TrainConfig(env="drawn_envs:counter", encoder_mlp_layers=[], env_kwargs={"length": 2})
    spec = read_spec(make_env(config.env, config.env_kwargs), config.env)
    model = ActorCritic(spec, config)
    state = {"config": config.model_dump(mode="json"), "spec": spec.to_data()}
    folder = tmp_path / "train_dir" / "run"
    with torch.no_grad():
        model.policy_head.weight.zero_()
        for where, env_steps, bias in ((checkpoints.BEST, 100, [-50.0, 50.0]), ("", 200, [50.0, -50.0])):
            model.policy_head.bias.copy_(torch.tensor(bias))
            content = Checkpoint(model.state_dict(), {}, state)
            checkpoints.save(folder / "checkpoints" / where, content, env_steps, keep=1)
    (folder / MARKER).touch()
    return folder


def test_without_a_screen_all_episodes_are_in_one_file(run: Path, capsys: Captured) -> None:
    assert main(["run", "--episodes=2"]) == 0
    out = capsys.readouterr().out
    assert "There is no screen for a window: the episodes are written to enjoy.mp4." in out
    assert "checkpoint_000000000200 (200 environment steps), 2 episodes" in out
    assert greys(Path("enjoy.mp4")) == pytest.approx([10, 30, 50] * 2, abs=3)
    assert main(["run", "--video=enjoy.mp4", "--max_steps=1"]) == 0
    out = capsys.readouterr().out
    assert "no screen" not in out and out.splitlines()[-1].endswith("KB (replaced)")
    assert greys(Path("enjoy.mp4")) == pytest.approx([10, 30] * 3, abs=3)


def test_the_checkpoint_the_environment_and_the_seed_can_be_chosen(run: Path, capsys: Captured) -> None:
    def episodes(*flags: str) -> list[str]:
        assert main([str(run), "--video=a.mp4", *flags]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("episode")]

    newest, best = episodes("--seed=1"), episodes("--seed=1", "--checkpoint=best")
    assert newest != best and newest == episodes("--seed=1") != episodes("--seed=2")
    returns = [[float(line.split()[3].rstrip(",")) for line in lines] for lines in (newest, best)]
    assert [after - before for before, after in zip(*returns, strict=True)] == [2.0] * 3
    (longer, *_) = episodes('--env_kwargs={"length": 5}', "--checkpoint=best")
    assert longer.endswith(", 5 steps")


def test_a_window_is_opened_where_there_is_a_screen(
    run: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    assert main(["run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("episode 3: return ")
    assert not Path("enjoy.mp4").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "No run was given: give RUN, its folder or its name in --train_dir"),
        (("run", "other"), "Give one run, not run and other."),
        (("other",), "There is no run 'other'"),
        (("run", "--policy=3"), "has no policy 3"),
        (("run", "--video=a.avi"), "expected a file name that ends in .mp4"),
        (("run", "--checkpoint=bset"), "the nearest is best"),
    ],
)
def test_a_mistake_is_one_sentence(run: Path, capsys: Captured, arguments: tuple[str, ...], problem: str) -> None:
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert problem in captured.err and len(captured.err.splitlines()) == 1
