"""Runs that a program starts, by the public interface alone: scripts, notebooks, callbacks, packages of callbacks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import pytest
from quick_start import QuickProcess
from told_env import Told

import asyncrl
from asyncrl import Hyperparameters, Observer, RunResult, TrainConfig, Trainer
from asyncrl.config.errors import ConfigError
from asyncrl.config.loading import load
from asyncrl.evaluate import main as evaluate_main
from asyncrl.observers.observer import StartPoint
from asyncrl.observers.reports import EpisodeRecord, EvaluationReport
from asyncrl.observers.summary import ResumedTotals, Summary
from asyncrl.train import main as train_main
from asyncrl.validate import main as validate_main

ROOT = Path(asyncrl.__file__).parents[1]
SMALL: dict[str, Any] = {
    "num_workers": 1,
    "num_envs_per_worker": 4,
    "rollout": 8,
    "batch_size": 32,
    "num_batches_per_epoch": 2,
    "num_epochs": 2,
    "learner_threads": 1,
    "encoder_mlp_layers": [8],
    "report_every_s": 0.1,
    "with_tensorboard": False,
}
SERIAL: dict[str, Any] = {"serial_mode": True}
PARALLEL: dict[str, Any] = {}
MODES = [pytest.param(SERIAL, id="serial"), pytest.param(PARALLEL, id="parallel")]

pytestmark = [pytest.mark.usefixtures("leaves_nothing"), pytest.mark.timeout(300)]


class Noting(Observer):
    """Notes every event, and acts as a function of the run says when one arrives."""

    def __init__(self, **actions: Any) -> None:
        self.events: list[tuple[str, Any]] = []
        self.actions = actions

    def note(self, name: str, run: asyncrl.Run, what: Any = None) -> None:
        self.events.append((name, what))
        if name in self.actions:
            self.actions[name](run, what)

    def on_start(self, run: asyncrl.Run) -> None:
        self.note("start", run)

    def on_record(self, run: asyncrl.Run, record: Any) -> None:
        self.note("record", run, record)

    def on_episode(self, run: asyncrl.Run, episode: Any) -> None:
        self.note("episode", run, episode)

    def on_evaluation(self, run: asyncrl.Run, evaluation: Any) -> None:
        self.note("evaluation", run, evaluation)

    def on_checkpoint(self, run: asyncrl.Run, checkpoint: Any) -> None:
        self.note("checkpoint", run, checkpoint)

    def on_message(self, run: asyncrl.Run, text: str) -> None:
        self.note("message", run, text)

    def on_end(self, run: asyncrl.Run, summary: Any) -> None:
        self.note("end", run, summary)

    def of(self, name: str) -> list[Any]:
        return [what for event, what in self.events if event == name]


def train(folder: Path, *callbacks: Observer, **settings: Any) -> RunResult:
    config = TrainConfig(
        **{"env": "CartPole-v1", "train_for_env_steps": 2000, "train_dir": str(folder), **SMALL, **settings}
    )
    return Trainer(config, callbacks, preset="none").run()


def newest_scalars(result: RunResult) -> dict[str, float]:
    """The last value of each figure."""
    return {name: value for record in result.records for name, value in record.scalars.items()}


def once(action: Any) -> Any:
    """Acts at the first event only."""
    calls: list[int] = []
    return lambda run, what: calls or (calls.append(1), action(run, what))


def python(*arguments: str, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Runs Python in a folder, with this package on its path."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=env, input=stdin, capture_output=True, text=True)


NOTEBOOK = """
import gymnasium
from asyncrl import Observer, TrainConfig, Trainer

class Cells:
    def make(size):
        return gymnasium.wrappers.TimeLimit(gymnasium.make("CartPole-v1").unwrapped, size)

class Count(Observer):
    num_episodes = 0

    def on_episode(self, run, episode):
        self.num_episodes += 1

