"""Ready-made callbacks. Those with a name of Stable-Baselines3 do the same as there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asyncrl.config.errors import UsageError
from asyncrl.observers.observer import Observer, Run
from asyncrl.observers.reports import EPISODE_WINDOW, EpisodeRecord, EvaluationReport
from asyncrl.observers.status import Status


class _StateOfRun(Observer):
    """A callback whose state belongs to a run; a restart after the learner's death keeps it."""

    _run: Run | None = None

    def on_start(self, run: Run) -> None:
        """Forgets what was of another run, which the same object has watched before."""
        before, self._run = self._run, run
        if before is None or before is run:
            return
        if before.folder != run.folder or run.start.before is None:
            self._reset()

    def _reset(self) -> None:
        """Returns to the state before any run."""


class _EvaluationObserver(Observer):
    """A callback that needs evaluations."""

    def on_start(self, run: Run) -> None:
        """Checks that the run evaluates.

        Raises:
            UsageError: `eval_every_env_steps` is not set.
        """
        super().on_start(run)
        if run.config.eval_every_env_steps is None:
            name = type(self).__name__
            raise UsageError(f"{name} needs evaluations during training: give eval_every_env_steps.")


class StopTrainingOnRewardThreshold(_EvaluationObserver):
    """Stops the run when the mean return of an evaluation reaches a threshold; needs `eval_every_env_steps`.

    Of several policies the first that reaches it stops the run.
    """

    def __init__(self, reward_threshold: float) -> None:
        """Stops the run at a mean return of `reward_threshold` or more."""
        self.reward_threshold = reward_threshold

    def on_evaluation(self, run: Run, evaluation: EvaluationReport) -> None:
        if evaluation.mean_reward >= self.reward_threshold:
            run.stop(f"the mean return {evaluation.mean_reward:,.1f} reaches {self.reward_threshold:g}")


class StopTrainingOnNoModelImprovement(_EvaluationObserver, _StateOfRun):
    """Stops the run after too many evaluations in a row without a new best return; needs `eval_every_env_steps`.

    The evaluations of several policies are counted together; each has its own best return.
    """

    def __init__(self, max_no_improvement_evals: int, min_evals: int = 0) -> None:
        """Creates the callback.

        Args:
            max_no_improvement_evals: evaluations in a row without improvement that are tolerated; one more stops.
            min_evals: the first evaluations, which never count as without improvement.
        """
        self.max_no_improvement_evals = max_no_improvement_evals
        self.min_evals = min_evals
        self._reset()

    def _reset(self) -> None:
        self._num_evals = self._num_without = 0
        self._best: dict[int, float] = {}  # by the policy's number

    def on_evaluation(self, run: Run, evaluation: EvaluationReport) -> None:
        self._num_evals += 1
        policy_idx, mean = evaluation.policy_idx, evaluation.mean_reward
        is_better = policy_idx not in self._best or mean > self._best[policy_idx]
        if is_better:
            self._best[policy_idx] = mean
        if self._num_evals > self.min_evals:
            self._num_without = 0 if is_better else self._num_without + 1
            if self._num_without > self.max_no_improvement_evals:
                best = max(self._best.values())
                run.stop(f"no improvement in {self._num_without} evaluations; the best mean return is {best:,.1f}")


class EveryNTimesteps(Observer):
    """Calls a function after every `n_steps` environment steps of training."""

    def __init__(self, n_steps: int, callback: Callable[[Run], None]) -> None:
        """Creates the callback.

        Args:
            n_steps: environment steps between two calls.
            callback: called with the run at the first status after each multiple of `n_steps`; once if several
                multiples were reached since the last status.
        """
        self.n_steps = n_steps
        self.callback = callback
        self._num_multiples = 0

    def on_start(self, run: Run) -> None:
        """Skips the multiples that a resumed run has already reached."""
        self._num_multiples = run.env_steps // self.n_steps

    def on_status(self, run: Run, status: Status) -> None:
        if status.env_steps // self.n_steps > self._num_multiples:
            self._num_multiples = status.env_steps // self.n_steps
            self.callback(run)


class EnvironmentCurriculum(_StateOfRun):
    """Leads the environments through stages of difficulty.

    A stage is a dict, which every environment with a method `set_training_info` gets. The next stage begins when the
    mean return of the last 100 training episodes that were wholly played in the current stage reaches its threshold.
    The stage is not saved: a resumed run begins with the first one.

    Attributes:
        stage: index of the current stage.
    """

    def __init__(self, stages: Sequence[Mapping[str, Any]], thresholds: Sequence[float]) -> None:
        """Creates the callback.

        Args:
            stages: dicts in the order of the stages.
            thresholds: mean return at which each stage but the last ends.

        Raises:
            UsageError: the number of thresholds is not the number of stages minus one.
        """
        if len(thresholds) != len(stages) - 1:
            raise UsageError(
                f"A curriculum of {len(stages)} stages needs {len(stages) - 1} thresholds, got {len(thresholds)}."
            )
        self.stages = list(stages)
        self.thresholds = list(thresholds)
        self._number = 0  # of the message with the current stage
        self._reset()

    def _reset(self) -> None:
        self.stage = 0
        self._returns: deque[float] = deque(maxlen=EPISODE_WINDOW)

    def on_start(self, run: Run) -> None:
        """Sends the first stage, or the current one if the learner's process died and the run restarts."""
        super().on_start(run)
        if not run.spec.takes_training_info:
            run.say(f"warning: {run.spec.env_id} has no method set_training_info, so the curriculum changes nothing.")
        self._number = run.set_training_info(self.stages[self.stage])

    def on_episode(self, run: Run, episode: EpisodeRecord) -> None:
        """Begins the next stage if the last 100 episodes of this one reach its threshold."""
        if self.stage == len(self.thresholds) or episode.training_info < self._number:
            return
        self._returns.append(episode.episode_return)
        is_full = len(self._returns) == EPISODE_WINDOW
        if is_full and sum(self._returns) / EPISODE_WINDOW >= self.thresholds[self.stage]:
            self.stage += 1
            self._returns.clear()
            self._number = run.set_training_info(self.stages[self.stage])
