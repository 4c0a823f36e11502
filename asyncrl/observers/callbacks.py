"""Ready-made callbacks. Those that Stable-Baselines3 has, too, have its names and mean the same."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asyncrl.config.errors import UsageError
from asyncrl.monitoring.metrics import EPISODE_WINDOW
from asyncrl.monitoring.reports import EpisodeRecord, EvaluationReport
from asyncrl.monitoring.status import Status
from asyncrl.observers.observer import Observer, Run


class StopTrainingOnRewardThreshold(Observer):
    """Ends the run when an evaluation reaches a mean return; needs `eval_every_env_steps`."""

    def __init__(self, reward_threshold: float) -> None:
        """Stops at `reward_threshold` or above."""
        self.reward_threshold = reward_threshold

    def on_start(self, run: Run) -> None:
        """Checks that there will be evaluations."""
        _check_evaluates(self, run)

    def on_evaluation(self, run: Run, evaluation: EvaluationReport) -> None:
        """Stops the run if the policy is good enough."""
        if evaluation.mean_reward >= self.reward_threshold:
            run.stop(f"the mean return {evaluation.mean_reward:,.1f} reaches {self.reward_threshold:g}")


class StopTrainingOnNoModelImprovement(Observer):
    """Ends the run when too many evaluations in a row are not better than the best; needs `eval_every_env_steps`."""

    def __init__(self, max_no_improvement_evals: int, min_evals: int = 0) -> None:
        """Stops after more than `max_no_improvement_evals` such evaluations; the first `min_evals` do not count."""
        self.max_no_improvement_evals = max_no_improvement_evals
        self.min_evals = min_evals
        self._num_evals = self._num_without = 0
        self._best: float | None = None

    def on_start(self, run: Run) -> None:
        """Checks that there will be evaluations."""
        _check_evaluates(self, run)

    def on_evaluation(self, run: Run, evaluation: EvaluationReport) -> None:
        """Stops the run if the policy has not improved for too long."""
        self._num_evals += 1
        is_better = self._best is None or evaluation.mean_reward > self._best
        if self._best is None or is_better:
            self._best = evaluation.mean_reward
        if self._num_evals > self.min_evals:
            self._num_without = 0 if is_better else self._num_without + 1
            if self._num_without > self.max_no_improvement_evals:
                run.stop(
                    f"no improvement in {self._num_without} evaluations; the best mean return is {self._best:,.1f}"
                )


class EveryNTimesteps(Observer):
    """Calls a function each time that another `n_steps` environment steps were trained."""

    def __init__(self, n_steps: int, callback: Callable[[Run], None]) -> None:
        """Calls `callback(run)` at the first report after each multiple of `n_steps`."""
        self.n_steps = n_steps
        self.callback = callback
        self._num_calls = 0

    def on_start(self, run: Run) -> None:
        """Counts from the start of the run."""
        self._num_calls = run.env_steps // self.n_steps

    def on_status(self, run: Run, status: Status) -> None:
        """Calls the function if the next multiple was reached."""
        if status.env_steps // self.n_steps > self._num_calls:
            self._num_calls = status.env_steps // self.n_steps
            self.callback(run)


class EnvironmentCurriculum(Observer):
    """Moves the environments through stages: to the next one when the last 100 training episodes are good enough.

    A stage is a dict for `set_training_info` of the environments.
    """

    def __init__(self, stages: Sequence[Mapping[str, Any]], thresholds: Sequence[float]) -> None:
        """Takes the stages, and the mean return at which each but the last ends.

        Raises:
            UsageError: there is not one threshold less than stages.
        """
        if len(thresholds) != len(stages) - 1:
            raise UsageError(
                f"A curriculum of {len(stages)} stages needs {len(stages) - 1} thresholds, got {len(thresholds)}."
            )
        self.stages = list(stages)
        self.thresholds = list(thresholds)
        self.stage = 0
        self._returns: deque[float] = deque(maxlen=EPISODE_WINDOW)

    def on_start(self, run: Run) -> None:
        """Begins with the first stage, or continues with the one that was reached when the learner's process died."""
        run.set_training_info(self.stages[self.stage])

    def on_episode(self, run: Run, episode: EpisodeRecord) -> None:
        """Begins the next stage if the last 100 episodes of this one are good enough."""
        if self.stage == len(self.thresholds):
            return
        self._returns.append(episode.episode_return)
        is_full = len(self._returns) == EPISODE_WINDOW
        if is_full and sum(self._returns) / EPISODE_WINDOW >= self.thresholds[self.stage]:
            self.stage += 1
            self._returns.clear()
            run.set_training_info(self.stages[self.stage])


def _check_evaluates(observer: Observer, run: Run) -> None:
    if run.config.eval_every_env_steps is None:
        name = type(observer).__name__
        raise UsageError(f"{name} needs evaluations during training: give eval_every_env_steps.")
