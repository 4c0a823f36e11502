"""What groups of environments have in common: episodes that were finished, and what they make of failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from asyncrl.config.schema import ActionMapping
from asyncrl.envs.actions import ActionAdapter
from asyncrl.envs.observations import ObservationMismatch
from asyncrl.envs.spec import EnvSpec
from asyncrl.monitoring.reports import EnvironmentFailures, EpisodeRecord
from asyncrl.rollout.failures import EnvironmentCallFailed, EnvironmentTrouble, LostStep, Renewal, WrongObservation
from asyncrl.rollout.observations import ObservationWriter


class EnvironmentGroup:
    """Keeps a group's records.

    Attributes:
        lost: steps that came to nothing, until they are taken.
    """

    def __init__(self, first_env_idx: int, spec: EnvSpec, mapping: ActionMapping, renewal: Renewal | None) -> None:
        """Starts with no episode.

        Args:
            first_env_idx: number of the group's first environment in the run.
            spec: the environments' spaces.
            mapping: see `ActionAdapter`.
            renewal: how environments are recreated when they fail; without it all trouble is raised.
        """
        self.lost: list[LostStep] = []
        self._first_env_idx = first_env_idx
        self._adapter = ActionAdapter(spec, mapping)
        self._writer = ObservationWriter(spec.observation)
        self._renewal = renewal
        self._num_renewals = 0
        self._episodes: list[EpisodeRecord] = []
        self._training_info: Mapping[str, Any] | None = None

    def take_episodes(self) -> tuple[EpisodeRecord, ...]:
        """Episodes finished since the last call."""
        episodes, self._episodes = tuple(self._episodes), []
        return episodes

    def take_lost(self) -> list[LostStep]:
        """Steps that came to nothing since the last call."""
        lost, self.lost = self.lost, []
        return lost

    def note_dropped(self, num_samples: int) -> None:
        """Notes that samples were taken back."""
        if self._renewal is not None:
            self._renewal.failures.note_dropped(num_samples)

    def take_failures(self) -> EnvironmentFailures:
        """What went wrong since the last call, in all groups of the worker."""
        return EnvironmentFailures() if self._renewal is None else self._renewal.failures.take()

    def _add_episode(self, env: int, record: EpisodeRecord) -> None:
        self._episodes.append(record)
        if self._renewal is not None:
            self._renewal.failures.note_episode(self._first_env_idx + env)

    def _renew(self, trouble: EnvironmentTrouble, begin: Callable[[Renewal], None]) -> None:
        """Has `begin` start over in a new environment, again while that fails and the failures are not too many."""
        while True:
            if self._renewal is None:
                raise trouble
            self._renewal.failures.note_failure(trouble)
            self._num_renewals += 1
            try:
                begin(self._renewal)
                return
            except EnvironmentTrouble as another:
                trouble = another

    def _wrong_observation(self, env: int, step: int, call: str, error: ObservationMismatch) -> WrongObservation:
        text = f"returned an observation from {call} that does not match its space"
        return WrongObservation(self._first_env_idx + env, step, text, str(error))

    def _tell_news(self, env: int) -> None:
        """Warns of observations that are converted."""
        news = self._writer.take_news()
        if news is not None and self._renewal is not None:
            self._renewal.failures.warn(f"environment {self._first_env_idx + env} gives observations {news}")

    def _call_failed(self, env: int, step: int, call: str, error: Exception) -> EnvironmentCallFailed:
        failed = EnvironmentCallFailed(self._first_env_idx + env, step, f"failed in {call}")
        failed.__cause__ = error
        return failed