count = Count()
config = TrainConfig(
    env=lambda: Cells.make(20), train_for_env_steps=600, num_workers=1, num_envs_per_worker=4, rollout=8,
    batch_size=32, num_batches_per_epoch=2, learner_threads=1,
)
first = Trainer(config, callbacks=[count]).run()
second = Trainer(config.model_copy(update={"train_for_env_steps": 64})).run()
assert first.status == second.status == "completed", (first, second)
assert first.folder != second.folder
assert count.num_episodes == first.summary.num_episodes >= 600 // 20, count.num_episodes
assert first.records[-1].env_steps == first.summary.env_steps >= 600
assert 9 < first.summary.ep_len_mean <= 20
assert first.policy().act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
"""


def test_a_notebook_trains_on_a_function_of_a_cell_and_again_and_prints_nothing(tmp_path: Path) -> None:
    # As in a kernel, `__main__` is not a file which another process could import; here it also says that it is one.
    done = python("-", cwd=tmp_path, stdin=NOTEBOOK)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


SCRIPT = """
import sys
from asyncrl import TrainConfig, Trainer
from worlds import make_world

def start():
    config = TrainConfig(
        env=make_world, env_kwargs={"size": 30}, train_for_env_steps=128, num_workers=1, num_envs_per_worker=4,
        rollout=8, batch_size=32, num_batches_per_epoch=2, learner_threads=1, experiment="run",
        serial_mode="serial" in sys.argv,
    )
    print(Trainer(config).run().config.env)
"""
WORLDS = """
import gymnasium

def make_world(size):
    return gymnasium.make("CartPole-v1", max_episode_steps=size)
