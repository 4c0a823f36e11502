import dataclasses
import itertools
import json
import struct
import threading
import time
from dataclasses import MISSING
from types import SimpleNamespace

import pytest

from asyncrl.config.plan import HogwildPlan
from asyncrl.config.schema import TrainConfig
from asyncrl.observers import writers
from asyncrl.observers.monitor import Monitor
from asyncrl.observers.observer import Observer, StartPoint
from asyncrl.observers.observer import Run as ObservedRun
from asyncrl.observers.reports import (
    Activity,
    CheckpointReport,
    EpisodeRecord,
    EvaluationFailed,
    EvaluationReport,
    InferenceReport,
    LagMetrics,
    LearnerReport,
    Phase,
    ReplayMetrics,
    RestartReport,
    RolloutReport,
    TrainMetrics,
    UpdateProgress,
)
from asyncrl.observers.summary import ResumedTotals, duration
from asyncrl.observers.writers import JsonLines, TensorBoard
from asyncrl.storage.run_folder import RunFolder


class Watcher(Observer):
    """Keeps what it is told."""

    def __init__(self):
        self.records, self.updates, self.said, self.has_ended = [], [], [], False

    def on_status(self, run, status):
        (self.records if status.is_line else self.updates).append(status)

    def on_message(self, run, text):
        self.said.append(text)

    def on_end(self, run, summary):
        self.has_ended = True


class Run:
    """A monitor over a folder, with a clock that the test moves."""

    def __init__(self, path, earlier=None, changed=(), frames_per_step=1, training_returns_mislead=False, **settings):
        observed = ObservedRun([JsonLines(), TensorBoard(), watcher := Watcher()])
        given = {"env": "X-v0", "train_for_env_steps": 10_000, "with_tensorboard": False, "report_every_s": 5.0}
        given |= settings
        observed.config, observed.folder = TrainConfig(**given), path
        observed.start = StartPoint(before=earlier, changed_settings=changed)
        observed.spec = SimpleNamespace(frames_per_step=frames_per_step)
        kind = {"hogwild": settings.get("backend") and HogwildPlan("synced", 2), "replay": None, "steps_tensors": False}
        sizes = {"num_workers": 2, "num_agents": 1, "num_envs": 4, "dataset_size": 2048, "lag_bound": 77}
        num_policies = observed.config.num_policies
        observed.plan = SimpleNamespace(has_slot_pools=False, num_policies=num_policies, **kind, **sizes)
        if observed.config.with_tensorboard:
            import tensorboardX.event_file_writer  # noqa: F401  the writer then does not wait for its import
        self.folder, self.progress, self.now = RunFolder(path), watcher, 1000.0
        mislead = training_returns_mislead
        self.monitor = Monitor(observed, clock=lambda: self.now, started_at=997.0, training_returns_mislead=mislead)
        observed.notify(Observer.on_start)

    def at(self, seconds, *reports):
        """Handles reports at a time since the monitor was made, then ticks."""
        self.now = 1000.0 + seconds
        for report in reports:
            self.monitor.handle(report)
        self.monitor.tick()

    @property
    def records(self):
        return [json.loads(line) for line in self.folder.metrics.read_text().splitlines()]


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def control(activity=None, first_step_at=None):
    """The words of the arena that the monitor reads."""
    return SimpleNamespace(activity=activity or Activity(), first_step_at=first_step_at)


def rollout(worker_idx=0, env_steps=0, episodes=(), wall_s=1.0, busy_s=0.5):
    phases = {Phase.STEP: busy_s, Phase.WAIT_SLOTS: wall_s - busy_s}
    return RolloutReport(worker_idx, wall_s, env_steps, tuple(episodes), phases)


def learner(env_steps, num_updates=8, lag=None, dropped=0, slots_ready=2, loss=1.0, learning_rate=1e-3):
    zeros = dict.fromkeys((field.name for field in dataclasses.fields(TrainMetrics) if field.default is MISSING), 0.0)
    train = TrainMetrics(**{**zeros, "loss": loss, "learning_rate": learning_rate, "effective_sample_size": 1.0})
    lag = lag or LagMetrics(mean=8.0, p95=8.0, max=8, age_ms=100.0)
    return LearnerReport(
        env_steps, env_steps, num_updates, 2.0, train, lag, slots_ready, dropped, phases={Phase.TRAIN: 1.5}
    )


