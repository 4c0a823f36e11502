"""Turns the roles' reports into events for observers: records every few seconds, the status, the summary at the end.

It runs in the runner's process and is called from its control loop: `handle` for each report, `tick` as often as the
loop turns, `finish` once. It has no thread and waits for nothing.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable
from pathlib import Path

from asyncrl.monitoring.metrics import (
    EpisodeStatistics,
    FailureCounts,
    Interval,
    LagStatistics,
    PhaseShares,
    TrainingClock,
    WorkerStatistics,
)
from asyncrl.monitoring.reports import (
    Activity,
    CheckpointReport,
    EpisodeRecord,
    EvaluationFailed,
    EvaluationReport,
    InferenceReport,
    LagMetrics,
    LearnerReport,
    Report,
    RestartReport,
    RolloutReport,
)
from asyncrl.monitoring.status import Record, Status
from asyncrl.monitoring.summary import RunStatus, Summary
from asyncrl.observers.observer import Observer, Run
from asyncrl.runtime.run_folder import RunFolder, write_text_atomically

_REDRAW_S = 0.25
_BEST_EVERY_S = 15.0
_LONG_UPDATE_S = 2.0


class Monitor:
    """All figures of one run."""

    def __init__(
        self,
        run: Run,
        *,
        clock: Callable[[], float] = time.monotonic,
        started_at: float | None = None,
        restarts: int = 0,
        training_returns_mislead: bool = False,
    ) -> None:
        """Opens nothing yet.

        Args:
            run: passes everything on to the observers.
            clock: seconds that only go forward.
            started_at: when the command was given, on that clock; now if None.
            restarts: processes that were started again before.
            training_returns_mislead: whether returns of training are not those of the policy, so that they do not
                decide which checkpoint is the best unless the user has asked for that.
        """
        self._run = run
        config, plan, before = run.config, run.plan, run.start.before
        self._before = before
        self._best_is_by_training = config.best_metric == "train"
        if training_returns_mislead and config.save_best_metric == "auto":
            self._best_is_by_training = False
        self._folder, self._config, self._plan, self._clock = RunFolder(run.folder), config, plan, clock
        self._started_at = clock() if started_at is None else started_at
        self._interval = Interval()
        self._episodes = EpisodeStatistics()
        worker_steps = () if before is None else before.worker_env_steps
        self._workers = [
            WorkerStatistics(worker_steps[worker] if worker < len(worker_steps) else 0)
            for worker in range(plan.num_workers if plan.hogwild is not None else 0)
        ]
        if before is not None:
            self._episodes.go_on_with(_read_episodes(self._folder.episodes))
        self._run_lag = LagStatistics()
        self._run_phases = PhaseShares()
        self._training = TrainingClock()
        self._training.env_steps = run.env_steps = run.start.env_steps
        self._best_return = None if before is None else before.best_return
        self._best_asked_at = -math.inf
        self._evaluation: EvaluationReport | None = None
        self._last_learner_report: LearnerReport | None = None
        self._fps: float | None = None
        self._lag: LagMetrics | None = None
        self._first_step_at: float | None = None
        self._checkpoint: str | None = None
        self._num_restarts = restarts
        self._num_failed_saves = 0
        self._failures = FailureCounts()
        self._record_at = self._redraw_at = clock()
        self._is_finished = False
        self._activity = Activity()

    def handle(self, report: Report) -> None:
        """Takes one report of any role."""
        if isinstance(report, CheckpointReport):
            self._handle_checkpoint(report)
            return
        if isinstance(report, EvaluationReport):
            self._handle_evaluation(report)
            return
        if isinstance(report, EvaluationFailed):
            self.say(f"The evaluation failed, training continues: {report.reason}")
            return
        if isinstance(report, RestartReport):
            self._num_restarts += 1
            self.say(report.text)
            return
        self._interval.add(report)
        self._run_phases.add(report)
        if isinstance(report, RolloutReport):
            self._episodes.add(report.episodes)
            self._failures.add(report)
            for episode in report.episodes:
                self._run.notify(Observer.on_episode, episode)
            if self._workers:
                self._workers[report.worker_idx].add(report)
            for warning in report.failures.warnings:
                self.say(f"warning: {warning}")
            if report.env_steps > 0:
                self.mark_first_step()
        elif isinstance(report, LearnerReport):
            self._training.add(self._clock(), report.env_steps)
            self._run.env_steps = self._training.env_steps
            if report.lag is not None:
                self._run_lag.add(report.lag)
                self._lag = report.lag
            self._last_learner_report = report
        if isinstance(report, (LearnerReport, InferenceReport)) and report.notice is not None:
            self.say(f"warning: {report.notice}")

    def mark_first_step(self, at: float | None = None) -> None:
        """Notes that an environment was stepped, now or at a time of the clock; later calls change nothing.

        A rollout worker's first report does so as well, but comes up to a second after the step.
        """
        if self._first_step_at is None:
            self._first_step_at = self._clock() if at is None else at

    def take_new_best(self) -> float | None:
        """The mean return of the last 100 training episodes, if it should be saved as the best so far.

        None otherwise: also right after the one before, because it may rise with every episode.
        """
        mean, now = self.best_so_far, self._clock()
        if mean is None or not self._episodes.is_window_full or now - self._best_asked_at < _BEST_EVERY_S:
            return None
        self._best_asked_at = now
        return mean

    @property
    def best_so_far(self) -> float | None:
        """The mean return of the last training episodes, if it is better than that of any saved best policy."""
        mean = self._episodes.mean_return
        if not self._best_is_by_training or mean is None or not math.isfinite(mean):
            return None
        return mean if self._best_return is None or mean > self._best_return else None

    @property
    def num_restarts(self) -> int:
        """Processes that were started again."""
        return self._num_restarts

    def say(self, text: str) -> None:
        """Shows the user one sentence."""
        self._run.say(text)

    def tick(self, activity: Activity | None = None) -> None:
        """Writes a record if `report_every_s` have passed, and redraws the progress now and then.

        Args:
            activity: what the run is doing; as before if None.
        """
        now = self._clock()
        self._activity = activity or self._activity
        if now - self._record_at >= self._config.report_every_s:
            self._record_at = now
            self._write_record(now)
            self._show_status(now, is_of_record=True)
        elif now - self._redraw_at >= _REDRAW_S:
            self._redraw_at = now
            self._show_status(now)

    def finish(
        self,
        status: RunStatus,
        *,
        env_steps: int | None = None,
        checkpoint: str | None = None,
        error: str | None = None,
    ) -> Summary:
        """Writes the last record and `summary.json`, and closes everything.

        Args:
            status: how the run ended.
            env_steps: environment steps trained on, exact; what the learner last reported if None.
            checkpoint: the last checkpoint; what was last reported if None.
            error: what went wrong.

        Returns:
            What was written.
        """
        now = self._clock()
        if self._is_finished:
            raise RuntimeError("Monitor.finish was called twice; a run ends once")
        self._is_finished = True
        self._write_record(now)
        self._show_status(now, is_of_record=True)
        summary = self._summarize(now, status, env_steps, checkpoint, error)
        self._run.time_table = self._run_phases.table()
        self._run.notify(Observer.on_end, summary)
        if self._run.failure is not None and status != "failed":
            summary = dataclasses.replace(summary, status="failed", error=self._run.failure.summary)
        try:
            write_text_atomically(self._folder.summary, json.dumps(dataclasses.asdict(summary), indent=2) + "\n")
        except OSError as failure:
            self.say(f"Could not write {self._folder.summary}: {failure.strerror}.")
        return summary

    def _handle_checkpoint(self, report: CheckpointReport) -> None:
        if report.error is None and report.kind == "newest":
            self._checkpoint = report.path
            self._write_episodes()
        elif report.error is None and report.kind == "best":
            self._best_return = report.mean_return
        elif report.error is not None:
            self._num_failed_saves += 1
            self.say(f"No checkpoint was saved at {report.env_steps:,} steps, training continues: {report.error}")
        self._run.notify(Observer.on_checkpoint, report)

    def _handle_evaluation(self, report: EvaluationReport) -> None:
        self._evaluation = report
        scalars = {"eval/mean_reward": report.mean_reward, "eval/mean_ep_length": report.mean_ep_length}
        if report.std_reward is not None:
            scalars["eval/std_reward"] = report.std_reward
        self._record(Record(report.env_steps, scalars))
        self._run.notify(Observer.on_evaluation, report)

    def _write_episodes(self) -> None:
        """Keeps the window of training episodes for a run that goes on from the checkpoint just saved."""
        content = [[episode.episode_return, episode.length, episode.extra_stats] for episode in self._episodes.recent]
        try:
            write_text_atomically(self._folder.episodes, json.dumps(content) + "\n")
        except OSError as failure:
            self.say(f"Could not write {self._folder.episodes}: {failure.strerror}.")

    def _write_record(self, now: float) -> None:
        """Writes what was reported since the last record, if anything was."""
        if self._interval.is_empty:
            return
        fps = self._training.take_fps()
        scalars = self._interval.scalars() | self._run_scalars(now)
        if self._config.profile:
            scalars |= self._interval.phases.scalars()
        if fps is not None:
            # The progress line keeps the last known speed; a record of an interval without training has none.
            self._fps = scalars["time/fps"] = fps
        self._interval = Interval()
        self._record(Record(self._training.env_steps, scalars))

    def _record(self, record: Record) -> None:
        self._run.notify(Observer.on_record, record)

    def _show_status(self, now: float, is_of_record: bool = False) -> None:
        status = self._status(now, is_of_record)
        self._run.notify(Observer.on_status, status)

    def _run_scalars(self, now: float) -> dict[str, float]:
        """Returns the figures that do not belong to the interval, by published name."""
        named: dict[str, float | None] = {
            "rollout/ep_rew_mean": self._episodes.mean_return,
            "rollout/ep_len_mean": self._episodes.mean_length,
            "time/total_env_steps": self._training.env_steps,
            "time/time_elapsed": self._elapsed_s(now),
            "perf/restarts": self._num_restarts,
            "perf/failed_saves": self._num_failed_saves,
            "perf/env_failures": self._failures.num_failures,
            "perf/not_finite_steps": self._failures.num_not_finite,
            "perf/dropped_samples": self._dropped_samples,
            "train/skipped_steps": self._skipped_steps,
        }
        if self._config.frames_per_step > 1:
            named["time/total_frames"] = self._training.env_steps * self._config.frames_per_step
        learner = self._last_learner_report
        if learner is not None:
            named["train/n_updates"] = learner.num_updates
            named["perf/slots_ready"] = learner.slots_ready
            if learner.hyperparameters:
                named |= {f"hyperparameters/{name}": value for name, value in learner.hyperparameters.items()}
                named["hyperparameters/policy_version"] = learner.hyperparameters_version
        for worker_idx, worker in enumerate(self._workers):
            named |= {f"worker/{worker_idx}/{name}": value for name, value in worker.scalars().items()}
        for name, value in self._episodes.mean_extra_stats().items():
            named[f"episode_extra_stats/{name}"] = value
        return {name: float(value) for name, value in named.items() if value is not None}

    @property
    def _dropped_samples(self) -> int:
        learner = self._last_learner_report
        return self._failures.num_dropped + (0 if learner is None else learner.dropped_samples)

    @property
    def _skipped_steps(self) -> int:
        learner = self._last_learner_report
        return self._failures.skipped_steps + (0 if learner is None else learner.skipped_steps)

    def _status(self, now: float, is_of_record: bool) -> Status:
        return Status(
            env_steps=self._training.env_steps,
            target_env_steps=self._config.train_for_env_steps,
            elapsed_s=self._elapsed_s(now),
            fps=self._fps,
            episode_return=self._episodes.mean_return,
            lag_mean=None if self._lag is None else self._lag.mean,
            lag_max=None if self._lag is None else self._lag.max,
            remaining_s=self._remaining_s(now),
            activity=None if self._is_finished else self._describe_activity(now),
            is_of_record=is_of_record,
        )

    def _describe_activity(self, now: float) -> str | None:
        """What the run is doing where steps and speed do not show it.

        Only updates of PPO and A2C can be long: they train several passes over a dataset. SAC makes a few updates of
        perceptrons between two reports, and a Hogwild worker one gradient of a rollout.
        """
        activity = self._activity
        update = activity.update
        if activity.has_ended:
            return "stopping" if activity.is_stopping else "last evaluation"
        doing = None
        if update is not None and now - update.started_at > _LONG_UPDATE_S:
            doing = f"update: {update.num_done} of {update.num_total} minibatches"
        elif self._last_learner_report is None:
            doing = self._describe_collecting(activity.collected_steps)
        return ", ".join(filter(None, ("stopping" if activity.is_stopping else None, doing))) or None

    def _describe_collecting(self, num_steps: int) -> str:
        """How much there is for the first update."""
        if num_steps == 0:
            return "starting processes"
        if self._plan.replay is not None or self._plan.hogwild is not None:
            return f"collected {num_steps:,} steps"
        size = self._plan.dataset_size
        return f"collecting: {min(num_steps, size):,} of {size:,} steps"

    def _elapsed_s(self, now: float) -> float:
        return now - self._started_at + (0.0 if self._before is None else self._before.elapsed_s)

    def _remaining_s(self, now: float) -> float | None:
        """Seconds until the first of the two limits, None while neither can be foreseen."""
        remaining = []
        fps = self._fps or self._training.run_fps
        if fps:
            remaining.append(max(0, self._config.train_for_env_steps - self._training.env_steps) / fps)
        if self._config.train_for_seconds is not None and self._first_step_at is not None:
            before_s = 0.0 if self._before is None else self._before.elapsed_s
            remaining.append(max(0.0, self._config.train_for_seconds - before_s - (now - self._first_step_at)))
        return min(remaining, default=None)

    def _summarize(
        self, now: float, status: RunStatus, env_steps: int | None, checkpoint: str | None, error: str | None
    ) -> Summary:
        lag, learner = self._run_lag.result(), self._last_learner_report
        return Summary(
            status=status,
            num_workers=self._plan.num_workers,
            env_steps=self._training.env_steps if env_steps is None else env_steps,
            num_updates=0 if learner is None else learner.num_updates,
            num_episodes=self._episodes.num_episodes,
            wall_s=round(now - self._started_at, 3),
            startup_s=None if self._first_step_at is None else round(self._first_step_at - self._started_at, 3),
            fps=self._training.run_fps,
            ep_rew_mean=self._episodes.mean_return,
            ep_len_mean=self._episodes.mean_length,
            eval_mean_reward=None if self._evaluation is None else self._evaluation.mean_reward,
            best_return=self._best_return,
            lag_mean=None if lag is None else lag.mean,
            lag_p95=None if lag is None else lag.p95,
            lag_max=None if lag is None else lag.max,
            lag_bound=self._plan.lag_bound,
            lag_over_bound=None if lag is None else lag.over_bound,
            lag_age_ms=None if lag is None else lag.age_ms,
            dropped_samples=self._dropped_samples,
            env_failures=self._failures.num_failures,
            skipped_steps=self._skipped_steps,
            failed_saves=self._num_failed_saves,
            restarts=self._num_restarts,
            checkpoint=self._checkpoint if checkpoint is None else checkpoint,
            error=error,
        )


def _read_episodes(path: Path) -> list[EpisodeRecord]:
    """What `_write_episodes` wrote; nothing if it is not there or damaged, for it only smooths a curve."""
    try:
        return [EpisodeRecord(*fields) for fields in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        return []