"""


def test_a_run_that_is_to_skip_training_completes_without_an_update(tmp_path: Path) -> None:
    result = train(tmp_path, debug_skip_training=True, train_for_env_steps=256, **SERIAL)
    assert result.status == "completed" and result.summary.env_steps >= 256
    assert "train/loss" not in newest_scalars(result)


def test_a_callable_of_a_module_is_known_by_its_name_to_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "worlds.py").write_text(WORLDS)
    (tmp_path / "script.py").write_text(SCRIPT + '\nif __name__ == "__main__":\n    start()\n')
    script = QuickProcess("script", ("serial",), tmp_path, {**os.environ, "PYTHONPATH": str(ROOT)})
    stdout, stderr = script.communicate()
    assert (script.wait(), stdout) == (0, "worlds:make_world\n"), stderr
    assert "env: worlds:make_world\n" in (tmp_path / "train_dir" / "run" / "config.yaml").read_text()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert evaluate_main(["--experiment=run", "--episodes=2"]) == 0
    assert "2 episodes" in capsys.readouterr().out


def test_a_script_without_a_main_guard_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "worlds.py").write_text(WORLDS)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "\nstart()\n")
    done = python(script.name, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("asyncrl.processes.children.RunFailed: The script starts training")
    assert 'if __name__ == "__main__":' in done.stderr.splitlines()[-1]


def test_mistakes_are_exceptions_with_the_sentences_of_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(asyncrl.UsageError, match="knows no environment 'CartPol-v1'; the nearest is CartPole"):
        train(tmp_path, env="CartPol-v1")
    with pytest.raises(asyncrl.UsageError, match=r"Would pass: --batch_size=\d+"):
        train(tmp_path, batch_size=33)
    with pytest.raises(asyncrl.UsageError, match=r"no package registers it \(registered: .*Or MODULE:Name"):
        train(tmp_path, callbacks=["no_such_callback"])
    lock = threading.Lock()
    with pytest.raises(asyncrl.UsageError, match="cannot be sent to other processes"):
        train(tmp_path, env=lambda: Told(lock is None))
    with pytest.raises(
        asyncrl.UsageError, match=r"returned int, but a gymnasium\.Env or an environment of PettingZoo is expected"
    ):
        train(tmp_path, env=lambda: 3)
    with pytest.raises(asyncrl.EnvironmentFailed, match="ZeroDivisionError"):
        train(tmp_path, env=lambda: 1 // 0)
    with pytest.raises(asyncrl.UsageError, match=r"expected an object of asyncrl\.Observer"):
        Trainer(TrainConfig(env="CartPole-v1"), [print])  # type: ignore[list-item]
    with pytest.raises(asyncrl.UsageError, match=r"expected an object of asyncrl\.Observer"):
        Trainer(TrainConfig(env="CartPole-v1"), Noting)  # type: ignore[arg-type]
    with pytest.raises(asyncrl.UsageError, match=r"takes settings by name: give TrainConfig\(env='CartPole-v1'\)"):
        TrainConfig("CartPole-v1")  # type: ignore[call-arg]
    with pytest.raises(
        asyncrl.UsageError, match=r"The first argument of Trainer is a TrainConfig\(env=\.\.\.\), got 'PPO'"
    ):
        Trainer("PPO", "CartPole-v1")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("method", "event"),
    [("_on_step", "on_status"), ("on_rollout_end", "on_record"), ("on_training_end", "on_end"), ("_on_end", "on_end")],
)
def test_methods_named_like_events_that_do_not_exist_are_refused(method: str, event: str) -> None:
    foreign = type("Foreign", (Observer,), {method: lambda self: True})()
    with pytest.raises(asyncrl.UsageError, match=rf"Foreign has a method {method}, but .*; the nearest is {event}\."):
        Trainer(TrainConfig(env="CartPole-v1"), [foreign])


def test_settings_that_are_not_possible_are_one_error_with_the_sentences_of_the_command_line() -> None:
    with pytest.raises(asyncrl.UsageError) as raised:
        TrainConfig(gamma=2.0, algo="pp0", num_workers=0, lr=1e-3, lerning_rate=1e-3, env=5)  # type: ignore[call-arg,arg-type]
    with pytest.raises(ConfigError) as of_flags:
        load(["--gamma=2.0", "--num_workers=0"])
    found = str(raised.value).splitlines()
    assert len(found) == 6
    assert set(str(of_flags.value).splitlines()) < set(found)
    assert "--gamma=2 is not possible: expected a number at least 0 and at most 1." in found
    assert any(line.startswith("--algo=pp0 is not possible: ") and "nearest is ppo" in line for line in found)
    assert "There is no setting lr: PyTorch's lr is --learning_rate." in found
    assert "There is no setting lerning_rate; the nearest is learning_rate." in found
    assert [problem.settings for problem in raised.value.problems][1:3] == [("algo",), ("num_workers",)]  # type: ignore[attr-defined]
    assert TrainConfig(gamma="0.5").gamma == 0.5  # type: ignore[arg-type]
    assert TrainConfig(env_kwargs='{"size": 3}').env_kwargs == {"size": 3}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"env": gymnasium.Env()}, "give an id, or a callable that makes an environment"),
        ({"env_kwargs": {"f": print}}, "they are saved as JSON, and Object of type builtin_function_or_method is not"),
        ({"callbacks": [Noting()]}, r"give observers themselves to Trainer\(config, callbacks=\[...\]\)"),
        ({"callbacks": Noting()}, r"give observers themselves to Trainer\(config, callbacks=\[...\]\)"),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_reason(settings: dict[str, Any], reason: str) -> None:
    (name,) = settings
    with pytest.raises(asyncrl.UsageError, match=rf"^--{name}=.* is not possible: expected .*; {reason}.*\.$"):
        TrainConfig(**settings)


def test_paths_and_a_single_callback_may_be_given_as_they_are(tmp_path: Path) -> None:
    noting = Noting()
    settings = {**SMALL, "serial_mode": True, "train_for_env_steps": 64, "train_dir": tmp_path / "runs"}
    config = TrainConfig(env="CartPole-v1", experiment="first", **settings)
    first = Trainer(config, noting, preset="none").run()
    assert first.folder == tmp_path / "runs" / "first" and len(noting.of("end")) == 1
    other = TrainConfig(env="CartPole-v1", init_from=first.folder, **settings)
    assert other.init_from == str(first.folder)
    assert Path(str(Trainer(other, preset="none").run().config.init_from)).is_relative_to(first.folder)
    again = Trainer(TrainConfig(train_dir=tmp_path / "runs", experiment=first.folder)).run()
    assert again.folder == first.folder and again.nothing_to_do is not None


def test_what_is_not_given_comes_from_preset_and_saved_run(tmp_path: Path) -> None:
    fast = {"env": "CartPole-v1", "train_dir": str(tmp_path), "experiment": "run", "serial_mode": True}
    preset = Trainer(TrainConfig(**fast, train_for_env_steps=256, batch_size=64)).run()
    plain = TrainConfig()
    assert (preset.config.batch_size, preset.config.learning_rate) != (64, plain.learning_rate)
    assert preset.config.batch_size == 64
    noting = Noting()
    again = Trainer(TrainConfig(**{**fast, "train_for_env_steps": 1500}), [noting]).run()
    named, resumes, changes = [text for text in noting.of("message") if not text.startswith("warning: ")]
    assert named == "preset none: a resumed run keeps its settings"
    assert resumes == f"Resuming from {preset.summary.checkpoint} ({preset.summary.env_steps:,} steps)."
    assert changes == "Settings that change for this run from now on:\n  train_for_env_steps: 256 -> 1500"
    assert again.config.batch_size == 64
    assert again.summary.env_steps >= 1500
    assert [record.env_steps for record in again.records] == sorted(record.env_steps for record in again.records)
    told = Noting()
    done = Trainer(TrainConfig(**{**fast, "train_for_env_steps": 1500}), [told]).run()
    said = told.of("message")[-1]  # behind the preset and a warning
    assert said == f"Nothing to do: the run already has {done.nothing_to_do}."
    assert (done.status, done.summary.env_steps) == ("completed", again.summary.env_steps)
    assert done.nothing_to_do is not None

    before = again.summary
    (done.folder / "summary.json").unlink()  # as if killed after its last checkpoint
    written = Trainer(TrainConfig(**{**fast, "train_for_env_steps": 1500})).run().summary
    assert Summary(**json.loads((done.folder / "summary.json").read_text())) == written
    for name in ("status", "env_steps", "num_updates", "num_workers", "ep_rew_mean", "best_return", "checkpoint"):
        assert getattr(written, name) == getattr(before, name), name
    assert written.wall_s > 0


@pytest.mark.parametrize("mode", MODES)
def test_an_observer_is_told_what_happens_and_stops_the_run(tmp_path: Path, mode: dict[str, Any]) -> None:
    def stop_later(run: asyncrl.Run, record: Any) -> None:
        if run.env_steps >= 500:
            run.stop("enough")

    noting = Noting(record=stop_later, start=lambda run, _: run.save())
    result = train(tmp_path, noting, **mode, train_for_env_steps=10**8)
    assert (result.status, result.stop_reason, result.summary.status) == ("stopped", "enough", "stopped")
    assert 500 <= result.summary.env_steps < 10**6
    assert len(noting.of("episode")) == result.summary.num_episodes > 0
    assert [record.env_steps for record in noting.of("record")] == [record.env_steps for record in result.records]
    saved = [checkpoint for checkpoint in noting.of("checkpoint") if checkpoint.kind == "newest"]
    assert len(saved) == 2 and saved[0].env_steps < saved[-1].env_steps == result.summary.env_steps
    assert noting.of("message")[-1] == "stopping: enough"
    names = [name for name, _ in noting.events if name != "message"]
    assert (names[0], noting.events[-1]) == ("start", ("end", result.summary))
    assert len(noting.of("start")) == len(noting.of("end")) == 1


@pytest.mark.parametrize(
    ("mode", "event", "kind"),
    [
        (SERIAL, "start", LookupError),
        (SERIAL, "episode", SystemExit),
        (PARALLEL, "episode", LookupError),
        (PARALLEL, "end", LookupError),
    ],
    ids=["serial-start", "serial-episode-exit", "parallel-episode", "parallel-end"],
)
def test_an_observer_that_raises_ends_the_run_with_its_traceback_and_after_the_start_with_a_checkpoint(
    tmp_path: Path, mode: dict[str, Any], event: str, kind: type[BaseException]
) -> None:
    error = kind("of my own")

    def fail(run: asyncrl.Run, _: Any) -> None:
        raise error

    failing, other = Noting(**{event: fail}), Noting()
    with pytest.raises(asyncrl.RunFailed, match=f"the callback Noting failed: {kind.__name__}: of my own") as raised:
        train(tmp_path, failing, other, **mode, experiment="run", train_for_env_steps=10**8 if event != "end" else 500)
    assert raised.value.__cause__ is error
    assert "in fail\n" in raised.value.details
    assert len(failing.of(event)) == 1, "it is not called again"
    assert len(other.of("end")) == 1
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"
    if event == "start":
        folders = (tmp_path / "run" / name for name in ("logs", "checkpoints"))
        assert [path for folder in folders for path in folder.iterdir()] == [], "no process was started"
    else:
        assert asyncrl.load_policy(tmp_path / "run").act(np.zeros(4)) in (0, 1)


@pytest.mark.parametrize(("mode", "event"), [(SERIAL, "start"), (PARALLEL, "record"), (SERIAL, "end")])
def test_a_pruned_trial_of_optuna_is_raised_as_what_it_is_after_the_run_has_stopped(
    tmp_path: Path, mode: dict[str, Any], event: str
) -> None:
    optuna = pytest.importorskip("optuna")

    def prune(run: asyncrl.Run, _: Any) -> None:
        raise optuna.TrialPruned("not good enough")

    pruning = Noting(**{event: prune})
    with pytest.raises(optuna.TrialPruned, match="not good enough"):
        train(tmp_path, pruning, **mode, experiment="run", train_for_env_steps=10**8 if event != "end" else 500)
    assert len(pruning.of(event)) == 1, "it is not called again"
    status = json.loads((tmp_path / "run" / "summary.json").read_text())["status"]
    assert status == ("completed" if event == "end" else "stopped")


@pytest.mark.parametrize("mode", MODES)
def test_everything_is_in_the_runs_folder_wherever_an_environment_goes(
    tmp_path: Path, mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def make_there() -> gymnasium.Env[Any, Any]:
        os.chdir(elsewhere)
        return gymnasium.make("CartPole-v1")

    settings = {"experiment": "run", "eval_every_env_steps": 500, "eval_episodes": 1}
    result = train(Path("runs"), env=make_there, **mode, **settings)
    assert result.folder == tmp_path / "runs" / "run"
    assert result.policy("best").act(np.zeros(4)) in (0, 1) and result.policy().act(np.zeros(4)) in (0, 1)
    assert result.summary.eval_mean_reward is not None
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("mode", MODES)
def test_an_evaluation_is_made_when_it_is_asked_for(tmp_path: Path, mode: dict[str, Any]) -> None:
    noting = Noting(record=once(lambda run, _: run.evaluate()), evaluation=lambda run, _: run.stop())
    result = train(tmp_path, noting, **mode, train_for_env_steps=10**8, eval_episodes=3)
    (evaluation,) = noting.of("evaluation")
    assert evaluation.episodes == 3
    assert result.summary.eval_mean_reward == evaluation.mean_reward
    assert result.status == "stopped"


@pytest.mark.parametrize("mode", [PARALLEL, {**SERIAL, "algo": "sac", "warmup_env_steps": 200}], ids=["ppo", "sac"])
def test_new_hyperparameters_are_taken_published_saved_and_resumed(tmp_path: Path, mode: dict[str, Any]) -> None:
    is_sac = mode.get("algo") == "sac"
    new = Hyperparameters(learning_rate=1e-5, gamma=0.5, **({"tau": 0.5} if is_sac else {"entropy_loss_coeff": 0.25}))

    def stop_when_taken(run: asyncrl.Run, record: Any) -> None:
        if record.scalars.get("train/learning_rate") == pytest.approx(1e-5):
            run.stop()

    noting = Noting(start=lambda run, _: run.set_hyperparameters(new), record=stop_when_taken)
    settings = {**mode, "experiment": "run", "learning_rate": 0.01, "max_learner_restarts": 0}
    settings |= {"updates_per_env_step": 0.1} if is_sac else {}
    result = train(tmp_path, noting, **settings, train_for_env_steps=10**6)
    last = newest_scalars(result)
    assert {name: last[f"hyperparameters/{name}"] for name in new.changes()} == pytest.approx(new.changes())
    assert last["hyperparameters/policy_version"] == 0
    if not is_sac:
        assert last["train/entropy_loss"] == pytest.approx(-0.25 * last["train/entropy"], rel=0.3)
    assert (result.config.learning_rate, result.config.gamma) == (1e-5, 0.5)

    longer = {"train_for_env_steps": result.summary.env_steps + 1000}
    resumed = Noting()
    again = train(tmp_path, resumed, **settings, **longer)
    assert (again.config.learning_rate, again.config.gamma) == (1e-5, 0.5), "what is in effect"
    assert newest_scalars(again)["train/learning_rate"] == pytest.approx(1e-5)
    assert newest_scalars(again)["hyperparameters/gamma"] == 0.5
    longer = {"train_for_env_steps": again.summary.env_steps + 1000}
    changed = train(tmp_path, **{**settings, "learning_rate": 0.002, **longer})
    assert (changed.config.learning_rate, changed.config.gamma) == (0.002, 0.5), "the user overrides an observer"
    assert newest_scalars(changed)["train/learning_rate"] == pytest.approx(0.002)


def test_hyperparameters_and_messages_outlast_the_parts_of_a_repeatable_run(tmp_path: Path) -> None:
    noting = Noting(
        start=lambda run, _: run.set_training_info({"reward": 1.0}),
        checkpoint=once(lambda run, _: run.set_hyperparameters(Hyperparameters(learning_rate=1e-5))),
    )
    resets = {"serial_mode": True, "async_rl": False, "checkpoint_resets": True, "save_every_env_steps": 500}
    result = train(tmp_path, noting, env=Told, **resets)
    assert len(noting.of("checkpoint")) > 2
    assert newest_scalars(result)["train/learning_rate"] == pytest.approx(1e-5)
    assert min(episode.episode_return for episode in noting.of("episode")) == 5.0, "no part begins without the message"


def test_hyperparameters_that_cannot_be_taken_are_refused(tmp_path: Path) -> None:
    refused = []

    def ask(run: asyncrl.Run, _: Any) -> None:
        for new in (Hyperparameters(gamma=2.0), Hyperparameters(tau=0.5)):
            with pytest.raises(asyncrl.UsageError) as raised:
                run.set_hyperparameters(new)
            refused.append(str(raised.value))

    train(tmp_path, Noting(start=ask), serial_mode=True, train_for_env_steps=64)
    assert refused == [
        "--gamma=2 is not possible: expected a number at least 0 and at most 1.",
        "A new tau would have no effect: only algo=sac or td3 or dqn reads it.",
    ]


@pytest.mark.parametrize(
    "mode", [PARALLEL, {"algo": "a2c", "backend": "hogwild", "hogwild_mode": "synced"}], ids=["parallel", "hogwild"]
)
def test_environments_are_told_what_an_observer_sends(tmp_path: Path, mode: dict[str, Any]) -> None:
    def tell_more(run: asyncrl.Run, episode: Any) -> None:
        if episode.episode_return == 50.0:
            run.stop()
        elif episode.episode_return == 5.0:
            run.set_training_info({"reward": 10.0})

    noting = Noting(start=lambda run, _: run.set_training_info({"reward": 1.0}), episode=tell_more)
    result = train(tmp_path, noting, env=Told, **mode, train_for_env_steps=10**8)
    returns = [episode.episode_return for episode in noting.of("episode")]
    assert result.status == "stopped"
    assert {5.0, 50.0} <= set(returns)
    if "backend" not in mode:
        assert min(returns) == 5.0, "what is sent at the start is there before the first episode"


def test_the_curriculum_moves_on_when_the_returns_are_high_enough(tmp_path: Path) -> None:
    stages = [{"reward": 1.0}, {"reward": 2.0}, {"reward": 3.0}]
    curriculum = asyncrl.EnvironmentCurriculum(stages, thresholds=[5.0, 10.0])
    noting = Noting(episode=lambda run, episode: run.stop() if episode.episode_return == 15.0 else None)
    train(tmp_path, curriculum, noting, env=Told, serial_mode=True, train_for_env_steps=10**8)
    returns = [episode.episode_return for episode in noting.of("episode")]
    assert curriculum.stage == 2
    assert all(returns.count(each) >= 100 for each in (5.0, 10.0)), "each stage is played"
    assert returns[:100] == [5.0] * 100
    assert returns.count(10.0) >= 100
    assert returns[-1] == 15.0


def test_callbacks_with_the_names_of_stable_baselines_stop_the_run(tmp_path: Path) -> None:
    evaluated = {"eval_every_env_steps": 200, "eval_episodes": 1, "serial_mode": True, "env": Told}
    good_enough = asyncrl.StopTrainingOnRewardThreshold(reward_threshold=0.0)
    result = train(tmp_path, good_enough, **evaluated, train_for_env_steps=10**7)
    assert result.stop_reason == "the mean return 0.0 reaches 0"
    noting = Noting()
    no_better = asyncrl.StopTrainingOnNoModelImprovement(max_no_improvement_evals=2, min_evals=3)
    result = train(tmp_path, no_better, noting, **evaluated, train_for_env_steps=10**7)
    assert result.stop_reason == "no improvement in 3 evaluations; the best mean return is 0.0"
    assert len(noting.of("evaluation")) == 6
    with pytest.raises(asyncrl.RunFailed, match="needs evaluations during training: give eval_every_env_steps"):
        train(tmp_path, good_enough, serial_mode=True)
    called: list[int] = []
    every = asyncrl.EveryNTimesteps(500, lambda run: called.append(run.env_steps))
    train(tmp_path, every, serial_mode=True, train_for_env_steps=6000, report_every_s=0.01)
    assert len(called) >= 5
    assert len({steps // 500 for steps in called}) == len(called)


def test_an_improvement_of_any_policy_counts_as_one() -> None:
    run, no_better = mock.Mock(), asyncrl.StopTrainingOnNoModelImprovement(max_no_improvement_evals=1)
    for policy_idx, mean_return in ((0, 5.0), (1, 1.0), (0, 4.0), (1, 2.0), (0, 4.0)):
        no_better.on_evaluation(run, EvaluationReport(0, 0, mean_return, None, 1.0, 1, 0.0, policy_idx))
        run.stop.assert_not_called()
    no_better.on_evaluation(run, EvaluationReport(0, 0, 2.0, None, 1.0, 1, 0.0, 1))
    run.stop.assert_called_once_with("no improvement in 2 evaluations; the best mean return is 5.0")


def test_a_callback_object_begins_anew_with_another_run_and_goes_on_when_its_run_restarts(tmp_path: Path) -> None:
    def start_in(name: str, start: StartPoint) -> asyncrl.Run:
        run = asyncrl.Run([])
        run.config, run.folder = TrainConfig(env="CartPole-v1", eval_every_env_steps=100), tmp_path / name
        run.start, run.spec = start, mock.Mock(takes_training_info=True)
        for each in (no_better, curriculum):
            each.on_start(run)
        return run

    def evaluate_and_play(run: asyncrl.Run, mean_return: float, episode_return: float) -> None:
        no_better.on_evaluation(run, EvaluationReport(0, 0, mean_return, None, 1.0, 1, 0.0))
        for _ in range(100):
            curriculum.on_episode(run, EpisodeRecord(episode_return, 1, training_info=99))

    no_better = asyncrl.StopTrainingOnNoModelImprovement(max_no_improvement_evals=1)
    curriculum = asyncrl.EnvironmentCurriculum([{"stage": idx} for idx in range(4)], thresholds=[1.0, 2.0, 3.0])
    first = start_in("first", StartPoint())
    evaluate_and_play(first, 5.0, 1.0)
    evaluate_and_play(first, 4.0, 2.0)
    for each in (no_better, curriculum):  # the learner has died before its first checkpoint
        each.on_start(first)
    assert curriculum.stage == 2 and not first.is_stopping
    evaluate_and_play(first, 4.0, 0.0)
    assert first.is_stopping
    resumed = start_in("first", StartPoint(before=ResumedTotals(1000, 1.0)))
    assert curriculum.stage == 2
    evaluate_and_play(resumed, 4.0, 3.0)
    assert resumed.is_stopping and curriculum.stage == 3
    for name, start in (("second", StartPoint(before=ResumedTotals(1000, 1.0))), ("second", StartPoint())):
        other = start_in(name, start)
        assert curriculum.stage == 0
        evaluate_and_play(other, 4.0, 1.0)
        evaluate_and_play(other, 3.0, 0.0)
        assert curriculum.stage == 1 and not other.is_stopping


PACKAGE = """
from asyncrl import Observer