def test_a_record_sums_up_what_was_reported_since_the_one_before(run):
    run.at(1, rollout(0, 100, wall_s=1.0, busy_s=0.9), rollout(1, 100, wall_s=3.0, busy_s=0.3))
    run.at(2, *(InferenceReport(idx, 1.0, 10 + 20 * idx, 400, {Phase.FORWARD: 0.25 + 0.5 * idx}) for idx in (0, 1)))
    run.at(3, learner(1000, 8, LagMetrics(4.0, 6.0, 12, 10.0, 0.25), loss=1.0, learning_rate=2e-3))
    run.at(
        4, learner(2000, 16, LagMetrics(8.0, 10.0, 11, 30.0), loss=3.0, learning_rate=1e-3, dropped=5, slots_ready=3)
    )
    run.at(5)
    (record,) = run.records
    expected = {
        "env_steps": 2000,
        "time/total_env_steps": 2000.0,
        "time/time_elapsed": 8.0,
        "time/fps": 1000.0,
        "perf/rollout_busy": 0.3,
        "perf/inference_busy": 0.5,
        "perf/learner_busy": 0.75,
        "perf/inference_batch_size": 20.0,
        "perf/slots_ready": 3.0,
        "perf/dropped_samples": 5.0,
        "perf/restarts": 0.0,
        "train/loss": 2.0,
        "train/learning_rate": 1e-3,
        "train/n_updates": 16.0,
        "lag/mean": 6.0,
        "lag/p95": 8.0,
        "lag/over_bound": 0.125,
        "lag/max": 12.0,
        "lag/age_ms": 20.0,
    }
    assert {name: record.get(name) for name in expected} == pytest.approx(expected)

    run.at(10, learner(3000, loss=7.0))
    assert run.records[1]["train/loss"] == 7.0
    assert run.records[1]["lag/max"] == 8.0
    assert "perf/rollout_busy" not in run.records[1]


_TURN_S = 1 / 16


def trained(run, until_s, every_s):
    """Lets a run train a dataset of 100 steps every so many seconds; returns the times of the records."""
    run.at(0.0, rollout(env_steps=1))
    for tick in range(1, round(until_s / _TURN_S) + 1):
        is_new = tick * _TURN_S % every_s == 0
        run.at(tick * _TURN_S, *([learner(round(100 * tick * _TURN_S / every_s))] if is_new else []))
    return [record["time/time_elapsed"] for record in run.records]


def test_a_short_run_has_a_record_for_each_dataset(tmp_path):
    times = trained(Run(tmp_path, report_every_s=None), until_s=6.0, every_s=0.25)
    assert len(times) == 24


def test_records_are_dense_at_the_beginning_and_five_seconds_apart_later(tmp_path):
    run = Run(tmp_path, report_every_s=None)
    times = trained(run, until_s=550.0, every_s=_TURN_S)
    for before, later in itertools.pairwise(times):
        interval_s = max(0.1, min(5.0, 0.04 * (later - 3.0)))  # the first step was made after 3 s
        assert interval_s <= later - before < interval_s + _TURN_S, "at the first turn after it"
    assert sum(at_s <= 5.5 for at_s in times) == 2.5 / (2 * _TURN_S)
    assert len(run.progress.records) == 110, "progress lines keep their interval"
    assert run.records[-1]["time/fps"] == pytest.approx(100 / _TURN_S)


def test_without_a_new_dataset_a_record_comes_after_five_seconds(tmp_path):
    run = Run(tmp_path, report_every_s=None)
    for tenth in range(1, 101):
        run.at(tenth / 10, rollout(env_steps=10))
    assert [record["time/time_elapsed"] for record in run.records] == [8.0, 13.0]


