"""Videos during training: when, of which policies, how long, and what becomes of a run whose videos fail."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
import torch
from drawn_envs import greys, size_of
from layouts import vector_observation
from run_helper import run
from small_runs import planned, small_arena

from asyncrl import Observer, TrainConfig, Trainer
from asyncrl.buffers.control import RunControl
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.errors import ConfigError
from asyncrl.envs import showing
from asyncrl.envs.spec import DiscreteAction, EnvSpec
from asyncrl.evaluation import worker as worker_module
from asyncrl.evaluation.videos import VideoWorker
from asyncrl.evaluation.worker import PublishedPolicy, PublishedTeam
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.flat import FlatParameters, block_size, write_block
from asyncrl.observers.observer import Run
from asyncrl.observers.reports import EvaluationReport, VideoReport
from asyncrl.storage.run_folder import RunFolder

SPEC = EnvSpec("drawn_envs:counter", vector_observation(1), DiscreteAction(2, 0), None)


class Recording:
    """A worker of videos over an arena, with a learner played by the test; both policies have the same weights."""

    def __init__(self, folder: Path, env_steps: int = 0, num_policies: int = 1, **settings: Any) -> None:
        defaults = {"env": SPEC.env_id, "video_every_env_steps": 1000, "encoder_mlp_layers": [8]}
        config = TrainConfig(**{**defaults, **settings})
        plan = planned(batch_size=8, num_workers=1, num_envs_per_worker=2)
        model = ActorCritic(SPEC, config)
        self._block = torch.empty(block_size(model))
        write_block(model, FlatParameters(model), self._block)
        arena, _ = small_arena(plan, SPEC, block_size(model))
        self._channel, self.control = WeightsChannel(arena), RunControl(arena, 1)
        team = PublishedTeam(PublishedPolicy(config, SPEC, self._channel))
        self.worker = VideoWorker([team] * num_policies, self.control, folder, env_steps)

    def publish(self, env_steps: int) -> None:
        self._channel.publish(np.asarray(self._block), version=env_steps // 10, env_steps=env_steps)

    def run(self, look: Callable[[], None] | None = None) -> list[VideoReport]:
        return [report for report in self.worker.run(look) if isinstance(report, VideoReport)]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_video_is_due_at_the_start_at_every_multiple_and_of_the_final_policy(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "videos", train_for_env_steps=4000)
    assert not recording.worker.is_due  # no weights yet
    due = []
    for env_steps in (0, 500, 1000, 1900, 3500, 4010):
        recording.publish(env_steps)
        due.append(recording.worker.is_due)
        if due[-1]:
            (report,) = recording.run()
            assert (report.env_steps, report.error) == (env_steps, None)
            assert report.path == str(tmp_path / "videos" / f"step_{env_steps:012d}.mp4")
    assert due == [True, False, True, False, True, False]
    recording.control.end()
    assert recording.worker.is_due and not recording.worker.is_over
    recording.run()
    assert recording.worker.is_over
    assert names(tmp_path / "videos") == [f"step_{env_steps:012d}.mp4" for env_steps in (0, 1000, 3500, 4010)]
    resumed = Recording(tmp_path, env_steps=2500)
    for env_steps, is_due in ((2500, False), (3000, True)):
        resumed.publish(env_steps)
        assert resumed.worker.is_due == is_due


@pytest.mark.parametrize(("length", "num_steps"), [(5, 5), (100, 8)])
def test_a_video_is_one_episode_or_its_beginning(tmp_path: Path, length: int, num_steps: int) -> None:
    recording = Recording(tmp_path, video_length=length)
    recording.publish(0)
    (report,) = recording.run()
    drawn = greys(Path(report.path))
    assert drawn == pytest.approx([10 + 20 * step for step in range(num_steps + 1)], abs=3)
    assert size_of(Path(report.path)) == (32, 32, 10.0)


def test_several_policies_have_a_video_each(tmp_path: Path) -> None:
    recording = Recording(tmp_path, num_policies=2)
    recording.publish(0)
    assert [report.policy_idx for report in recording.run()] == [0, 1]
    assert names(tmp_path) == ["step_000000000000_policy_0.mp4", "step_000000000000_policy_1.mp4"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"env": "probe_envs:ConstantReward-v0"}, "cannot be shown or recorded"),
        ({"env_kwargs": {"draws": "mistake"}}, "The environment failed in step, episode 0, at its step"),
        ({"env_kwargs": {"draws": "growing"}}, "a frame of 64 x 64 follows others of another size"),
    ],
)
def test_after_the_first_failure_there_are_no_more_and_no_part_is_left(
    tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    recording = Recording(tmp_path / "videos", num_policies=2, **settings)
    recording.publish(0)
    (report,) = recording.run()
    assert report.error is not None and said in report.error and "\n" not in report.error
    recording.publish(1000)
    assert not recording.worker.is_due
    assert not (tmp_path / "videos").exists() or names(tmp_path / "videos") == []


def test_a_request_to_stop_leaves_no_part_of_a_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_LOOK_EVERY_S", 0.0)
    recording = Recording(tmp_path, env_kwargs={"length": 100_000}, video_length=100_000)
    recording.publish(0)
    assert recording.run(recording.control.request_stop) == []
    assert names(tmp_path) == []


class Listens(Observer):
    def __init__(self) -> None:
        self.said: list[str] = []
        self.videos: list[VideoReport] = []

    def on_message(self, run: Run, text: str) -> None:
        self.said.append(text)

    def on_video(self, run: Run, video: VideoReport) -> None:
        self.videos.append(video)


def config_of(folder: Path, **settings: Any) -> TrainConfig:
    small = {"num_workers": 1, "num_envs_per_worker": 2, "rollout": 8, "batch_size": 16, "num_batches_per_epoch": 2}
    small |= {"train_for_env_steps": 300, "encoder_mlp_layers": [8], "serial_mode": True, "async_rl": False}
    defaults = {"env": SPEC.env_id, "train_dir": str(folder), "experiment": "run", "video_every_env_steps": 150}
    return TrainConfig(**{**small, **defaults, "with_tensorboard": False, **settings})


def test_a_run_without_evaluations_has_videos_and_a_resumed_one_forgets_those_of_later_steps(tmp_path: Path) -> None:
    listens = Listens()
    folder = Trainer(config_of(tmp_path), [listens], preset="none").run().folder
    steps = [video.env_steps for video in listens.videos]
    assert steps[0] == 0 and 150 <= steps[1] < 300 <= steps[-1]
    assert names(folder / "videos") == [f"step_{env_steps:012d}.mp4" for env_steps in steps]
    assert not any("eval/mean_reward" in line for line in (folder / "metrics.jsonl").read_text().splitlines())
    (folder / "videos" / ".step_000000000150.mp4.part").touch()  # the run was killed
    RunFolder(folder).forget_after(200)
    assert names(folder / "videos") == [f"step_{env_steps:012d}.mp4" for env_steps in steps if env_steps <= 200]


def test_a_run_whose_environment_cannot_be_drawn_is_trained_with_one_warning(tmp_path: Path) -> None:
    listens = Listens()
    config = config_of(tmp_path, env="probe_envs:ConstantReward-v0")
    result = Trainer(config, [listens], preset="none").run()
    assert result.status == "completed"
    (warning,) = [text for text in listens.said if not text.startswith("preset ")]
    assert warning.startswith("warning: There are no more videos, training continues: probe_envs:ConstantReward-v0")
    assert not (result.folder / "videos").exists()


@pytest.mark.usefixtures("leaves_nothing")
def test_a_process_of_its_own_writes_videos_of_each_policy(tmp_path: Path) -> None:
    settings = {"num_policies": 2, "policy_mapping": "independent", "train_for_env_steps": 800, "num_epochs": 1}
    finished = run(tmp_path, "async-local", "drawn_envs:game", **settings, video_every_env_steps=10_000)
    reports = [report for report in finished.reports if isinstance(report, VideoReport)]
    assert [report.error for report in reports] == [None] * len(reports)
    assert {(report.env_steps == 0, report.policy_idx) for report in reports} >= {(False, 0), (False, 1)}
    assert names(tmp_path / "videos") == sorted(Path(report.path).name for report in reports)
    assert not any(isinstance(report, EvaluationReport) for report in finished.reports)


def test_a_renderer_that_fails_to_close_costs_nothing(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "videos", env_kwargs={"draws": "no end"})
    recording.publish(0)
    (report,) = recording.run()
    assert report.error is None and names(tmp_path / "videos") == ["step_000000000000.mp4"]


def test_a_video_that_ffmpeg_could_not_finish_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = imageio_ffmpeg.write_frames

    def write_without_the_end(path: str, *args: Any, **named: Any) -> Any:
        try:
            yield from write(path, *args, **named)
        finally:
            os.truncate(path, Path(path).stat().st_size - 1)

    monkeypatch.setattr(imageio_ffmpeg, "write_frames", write_without_the_end)
    recording = Recording(tmp_path / "videos")
    recording.publish(0)
    (report,) = recording.run()
    assert report.error is not None and "is incomplete" in report.error
    assert names(tmp_path / "videos") == []


@pytest.mark.usefixtures("leaves_nothing")
def test_a_crash_while_drawing_ends_videos_and_neither_evaluations_nor_the_run(tmp_path: Path) -> None:
    settings = {"train_for_env_steps": 800, "num_epochs": 1, "env_kwargs": {"draws": "crash"}}
    finished = run(
        tmp_path, "async-local", SPEC.env_id, **settings, video_every_env_steps=10_000, eval_every_env_steps=10_000
    )
    (report,) = [report for report in finished.reports if isinstance(report, VideoReport)]
    assert report.error is not None and "SIGSEGV" in report.error
    evaluations = [report for report in finished.reports if isinstance(report, EvaluationReport)]
    assert [report.env_steps for report in evaluations] == [finished.outcome.env_steps]


def test_a_failing_video_is_tried_once_in_a_run_that_restarts_at_checkpoints(tmp_path: Path) -> None:
    listens = Listens()
    settings = {"checkpoint_resets": True, "save_every_env_steps": 50, "env_kwargs": {"draws": "mistake"}}
    result = Trainer(config_of(tmp_path, **settings), [listens], preset="none").run()
    assert result.status == "completed"
    assert len(list((result.folder / "checkpoints").glob("*"))) > 1
    assert len([text for text in listens.said if "no more videos" in text]) == 1


def test_a_missing_package_is_one_sentence_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(showing.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as raised:
        Trainer(config_of(tmp_path), preset="none").run()
    assert str(raised.value) == "Videos need imageio-ffmpeg, which is not installed: pip install imageio-ffmpeg"
    assert not (tmp_path / "run").exists()