class Tracker(Observer):
    def on_end(self, run, summary):
        (run.folder / "tracked.txt").write_text(f"{summary.env_steps} {len(run.folder.name)}")
"""


def test_a_package_adds_a_callback_by_an_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site"
    metadata = site / "tracking-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "tracking.py").write_text(PACKAGE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tracking\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[asyncrl.callbacks]\ntracker = tracking:Tracker\n")
    monkeypatch.syspath_prepend(str(site))
    cart_pole = ["--env=CartPole-v1", f"--train_dir={tmp_path}"]
    short = [*cart_pole, "--serial_mode", "--train_for_env_steps=256", "--preset=none", "--quiet"]
    for experiment, name in (("registered", "tracker"), ("named", "tracking:Tracker")):
        assert train_main([*short, f"--callbacks={name}", f"--experiment={experiment}"]) == 0
        steps = json.loads((tmp_path / experiment / "summary.json").read_text())["env_steps"]
        assert (tmp_path / experiment / "tracked.txt").read_text() == f"{steps} {len(experiment)}"
    capsys.readouterr()
    for command in (validate_main, train_main):
        assert command([*cart_pole, "--callbacks=asyncrl:StopTrainingOnRewardThreshold"]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: --callbacks=asyncrl:Stop") and error.count("\n") == 1
        assert "needs arguments (missing a required argument" in error
    assert validate_main([*cart_pole, "--callbacks=traker"]) == 2
    assert capsys.readouterr().err == (
        "error: --callbacks=traker: no package registers it (registered: tracker); the nearest is tracker. Or "
        "MODULE:Name.\n"
    )


def test_ctrl_c_interrupts_a_run_and_means_what_it_meant_before(tmp_path: Path) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    result = train(
        tmp_path, Noting(record=once(lambda *_: signal.raise_signal(signal.SIGINT))), train_for_env_steps=10**8
    )
    assert (result.status, result.stop_signal) == ("interrupted", signal.SIGINT)
    assert result.policy().act(np.zeros(4)) in (0, 1)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers

    def interrupt_twice(*_: Any) -> None:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.2)  # two signals at once are one request

    with pytest.raises(KeyboardInterrupt, match="Second Ctrl-C: stopped at once"):
        train(tmp_path, Noting(record=once(interrupt_twice)), train_for_env_steps=10**8)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_another_thread_runs_a_trainer_and_stops_it(tmp_path: Path) -> None:
    config = TrainConfig(env="CartPole-v1", train_for_env_steps=10**8, train_dir=str(tmp_path), **SMALL)
    noting, results = Noting(), []
    trainer = Trainer(config, [noting])
    thread = threading.Thread(target=lambda: results.append(trainer.run()))
    thread.start()
    deadline = time.monotonic() + 60.0
    while not noting.of("episode") and time.monotonic() < deadline:
        time.sleep(0.05)
    trainer.stop("closed")
    thread.join(60.0)
    assert [(result.status, result.stop_reason) for result in results] == [("stopped", "closed")]