def test_a_resumed_run_counts_its_earlier_time_and_a_given_interval_is_kept(tmp_path):
    resumed = Run(tmp_path / "a", report_every_s=None, earlier=ResumedTotals(0, 600.0, 600.0))
    given = Run(tmp_path / "b", report_every_s=2.0)
    for run, every_s in ((resumed, 5.0), (given, 2.0)):
        run.folder.path.mkdir()
        assert len(trained(run, until_s=20.0, every_s=_TURN_S)) == 20.0 / every_s


def test_the_speed_in_a_record_is_that_of_the_last_seconds(tmp_path):
    run = Run(tmp_path, report_every_s=None)
    for fifth in range(1, 101):  # the runner sees none to two datasets of 200 steps at a time
        num_done = fifth if fifth % 2 else fifth - 1
        run.at(fifth / 5, learner(200 * num_done))
    speeds = [record["time/fps"] for record in run.records if record["time/time_elapsed"] > 8.0]
    assert len(speeds) > 20 and speeds == pytest.approx([1000.0] * len(speeds), rel=0.1)


def test_cores_in_use_are_processor_time_over_the_time_since_the_record_before(run):
    run.at(1, dataclasses.replace(rollout(0), cpu_s=3.0), dataclasses.replace(learner(1000), cpu_s=5.0))
    run.at(5)
    run.at(7, dataclasses.replace(learner(2000), cpu_s=2.0))
    run.at(11)
    assert [record["perf/cores_in_use"] for record in run.records] == pytest.approx([8.0 / 8.0, 2.0 / 6.0])


def test_a_report_has_the_processor_time_since_the_report_before():
    started = time.process_time()
    rollout(0)
    between = time.process_time()
    while time.process_time() - between < 0.01:
        pass
    found = rollout(0)
    assert 0.01 <= found.cpu_s <= time.process_time() - started
    assert rollout(0) == found, "reports are compared by what they report"


@pytest.mark.parametrize(("frames_per_step", "frames"), [(4, 4096), (1, None)])
def test_frames_of_a_game_are_a_separate_metric(tmp_path, frames_per_step, frames):
    run = Run(tmp_path, frames_per_step=frames_per_step)
    run.at(6, learner(1024))
    (record,) = run.records
    assert (record["time/total_env_steps"], record.get("time/total_frames")) == (1024, frames)


