"""Turns the reports of the roles into events for observers: episodes, records, the status, the summary at the end.

    roles --reports--> handle --sums--> tick --Record, Status--> Run.notify --> observers
                                        finish --Summary-->

It runs in the runner's process and is called from its control loop: `handle` for each report, `tick` in each turn of
the loop, `finish` once. It has no thread and never waits. Metrics have the names of Stable-Baselines3 where it has
one, so that the dashboards of its users continue to work.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from asyncrl.buffers.control import RunControl
from asyncrl.modes.choice import mode_of
from asyncrl.observers.episodes import EpisodeStatistics, read_episodes, saved_text
from asyncrl.observers.interval import Interval
from asyncrl.observers.observer import Observer, Run
from asyncrl.observers.reports import (
    EPISODE_WINDOW,
    Activity,
    CheckpointReport,
    EpisodeRecord,
    EvaluationFailed,
    EvaluationReport,
    InferenceReport,
    LagMetrics,
    LearnerReport,
    Report,
    RolloutReport,
    VideoReport,
    interval_s,
)
from asyncrl.observers.status import Record, Status
from asyncrl.observers.summary import ResumedTotals, RunStatus, Summary
from asyncrl.storage.run_folder import RunFolder, shown_path, write_text_atomically

_STATUS_EVERY_S = 0.25
_LINE_EVERY_S = 5.0  # and the longest time between two records, if the user sets none
_BEST_EVERY_S = 15.0
_LONG_UPDATE_S = 2.0
_SHORTEST_S = 0.1  # between reports of datasets, for a speed: those of small datasets arrive several at once
_LONGEST_STEPS = 20_000  # of an environment without an episode that ends, before a warning

Value = TypeVar("Value")


class PolicyMetrics:
    """The metrics of one policy of a run.

    Attributes:
        episodes: the last training episodes that it played.
        task_episodes: those that began after the newest message to the environments, which may have changed the task;
            they choose the best.
        interval: reports of its learner since the last record.
        learner: the newest of these reports.
        best_return: mean return of its best checkpoint; None without one.
        best_asked_at: when its policy was last to be saved as the best.
    """

    def __init__(self, recent: Iterable[EpisodeRecord], best_return: float | None) -> None:
        self.episodes = EpisodeStatistics(recent=recent)
        self.task_episodes = EpisodeStatistics(recent=recent)
        self._training_info: int | None = None
        self.interval = Interval()
        self.learner: LearnerReport | None = None
        self.best_return = best_return
        self.best_asked_at = -math.inf

    def add(self, episodes: Sequence[EpisodeRecord]) -> None:
        """Adds the policy's episodes of a report; returns before a newer message are not comparable with theirs.

        The first number of a process says nothing: an observer of a resumed run may send again what it sent before.
        """
        if not episodes:
            return
        self.episodes.add(episodes)
        newest = max(episode.training_info for episode in episodes)
        if self._training_info is None:
            self._training_info = newest
        elif newest > self._training_info:
            self._training_info, self.best_return = newest, None
            self.task_episodes = EpisodeStatistics()
        self.task_episodes.add([episode for episode in episodes if episode.training_info == self._training_info])

    @property
    def best_so_far(self) -> float | None:
        """The mean return of the last training episodes if it is better than that of the best checkpoint."""
        mean = self.task_episodes.mean_return
        if mean is None or not math.isfinite(mean):
            return None
        return mean if self.best_return is None or mean > self.best_return else None

    def pop_scalars(self) -> dict[str, float | None]:
        """The separate metrics of one of several policies since the last record, by their names in a record."""
        interval, self.interval = self.interval, Interval()
        learning = ("train/", "lag/")
        scalars = interval.scalars(False).items()
        named: dict[str, float | None] = {name: value for name, value in scalars if name.startswith(learning)}
        named |= self.episodes.scalars()
        if (learner := self.learner) is not None:
            named["time/total_agent_steps"] = learner.agent_steps
            named["time/total_env_steps"] = learner.policy_env_steps
            named |= _update_scalars(learner)
        return named


class Monitor:
    """The metrics of one run.

    Attributes:
        num_restarts: processes that were started again.
        say: shows the user one sentence.
    """

    def __init__(
        self,
        run: Run,
        *,
        clock: Callable[[], float] = time.monotonic,
        started_at: float | None = None,
        restarts: int = 0,
        training_returns_mislead: bool = False,
    ) -> None:
        """Creates the monitor; it writes nothing yet.

        Args:
            run: the run, which passes events on to its observers.
            clock: monotonic time in seconds.
            started_at: time of the command on that clock; now if None.
            restarts: restarts of processes before this start.
            training_returns_mislead: whether training returns differ from the returns of the policy. Then they choose
                the best checkpoint only if the user asks for it.
        """
        self._run, self._config, self._plan = run, run.config, run.plan
        self._frames_per_step = run.spec.frames_per_step
        self.say = run.say
        self._folder = RunFolder(run.folder)
        self._clock = clock
        self._started_at = clock() if started_at is None else started_at
        self._before = run.start.before or ResumedTotals()
        self._best_is_by_training = self._config.best_metric == "train" and not (
            training_returns_mislead and self._config.save_best_metric == "auto"
        )
        # Episodes and environment steps of all workers, and of each worker that trains.
        is_resumed = run.start.before is not None
        is_same_task = not any(change.startswith("env_kwargs:") for change in run.start.changed_settings)
        saved = read_episodes(self._folder.episodes) if is_resumed and is_same_task else [[]]
        self._episodes = EpisodeStatistics(recent=saved[0])
        num_policies = self._plan.num_policies
        windows = _padded(saved[1:] if num_policies > 1 else saved, num_policies, [])
        best_returns = _padded(self._before.best_returns, num_policies, None)
        self._policies = [PolicyMetrics(*each) for each in zip(windows, best_returns, strict=True)]
        num_curves = self._plan.num_workers if mode_of(self._plan).trains_in_workers else 0
        worker_steps = _padded(self._before.worker_env_steps, num_curves, 0)
        self._workers = [EpisodeStatistics(env_steps) for env_steps in worker_steps]
        # Sums since the last record; up to that record, sums since the last line and sums of the run.
        self._interval, self._since_line, self._totals = Interval(), Interval(), Interval()
        self._num_env_failures = self._num_not_finite = self._num_dropped = self._num_skipped_steps = 0
        self._num_failed_saves = 0
        self.num_restarts = restarts
        # (time, env_steps) at the end of the first dataset and of the last one.
        # A dataset is trained at once, so steps are reported once per dataset: speeds are measured from one end to
        # another. The speed of the run begins with the first end, so that it does not include the start-up.
        self._first_trained: tuple[float, int] | None = None
        self._last_trained: tuple[float, int] | None = None
        # Times of the last records, with the last end before each. The speed in a record counts from the newest of them
        # that is `_line_every_s` old: the records of a short run are too close to each other to measure a speed.
        self._ends_at_records: deque[tuple[float, tuple[float, int]]] = deque()
        self._fps: float | None = None
        self._env_steps = self._recorded_steps = run.env_steps = run.start.env_steps
        # The newest values of what the status and the summary show.
        self._lag: LagMetrics | None = None
        self._evaluation: EvaluationReport | None = None
        self._known_details: set[str] = set()
        self._checkpoint: str | None = None
        self._first_step_at: float | None = None
        self._activity = Activity()
        self._line_every_s = self._config.report_every_s or _LINE_EVERY_S
        self._record_at = self._line_at = self._status_at = clock()
        self._cores_since = self._started_at
        self._is_finished = False
        self._has_warned_of_endless = False

    def handle(self, report: Report) -> None:
        """Takes one report of any role."""
        if isinstance(report, RolloutReport):
            self._handle_rollout(report)
        elif isinstance(report, LearnerReport):
            self._handle_learner(report)
        elif isinstance(report, InferenceReport):
            self._interval.add(report)
            self._warn(report.notice)
        elif isinstance(report, CheckpointReport):
            self._handle_checkpoint(report)
        elif isinstance(report, EvaluationReport):
            self._handle_evaluation(report)
        elif isinstance(report, EvaluationFailed):
            log = shown_path(self._folder.logs / "evaluation.log")
            more = "" if self._config.serial_mode else f" (log: {log})"
            self.say(f"The evaluation failed, training continues: {report.reason}{more}")
        elif isinstance(report, VideoReport):
            self._warn(report.error and f"There are no more videos, training continues: {report.error}")
            self._run.notify(Observer.on_video, report)
        else:
            self.num_restarts += 1
            self.say(report.text)
        self._run.notify(Observer.on_report, report)

    def _warn(self, text: str | None) -> None:
        if text is not None:
            self.say(f"warning: {text}")

    def _handle_rollout(self, report: RolloutReport) -> None:
        self._interval.add(report)
        self._episodes.add(report.episodes, report.env_steps)
        for idx, policy in enumerate(self._policies):
            is_only = len(self._policies) == 1
            policy.add([each for each in report.episodes if is_only or each.policy_idx == idx])
        if self._workers:
            self._workers[report.worker_idx].add(report.episodes, report.env_steps)
        for episode in report.episodes:
            self._run.notify(Observer.on_episode, episode)
        self._num_env_failures += report.failures.num_failures
        self._num_not_finite += report.failures.num_not_finite
        self._num_dropped += report.failures.num_dropped
        self._num_skipped_steps += report.skipped_steps
        is_endless = not self._episodes.recent and self._episodes.env_steps >= _LONGEST_STEPS * self._plan.num_envs
        if is_endless and not self._has_warned_of_endless:
            self._has_warned_of_endless = True
            self._warn(
                f"no episode has ended after {_LONGEST_STEPS:,} steps of each environment: wrap the environment in "
                "gymnasium.wrappers.TimeLimit, or return truncated=True."
            )
        for warning in report.failures.warnings:
            first, _, details = warning.partition("\n")
            is_known = bool(details) and self.has_shown(details)  # from another worker's warning
            self._known_details.add(details.strip())
            self._warn(f"{first} (traceback above)" if is_known else warning)
        if report.env_steps > 0 and self._first_step_at is None:
            self._first_step_at = self._clock()

    def _handle_learner(self, report: LearnerReport) -> None:
        policy = self._policies[report.policy_idx]
        policy.learner = report
        if len(self._policies) > 1:
            policy.interval.add(report)
        # The losses of one of several policies do not count for the whole run.
        self._interval.add(report if len(self._policies) == 1 else dataclasses.replace(report, train=None))
        self._lag = report.lag or self._lag
        self._env_steps = self._run.env_steps = max(self._env_steps, report.env_steps)
        if report.policy_idx == 0:  # between two datasets of the same policy
            self._last_trained = (self._clock(), self._env_steps)
        if self._first_trained is None and self._last_trained is not None:
            self._first_trained = self._last_trained
            self._ends_at_records.append((self._clock(), self._first_trained))
        self._warn(report.notice)

    def tick(self, control: RunControl | None = None) -> None:
        """Writes a record if it is due, and updates the status about four times a second.

        Args:
            control: the run's words in the arena, which are newer than the last reports; None before it has them.
        """
        now = self._clock()
        if self._first_step_at is None and control is not None:
            self._first_step_at = control.first_step_at
        if self._is_record_due(now):
            self._record_at = now
            self._write_record(now)
        is_line_due = now - self._line_at >= self._line_every_s
        if is_line_due or now - self._status_at >= _STATUS_EVERY_S:
            if control is not None:
                self._activity = control.activity
            self._show_status(now, is_line=is_line_due)

    def _is_record_due(self, now: float) -> bool:
        """Whether the user's interval has passed; without one, whether a dataset was trained and `interval_s` has.

        The time so far begins with the first environment step: a slow start must not make a short run's curve coarse.
        """
        passed_s = now - self._record_at
        if self._config.report_every_s is not None or self._env_steps == self._recorded_steps:
            return passed_s >= self._line_every_s
        began = self._started_at if self._first_step_at is None else self._first_step_at
        elapsed_s = now - began + self._before.elapsed_s
        return passed_s >= interval_s(elapsed_s, self._line_every_s)

    def take_new_bests(self) -> dict[int, float]:
        """The policies that should now be saved as the best so far, and the mean returns of their last 100 episodes.

        A policy is left out for some time after each such return, because the mean may rise with every episode.
        """
        found: dict[int, float] = {}
        now = self._clock()
        for policy_idx, policy in enumerate(self._policies if self._best_is_by_training else ()):
            if now - policy.best_asked_at < _BEST_EVERY_S or len(policy.task_episodes.recent) < EPISODE_WINDOW:
                continue
            if (best := policy.best_so_far) is not None:
                policy.best_asked_at = now
                found[policy_idx] = best
        return found

    def best_so_far(self, policy_idx: int = 0) -> float | None:
        """The mean return of a policy's last training episodes if it is better than that of its best checkpoint."""
        return self._policies[policy_idx].best_so_far if self._best_is_by_training else None

    def finish(
        self,
        status: RunStatus,
        *,
        env_steps: int | None = None,
        checkpoint: str | None = None,
        error: str | None = None,
    ) -> Summary:
        """Writes the last record and the summary (`summary.json`), and tells the observers that the run has ended.

        Args:
            status: how the run ended.
            env_steps: environment steps trained on; the number of the last report if None.
            checkpoint: the last checkpoint; that of the last report if None.
            error: why the run failed.
        """
        if self._is_finished:
            raise RuntimeError("Monitor.finish was called twice; a run ends once")
        self._is_finished = True
        now = self._clock()
        self._write_record(now)
        self._show_status(now, is_line=True)
        learners, lag = self._learners, self._totals.lag
        lags: dict[str, Any] = (
            {} if lag is None else {f"lag_{name}": value for name, value in dataclasses.asdict(lag).items()}
        )
        summary = Summary(
            status=status,
            num_workers=self._plan.num_workers,
            env_steps=self._env_steps if env_steps is None else env_steps,
            num_updates=self.num_updates or 0,
            num_episodes=self._episodes.num_episodes,
            wall_s=round(now - self._started_at, 3),
            elapsed_s=round(self._elapsed_s(now), 3),
            startup_s=None if self._first_step_at is None else round(self._first_step_at - self._started_at, 3),
            fps=_speed(self._first_trained, self._last_trained),
            ep_rew_mean=self._episodes.mean_return,
            ep_len_mean=self._episodes.mean_length,
            eval_mean_reward=None if self._evaluation is None else self._evaluation.mean_reward,
            best_return=self._policies[0].best_return,
            ep_rew_mean_of_policies=[each.episodes.mean_return for each in self._policies if len(self._policies) > 1],
            lag_bound=self._plan.lag_bound,
            dropped_samples=self._num_dropped + sum(each.dropped_samples for each in learners),
            env_failures=self._num_env_failures,
            skipped_steps=self._num_skipped_steps + sum(each.skipped_steps for each in learners),
            failed_saves=self._num_failed_saves,
            restarts=self.num_restarts,
            checkpoint=self._checkpoint if checkpoint is None else checkpoint,
            error=error,
            **lags,
        )
        self._run.time_table = self._totals.phase_table()
        self._run.notify(Observer.on_end, summary)
        if self._run.failure is not None and status != "failed":  # an observer raised in on_end
            summary = dataclasses.replace(summary, status="failed", error=self._run.failure.summary)
        self._write(self._folder.summary, json.dumps(dataclasses.asdict(summary), indent=2))
        return summary

    @property
    def num_updates(self) -> int | None:
        """Optimizer steps of the run; None before the first report of a learner."""
        return sum(each.num_updates for each in self._learners) if self._learners else None

    @property
    def _learners(self) -> list[LearnerReport]:
        """The newest report of each learner."""
        return [policy.learner for policy in self._policies if policy.learner is not None]

    def _handle_checkpoint(self, report: CheckpointReport) -> None:
        if report.error is not None:
            self._num_failed_saves += 1
            self.say(f"No checkpoint was saved at {report.env_steps:,} steps, training continues: {report.error}")
        elif report.kind == "best":
            self._policies[report.policy_idx].best_return = report.mean_return
        elif report.kind == "newest":
            self._checkpoint = report.path
            # A run that resumes from this checkpoint continues with this window of episodes.
            text = saved_text(self._episodes, [policy.episodes for policy in self._policies])
            self._write(self._folder.episodes, text)
        self._run.notify(Observer.on_checkpoint, report)

    def has_shown(self, details: str) -> bool:
        """Whether a warning of this run had this traceback."""
        return details.strip() in self._known_details

    def _handle_evaluation(self, report: EvaluationReport) -> None:
        if report.num_lost > 0:
            self._warn(
                f"the evaluation lost {report.num_lost} episodes, because the environment failed; they were "
                "replaced by others (the traceback is in the log of the evaluation)"
            )
        if report.policy_idx == 0:
            self._evaluation = report
        scalars = {"eval/mean_reward": report.mean_reward, "eval/mean_ep_length": report.mean_ep_length}
        if report.std_reward is not None:
            scalars["eval/std_reward"] = report.std_reward
        if self._plan.num_policies > 1:
            scalars = {f"policy_{report.policy_idx}/{name}": value for name, value in scalars.items()}
        self._run.notify(Observer.on_record, Record(report.env_steps, scalars))
        self._run.notify(Observer.on_evaluation, report)

    def _elapsed_s(self, now: float) -> float:
        """Seconds since the command, with those before the run was resumed."""
        return now - self._started_at + self._before.shown_s

    def _write_record(self, now: float) -> None:
        """Gives observers a record of the reports since the last record, if there were any."""
        if self._interval.is_empty:
            return
        learners = self._learners
        named: dict[str, float | None] = {
            **self._interval.scalars(with_phases=self._config.profile),
            **self._episodes.scalars(),
            "time/total_env_steps": self._env_steps,
            "time/time_elapsed": self._elapsed_s(now),
            "perf/cores_in_use": self._interval.cpu_s / max(now - self._cores_since, 1e-9),
            "perf/restarts": self.num_restarts,
            "perf/failed_saves": self._num_failed_saves,
            "perf/env_failures": self._num_env_failures,
            "perf/not_finite_steps": self._num_not_finite,
            "perf/dropped_samples": self._num_dropped + sum(each.dropped_samples for each in learners),
            "train/skipped_steps": self._num_skipped_steps + sum(each.skipped_steps for each in learners),
        }
        if self._frames_per_step > 1:
            named["time/total_frames"] = self._env_steps * self._frames_per_step
        if learners:
            if self._plan.num_policies == 1:
                named |= _update_scalars(learners[0])
            if self._plan.num_agents > 1 or self._plan.num_policies > 1:
                named["time/total_agent_steps"] = sum(each.agent_steps for each in learners)
            ready = [each.slots_ready for each in learners if each.slots_ready is not None]
            named["perf/slots_ready"] = sum(ready) if ready else None
        for worker_idx, worker in enumerate(self._workers):
            named[f"worker/{worker_idx}/env_steps"] = worker.env_steps
            named[f"worker/{worker_idx}/ep_rew_mean"] = worker.mean_return
            named[f"worker/{worker_idx}/ep_len_mean"] = worker.mean_length
        if self._plan.num_policies > 1:
            for idx, policy in enumerate(self._policies):
                named |= {f"policy_{idx}/{name}": value for name, value in policy.pop_scalars().items()}
        ends = self._ends_at_records
        while len(ends) > 1 and now - ends[1][0] >= self._line_every_s:
            ends.popleft()
        fps = _speed(ends[0][1] if ends else None, self._last_trained)
        if fps is not None:  # without a dataset in the interval, the status keeps the last known speed
            self._fps = named["time/fps"] = fps
        if self._last_trained is not None:
            ends.append((now, self._last_trained))
        self._since_line.merge(self._interval)
        self._totals.merge(self._interval)
        self._interval, self._cores_since, self._recorded_steps = Interval(), now, self._env_steps
        self._run.notify(Observer.on_metrics, named)
        scalars = {name: float(value) for name, value in named.items() if value is not None}
        self._run.notify(Observer.on_record, Record(self._env_steps, scalars))

    def _show_status(self, now: float, is_line: bool) -> None:
        self._status_at = now
        if is_line:
            self._line_at = now
            self._run.phase_shares = self._since_line.phase_shares() or self._run.phase_shares
            self._since_line = Interval()
        # The run ends at the nearer of two limits.
        remaining = []
        if fps := self._fps or _speed(self._first_trained, self._last_trained):
            remaining.append(max(0, self._config.train_for_env_steps - self._env_steps) / fps)
        if self._config.train_for_seconds is not None and self._first_step_at is not None:
            trained_s = self._before.elapsed_s + now - self._first_step_at
            remaining.append(max(0.0, self._config.train_for_seconds - trained_s))
        # What the run is doing, where steps and speed do not show it. Only updates of PPO and A2C can be long.
        activity, doing = self._activity, None
        if self._is_finished:
            pass
        elif activity.has_ended:
            doing = "stopping" if activity.is_stopping else "last evaluation"
        else:
            if activity.update is not None and now - activity.update.started_at > _LONG_UPDATE_S:
                doing = f"update: {activity.update.num_done} of {activity.update.num_total} minibatches"
            elif not self._learners and activity.collected_steps == 0:
                doing = "starting processes"
            elif not self._learners and not mode_of(self._plan).trains_in_datasets:
                doing = f"collected {activity.collected_steps:,} steps"
            elif not self._learners:
                size = self._plan.dataset_size
                doing = f"collecting: {min(activity.collected_steps, size):,} of {size:,} steps"
            if activity.is_stopping:
                doing = "stopping" if doing is None else f"stopping, {doing}"
        status = Status(
            env_steps=self._env_steps,
            target_env_steps=self._config.train_for_env_steps,
            elapsed_s=self._elapsed_s(now),
            fps=self._fps,
            episode_return=self._episodes.mean_return,
            lag_mean=None if self._lag is None else self._lag.mean,
            lag_max=None if self._lag is None else self._lag.max,
            remaining_s=min(remaining, default=None),
            activity=doing,
            is_line=is_line,
        )
        self._run.notify(Observer.on_status, status)

    def _write(self, path: Path, text: str) -> None:
        try:
            write_text_atomically(path, text + "\n")
        except OSError as failure:
            self.say(f"Could not write {path}: {failure.strerror}.")


def _update_scalars(learner: LearnerReport) -> dict[str, float]:
    """The number of updates, and the hyperparameters that an observer has changed, by their names in a record."""
    named: dict[str, float] = {"train/n_updates": learner.num_updates}
    if learner.hyperparameters:
        named |= {f"hyperparameters/{name}": value for name, value in learner.hyperparameters.items()}
        named["hyperparameters/policy_version"] = learner.hyperparameters_version
    return named


def _speed(begin: tuple[float, int] | None, end: tuple[float, int] | None) -> float | None:
    """Environment steps per second between two ends of datasets; None without two whose reports came one by one."""
    if begin is None or end is None or end[0] - begin[0] < _SHORTEST_S:
        return None
    return (end[1] - begin[1]) / (end[0] - begin[0])


def _padded(values: Sequence[Value], count: int, missing: Value) -> list[Value]:
    """The first `count` values, with `missing` in place of those that are not there."""
    return [*values, *[missing] * count][:count]
