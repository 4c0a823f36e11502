"""Videos during training: one episode of a fixed policy, recorded while training continues.

consumes  published weights and statistics, one consistent block of each policy
produces  RUN/videos/step_<env steps>.mp4, with several policies step_<env steps>_policy_<i>.mp4, and its report
waits     until enough environment steps were trained; it checks every POLL_S seconds
stops     as evaluations do, or after the first video that cannot be made
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from asyncrl.buffers.control import RunControl
from asyncrl.config.errors import UsageError
from asyncrl.envs.errors import EnvironmentFailed
from asyncrl.envs.showing import make_shown_env
from asyncrl.evaluation.worker import Abandoned, PublishedTeam, Schedule, in_one_line, next_multiple
from asyncrl.observers.reports import Report, VideoReport
from asyncrl.storage.run_folder import UNFINISHED

log = logging.getLogger(__name__)


class VideoWorker:
    """Records an episode of each policy every `video_every_env_steps`. A new run begins with the untrained policy."""

    def __init__(self, teams: Sequence[PublishedTeam], control: RunControl, folder: Path, env_steps: int) -> None:
        """Creates the worker.

        Args:
            teams: each policy, and who plays the other agents with it.
            control: the words of the whole run in the arena.
            folder: where videos are written; made by the first one.
            env_steps: environment steps so far.
        """
        self._teams = list(teams)
        self._config = config = teams[0].policy.config
        self._control = control
        self._folder = folder
        self._is_off = False
        every = config.video_every_env_steps
        first_at = 0 if env_steps == 0 else next_multiple(every, env_steps)
        self._schedule = Schedule(every, config.train_for_env_steps, first_at)

    @property
    def is_due(self) -> bool:
        """Whether the next video is due. All policies have the schedule of the first."""
        if self._is_off or not all(team.is_published for team in self._teams):
            return False
        return self._schedule.is_due(self._teams[0].policy.weights.newest, self._control.ended)

    @property
    def is_over(self) -> bool:
        """Whether the worker has nothing left to record."""
        return self._control.stop_requested or (self._control.ended and not self.is_due)

    def run(self, look: Callable[[], None] | None = None) -> list[Report]:
        """Records the newest weights of all policies; `look` as for `EvaluationWorker.run`.

        Returns a report of each video, up to the first failure; nothing of one at which the run was asked to stop.
        """
        news, *_ = [team.read() for team in self._teams]
        self._schedule.record(news)
        reports: list[Report] = []
        for policy_idx, team in enumerate(self._teams):
            suffix = f"_policy_{policy_idx}" if len(self._teams) > 1 else ""
            path = self._folder / f"step_{news.env_steps:012d}{suffix}.mp4"
            try:
                self._record(team, path, look)
            except Abandoned:
                return reports
            except (EnvironmentFailed, UsageError, OSError) as error:
                log.error("%s", error)
                self._is_off = True
                return [*reports, VideoReport(str(path), news.env_steps, policy_idx, in_one_line(error))]
            reports.append(VideoReport(str(path), news.env_steps, policy_idx))
        return reports

    def _record(self, team: PublishedTeam, path: Path, look: Callable[[], None] | None) -> None:
        """Writes the video under another name first, so that a file with its own name is complete."""
        temporary = path.with_name(f".{path.name}{UNFINISHED}")
        try:
            team.play(
                self._control,
                look,
                episodes=1,
                num_envs=1,
                make=lambda number: make_shown_env(self._config, "rgb_array", lambda _: temporary, number),
                max_steps=self._config.video_length,
            )
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