def test_speed_is_measured_between_the_ends_of_datasets(run):
    # A dataset of 1,000 steps every 2 s; records every 5 s see two or three of them.
    for second in range(1, 22):
        reports = [learner(1000 * second // 2)] if second % 2 == 0 else []
        run.at(second, *reports)
    assert [record["time/fps"] for record in run.records] == pytest.approx([500.0] * 4)
    # Then four times as fast: the figure is of its own interval, not of the whole run.
    for step in range(1, 11):
        run.at(20 + step / 2, learner(10_000 + 1000 * step))
    assert run.records[4]["time/fps"] == pytest.approx(2000.0)


@pytest.mark.parametrize(
    ("seconds", "fps"), [((60.0, 61.0), 1000.0), ((1.0, 1.001), None)], ids=["without start-up", "at once"]
)
def test_the_speed_of_a_run_is_over_the_time_in_which_steps_were_made(run, seconds, fps):
    for number, second in enumerate(seconds, start=1):
        run.at(second, learner(1000 * number))
    found = run.monitor.finish("completed").fps
    assert found == (None if fps is None else pytest.approx(fps))


def test_episodes_are_averaged_over_the_last_hundred(run):
    old = [EpisodeRecord(1e6, 10**6)] * 30
    new = [EpisodeRecord(float(i), 10 + i, {"speed": i} if i % 2 else {}) for i in range(100)]
    run.at(5, rollout(episodes=old), rollout(episodes=new))
    (record,) = run.records
    assert record["rollout/ep_rew_mean"] == pytest.approx(49.5)
    assert record["rollout/ep_len_mean"] == pytest.approx(59.5)
    assert record["episode_extra_stats/speed"] == pytest.approx(50.0)
    assert run.monitor.finish("completed").num_episodes == 130


def test_lines_are_valid_json_whatever_a_number_is_and_none_is_written_without_a_report(run):
    run.at(5)
    assert not run.folder.metrics.exists() and len(run.progress.records) == 1
    run.at(10, learner(1000, loss=float("nan")))
    assert run.records[0]["train/loss"] is None


def test_a_line_that_a_killed_run_began_spoils_no_other(run):
    run.folder.metrics.write_text('{"env_steps": 1}\n{"env_st')
    run.at(5, learner(1000))
    run.at(10, learner(2000))
    lines = run.folder.metrics.read_text().splitlines()
    assert [json.loads(line)["env_steps"] for line in (lines[0], *lines[2:])] == [1, 1000, 2000]


def read_events(folder):
    """Reads TensorBoard's record format: length, its checksum, an Event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    (path,) = folder.iterdir()
    content, events = path.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        events.append(Event.FromString(content[12 : 12 + length]))
        content = content[16 + length :]
    return events


def test_tensorboard_gets_what_metrics_jsonl_gets(tmp_path):
    run = Run(tmp_path, with_tensorboard=True)
    run.at(5, learner(1000), rollout(0, 100, [EpisodeRecord(3.5, 7)]))
    header, event = read_events(run.folder.tensorboard)
    assert header.file_version == "brain.Event:2"
    assert event.step == 1000
    scalars = {value.tag: value.simple_value for value in event.summary.value}
    assert scalars == pytest.approx({name: value for name, value in run.records[0].items() if name != "env_steps"})


def test_the_runner_does_not_wait_until_tensorboard_is_imported(tmp_path, monkeypatch):
    may_import = threading.Event()
    monkeypatch.setattr(writers, "_EVENT_FILES", "not imported yet")
    monkeypatch.setattr(writers.importlib, "import_module", lambda name: may_import.wait(30.0))
    run = Run(tmp_path, with_tensorboard=True)
    for second in (5, 10):
        run.at(second, learner(100 * second))
    assert len(run.records) == 2 and not run.folder.tensorboard.exists()
    may_import.set()
    run.monitor.finish("completed")
    assert [event.step for event in read_events(run.folder.tensorboard)] == [0, 500, 1000]


def test_a_run_that_goes_on_counts_on_and_hides_what_came_after_its_checkpoint(tmp_path):
    first = Run(tmp_path)
    first.at(4, rollout(0, 64, [EpisodeRecord(10.0, 5, {"height": 2.0}), EpisodeRecord(20.0, 5)]))
    first.at(6, learner(5000), CheckpointReport("checkpoints/a", 5000))
    run = Run(tmp_path, with_tensorboard=True, earlier=ResumedTotals(5000, 68.0, 70.0))
    run.at(4, rollout(0, 64, [EpisodeRecord(30.0, 5)]))
    run.at(6)
    record = run.records[-1]
    assert (record["env_steps"], record["time/time_elapsed"]) == (5000, 79.0)
    assert record["rollout/ep_rew_mean"] == 20.0
    _, start, event = read_events(run.folder.tensorboard)
    assert (start.session_log.status, start.step, event.step) == (start.session_log.START, 5001, 5000)
    summary = run.monitor.finish("completed")
    assert (summary.env_steps, summary.wall_s) == (5000, 9.0)


def test_a_run_that_ended_before_its_first_checkpoint_hides_its_records_when_it_begins_anew(tmp_path):
    Run(tmp_path, with_tensorboard=True).at(5, learner(4000), rollout(0, 64, [EpisodeRecord(1.0, 5)]))
    (earlier,) = RunFolder(tmp_path).tensorboard.iterdir()
    earlier.rename(earlier.with_name("earlier"))
    run = Run(tmp_path, with_tensorboard=True)
    run.at(5, learner(1000), rollout(0, 64, [EpisodeRecord(1.0, 5)]))
    (run.folder.tensorboard / "earlier").unlink()
    _, start, event = read_events(run.folder.tensorboard)
    assert (start.session_log.status, start.step, event.step) == (start.session_log.START, 0, 1000)


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (EvaluationFailed("the wheels came off"), "The evaluation failed, training continues: the wheels came off"),
        (dataclasses.replace(learner(100), notice="there is no compiler"), "warning: there is no compiler"),
    ],
)
def test_problems_of_evaluation_and_learner_are_said(tmp_path, report, text):
    for settings, where in (({}, f" (log: {tmp_path / 'logs' / 'evaluation.log'})"), ({"serial_mode": True}, "")):
        run = Run(tmp_path, **settings)
        run.at(1.0, report)
        assert run.progress.said == [text + (where if isinstance(report, EvaluationFailed) else "")]


def test_a_run_in_which_no_episode_ends_is_warned_once(run, tmp_path):
    run.at(1.0, rollout(env_steps=79_999))
    assert run.progress.said == []
    run.at(2.0, rollout(env_steps=1), rollout(worker_idx=1, env_steps=100))
    (text,) = run.progress.said
    assert text.startswith("warning: no episode has ended after 20,000 steps of each environment: wrap the environment")
    other = Run(tmp_path / "other")
    other.at(1.0, rollout(env_steps=50, episodes=(EpisodeRecord(1.0, 50),)), rollout(env_steps=1_000_000))
    assert other.progress.said == []


def test_an_evaluation_is_a_record_of_the_steps_it_speaks_of(run):
    run.at(4.5, learner(9000), EvaluationReport(8000, 64, 12.5, 3.0, 40.0, 10, 2.0))
    (record,) = run.records
    assert record == {"env_steps": 8000, "eval/mean_reward": 12.5, "eval/std_reward": 3.0, "eval/mean_ep_length": 40.0}
    assert run.monitor.finish("completed").eval_mean_reward == 12.5


def test_evaluations_of_several_policies_are_told_apart(tmp_path):
    run = Run(tmp_path, num_policies=2)
    means = (12.5, 99.0)
    for policy_idx, mean_return in enumerate(means):
        run.monitor.handle(EvaluationReport(8000, 64, mean_return, None, 40.0, 1, 2.0, policy_idx))
    run.monitor.handle(CheckpointReport("best/a", 100, None, "best", 99.0, 1))
    assert run.records == [
        {"env_steps": 8000, f"policy_{idx}/eval/mean_reward": mean, f"policy_{idx}/eval/mean_ep_length": 40.0}
        for idx, mean in enumerate(means)
    ]
    summary = run.monitor.finish("completed")
    assert (summary.eval_mean_reward, summary.best_return) == (12.5, None)  # those of the first policy


def test_the_best_training_return_needs_a_full_window_and_time_between(tmp_path):
    run = Run(tmp_path, earlier=ResumedTotals(0, 0.0, best_returns=(5.0,)))
    run.at(20, rollout(0, 1, [EpisodeRecord(9.0, 1)] * 99))
    assert run.monitor.take_new_bests() == {}
    run.at(21, rollout(0, 1, [EpisodeRecord(9.0, 1)]))
    assert run.monitor.take_new_bests() == {0: 9.0}
    run.at(29)
    assert run.monitor.take_new_bests() == {}  # it was asked for a moment ago
    run.monitor.handle(CheckpointReport("best/a", 100, None, "best", 9.0))
    run.at(30, rollout(0, 1, [EpisodeRecord(10.0, 1)] * 100))
    assert run.monitor.take_new_bests() == {}
    run.at(36)
    assert run.monitor.take_new_bests() == {0: 10.0}
    run.monitor.handle(CheckpointReport("best/b", 200, "disk full", "best", 10.0))
    run.at(60)
    assert run.monitor.take_new_bests() == {0: 10.0}  # it was not saved
    run.monitor.handle(CheckpointReport("best/b", 200, None, "best", 10.0))
    for mean_return in (8.0, float("nan")):
        run.at(90, rollout(0, 1, [EpisodeRecord(mean_return, 1)] * 100))
        assert run.monitor.take_new_bests() == {}
    assert run.monitor.finish("completed").best_return == 10.0
    by_evaluation = Run(tmp_path, eval_every_env_steps=100)
    by_evaluation.at(50, rollout(0, 1, [EpisodeRecord(9.0, 1)] * 100))
    assert by_evaluation.monitor.take_new_bests() == {}


def test_the_best_returns_of_another_task_count_no_more(tmp_path):
    first = Run(tmp_path)
    first.at(6, rollout(0, 64, [EpisodeRecord(500.0, 5)] * 100), learner(5000), CheckpointReport("checkpoints/a", 5000))
    for changed, best in (((), {0: 500.0}), (("env_kwargs: {} -> {'level': 2}",), {})):
        resumed = Run(tmp_path, earlier=ResumedTotals(5000, 68.0, 70.0), changed=changed)
        resumed.at(20)
        assert resumed.monitor.take_new_bests() == best
    resumed.at(40, rollout(0, 64, [EpisodeRecord(120.0, 5)] * 100))
    assert resumed.monitor.take_new_bests() == {0: 120.0}


def test_the_best_of_a_stage_of_a_curriculum_is_not_that_of_an_easier_one(tmp_path):
    run = Run(tmp_path)
    run.at(20, rollout(0, 64, [EpisodeRecord(500.0, 5)] * 100))
    assert run.monitor.take_new_bests() == {0: 500.0}
    run.monitor.handle(CheckpointReport("best/a", 100, None, "best", 500.0))
    harder = [EpisodeRecord(90.0, 5, training_info=1)] * 99 + [EpisodeRecord(500.0, 5)] * 3
    run.at(40, rollout(0, 64, harder))
    assert run.monitor.take_new_bests() == {}, "99 of the new stage"
    run.at(60, rollout(0, 64, [EpisodeRecord(90.0, 5, training_info=1)]))
    assert run.monitor.take_new_bests() == {0: 90.0}


def test_the_same_training_info_after_a_resume_is_the_same_task(tmp_path):
    run = Run(tmp_path, earlier=ResumedTotals(0, 0.0, best_returns=(300.0,)))
    for second, number, mean_return, best in ((20, 1, 250.0, {}), (40, 2, 200.0, {0: 200.0})):
        run.at(second, rollout(0, 64, [EpisodeRecord(mean_return, 5, training_info=number)] * 100))
        assert run.monitor.take_new_bests() == best


def test_a_resumed_run_of_several_policies_has_its_own_window(tmp_path):
    run = Run(tmp_path, num_policies=2, policy_mapping="random")
    episodes = [EpisodeRecord(100.0 * (number % 2), 5, policy_idx=number % 2) for number in range(300)]
    run.at(4, rollout(0, 64, episodes))
    run.at(6, learner(5000), CheckpointReport("checkpoints/a", 5000))
    resumed = Run(
        tmp_path, num_policies=2, policy_mapping="random", earlier=ResumedTotals(5000, 68.0, 70.0, (None, None))
    )
    assert resumed.monitor._episodes.mean_return == 50.0
    assert [figures.episodes.mean_return for figures in resumed.monitor._policies] == [0.0, 100.0]


def test_the_totals_of_several_policies_are_of_all_learners(tmp_path):
    run = Run(tmp_path, num_policies=2, policy_mapping="random")
    reports = [learner(1000 * (idx + 1), 8 * (idx + 1), dropped=10 * (idx + 1), slots_ready=idx) for idx in range(2)]
    reports = [dataclasses.replace(each, policy_idx=idx, skipped_steps=3 - idx) for idx, each in enumerate(reports)]
    for second, order in ((5, reports), (10, reports[::-1])):
        run.at(second, *order)
        last = run.records[-1]
        assert (last["perf/dropped_samples"], last["train/skipped_steps"], last["perf/slots_ready"]) == (30, 5, 1)
    summary = run.monitor.finish("completed")
    assert (summary.num_updates, summary.dropped_samples, summary.skipped_steps) == (24, 30, 5)


@pytest.mark.parametrize(("asked", "is_chosen"), [("auto", False), ("train", True)])
def test_training_returns_that_mislead_choose_the_best_only_if_the_user_asks(tmp_path, asked, is_chosen):
    run = Run(tmp_path, save_best_metric=asked, training_returns_mislead=True)
    run.at(50, rollout(0, 1, [EpisodeRecord(9.0, 1)] * 100))
    assert (run.monitor.take_new_bests() == {0: 9.0}) == is_chosen
    assert (run.monitor.best_so_far() == 9.0) == is_chosen


def test_a_tensorboard_folder_that_cannot_be_written_is_said_once_and_costs_nothing_else(tmp_path):
    (tmp_path / "tensorboard").write_text("in the way")
    run = Run(tmp_path, with_tensorboard=True)
    for second in (5, 10, 15):
        run.at(second, learner(100 * second))
    run.monitor.finish("completed")
    (said,) = run.progress.said
    assert said.startswith("TensorBoard is no longer written, training continues: FileExistsError")
    assert len(run.records) == 3


def test_the_summary_says_how_the_run_ended(run):
    run.at(2, rollout(0, 64, [EpisodeRecord(10.0, 5)]))
    run.at(4, learner(1000, 8, LagMetrics(0.0, 0.0, 0, 10.0)), CheckpointReport("checkpoints/a", 1000))
    run.at(6, learner(3000, 16, LagMetrics(8.0, 8.0, 9, 30.0), dropped=64))
    run.at(6, CheckpointReport("checkpoints/b", 3000, error="disk full"))
    run.monitor.handle(RestartReport("rollout-0", "rollout worker 0 died; it is started again"))
    run.now += 1
    summary = run.monitor.finish("interrupted", env_steps=3100)
    written = json.loads(run.folder.summary.read_text())
    assert written.pop("ep_rew_mean_of_policies") == []
    assert written == pytest.approx(
        {
            "status": "interrupted",
            "num_workers": 2,
            "env_steps": 3100,
            "num_updates": 16,
            "num_episodes": 1,
            "wall_s": 10.0,
            "elapsed_s": 10.0,
            "startup_s": 5.0,
            "fps": 1000.0,
            "ep_rew_mean": 10.0,
            "ep_len_mean": 5.0,
            "eval_mean_reward": None,
            "best_return": None,
            "lag_mean": 4.0,
            "lag_p95": 4.0,
            "lag_max": 9,
            "lag_bound": 77,
            "lag_over_bound": 0.0,
            "lag_age_ms": 20.0,
            "dropped_samples": 64,
            "env_failures": 0,
            "skipped_steps": 0,
            "failed_saves": 1,
            "restarts": 1,
            "checkpoint": "checkpoints/a",
            "error": None,
        }
    )
    assert summary.checkpoint == "checkpoints/a"
    assert "disk full" in run.progress.said[0]
    assert run.progress.has_ended
    assert run.records[-1]["env_steps"] == 3000


def test_workers_that_train_themselves_have_a_curve_each_which_goes_on_where_it_was(tmp_path):
    run = Run(tmp_path, backend="hogwild", earlier=ResumedTotals(5000, 68.0, 70.0, worker_env_steps=(4000,)))
    reports = [
        RolloutReport(idx, 1.0, steps, (EpisodeRecord(value, 4),), train=None)
        for idx, steps, value in ((0, 100, 1.0), (1, 300, 5.0), (0, 50, 3.0))
    ]
    run.at(6.0, *reports)
    record = run.records[-1]
    assert [record[f"worker/{idx}/env_steps"] for idx in range(2)] == [4150, 300]
    assert [record[f"worker/{idx}/ep_rew_mean"] for idx in range(2)] == [2.0, 5.0]
    assert record["rollout/ep_rew_mean"] == 3.0


def test_a_replay_and_who_waited_for_whom_are_published(run):
    phases = {Phase.TRAIN: 1.5, Phase.WAIT_SAMPLES: 0.5}
    learner = LearnerReport(500, 0, 40, 2.0, None, replay=ReplayMetrics(450, 0.5), phases=phases)
    worker = RolloutReport(0, 1.0, 500, (), phases={Phase.STEP: 0.2, Phase.WAIT_UPDATES: 0.6})
    run.at(6.0, learner, worker)
    record = run.records[-1]
    assert (record["replay/size"], record["replay/updates_per_env_step"]) == (450, 0.5)
    assert (record["replay/learner_blocked"], record["replay/workers_blocked"]) == (0.25, pytest.approx(0.75))
    assert "lag/mean" not in record


def test_a_run_that_never_trained_has_a_summary_too(run):
    summary = run.monitor.finish("failed", error="the environment failed")
    assert (summary.env_steps, summary.fps, summary.startup_s, summary.lag_max) == (0, None, None, None)
    assert json.loads(run.folder.summary.read_text())["error"] == "the environment failed"
    with pytest.raises(RuntimeError, match="twice"):
        run.monitor.finish("failed")


def test_startup_ends_at_the_first_step_that_the_runner_saw(run):
    run.monitor.tick(control(first_step_at=1000.5))
    run.at(2, rollout(0, 64))
    assert run.monitor.finish("completed").startup_s == pytest.approx(3.5)


def test_the_time_left_is_that_of_the_nearer_limit(tmp_path):
    run = Run(tmp_path, train_for_env_steps=10_000, train_for_seconds=60.0)
    run.at(1, rollout(0, 64))
    run.at(2, learner(1000))
    run.at(4, learner(2000))
    run.at(5)
    assert run.progress.records[-1].remaining_s == pytest.approx(8000 / 500)
    run.at(50, learner(2100))
    assert run.progress.records[-1].remaining_s == pytest.approx(60 - 49)
    resumed = Run(tmp_path, train_for_seconds=100.0, earlier=ResumedTotals(100, 40.0))
    resumed.monitor.tick(control(first_step_at=resumed.now))
    resumed.at(10, learner(200))
    assert resumed.progress.records[-1].remaining_s == pytest.approx(50.0), "the time of all its parts counts"


def test_what_the_run_is_doing_is_shown_where_the_figures_do_not_show_it(tmp_path):
    run = Run(tmp_path, report_every_s=1000.0)

    def shown(seconds, activity):
        run.now = 1000.0 + seconds
        run.monitor.tick(control(activity))
        return run.progress.updates[-1].activity

    assert shown(1.0, Activity()) == "starting processes"
    assert shown(2.0, Activity(1500)) == "collecting: 1,500 of 2,048 steps"
    assert shown(3.0, Activity(9000)) == "collecting: 2,048 of 2,048 steps"
    assert shown(4.0, Activity(9000, UpdateProgress(3, 80, 1001.0))) == "update: 3 of 80 minibatches"
    run.monitor.handle(learner(2048))
    assert shown(5.1, Activity(9000, UpdateProgress(3, 80, 1004.0))) is None
    assert shown(6.2, Activity(9000, UpdateProgress(30, 80, 1004.0), is_stopping=True)) == (
        "stopping, update: 30 of 80 minibatches"
    )
    assert shown(7.0, Activity(9000, is_stopping=True)) == "stopping"
    assert shown(8.0, Activity(9000, has_ended=True)) == "last evaluation"
    run.monitor.finish("completed")
    assert run.progress.records[-1].activity is None


def test_status_and_end_of_a_resumed_run_count_the_same_time(tmp_path):
    run = Run(tmp_path, earlier=ResumedTotals(5000, 68.0, 70.0))
    run.at(1.0, rollout(), learner(7000))
    summary = run.monitor.finish("completed")
    assert summary.elapsed_s == run.progress.records[-1].elapsed_s > 70.0 > summary.wall_s
    assert summary.to_text(7000, {}, {}).splitlines()[0].endswith(f", {duration(summary.elapsed_s)} elapsed")


def test_the_end_of_a_run_says_what_was_reached_and_what_can_be_done_next(run):
    run.at(1.0, rollout(episodes=[EpisodeRecord(12.0, 9)]), learner(2048))
    text = run.monitor.finish("interrupted").to_text(10_000, {"folder": "runs/x"}, {"evaluate": "asyncrl evaluate x"})
    first, *rows = text.splitlines()
    assert first == "interrupted: 2,048 of 10,000 environment steps, 8 updates, 4 s elapsed"
    assert [" ".join(row.split()) for row in rows] == [
        "return: 12.0 (last 100 episodes)",
        "folder: runs/x",
        "to evaluate:",
        "asyncrl evaluate x",
    ]
