"""Shared parts of the drivers: records during training, times to save, timing. Needs no package."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

RECORD_EVERY_S = 1.0


class LearningLog:
    """Writes curve.jsonl, and says when a policy is to be saved and when the time is over.

    Each line is {"time_s": seconds since the epoch, "env_steps": ..., "mean_return": ...}. The first one is of the
    first environment step and has no return.
    """

    def __init__(self, folder: Path, options: dict) -> None:
        """Opens the file in the run's folder; options are env_steps, limit_s, step_marks and time_marks_s."""
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / "curve.jsonl").open("w", encoding="utf-8", buffering=1)
        self._limit_s = options["limit_s"]
        self._step_marks = [share * options["env_steps"] for share in options["step_marks"] if share < 1.0]
        self._time_marks_s = options["time_marks_s"]
        self._began_at = self._noted_at = 0.0

    def begin(self) -> None:
        """Notes the time of the first environment step: now."""
        self._began_at = time.time()
        self._write(0, None)

    def note(self, env_steps: int, returns: Iterable[float], is_last: bool = False) -> None:
        """Writes the mean of the last returns, at most once a second, and at the end of the run."""
        if not is_last and time.time() - self._noted_at < RECORD_EVERY_S:
            return
        values = list(returns)
        if values:
            self._write(env_steps, float(sum(values) / len(values)))

    def is_policy_due(self, env_steps: int) -> bool:
        """Returns whether a mark was passed since the last call; the end is not a mark."""
        num_left = len(self._step_marks) + len(self._time_marks_s)
        self._step_marks = [mark for mark in self._step_marks if mark > env_steps]
        self._time_marks_s = [mark for mark in self._time_marks_s if mark > self.seconds]
        return len(self._step_marks) + len(self._time_marks_s) < num_left

    @property
    def seconds(self) -> float:
        """Seconds since the first environment step."""
        return time.time() - self._began_at

    @property
    def is_over(self) -> bool:
        """Whether the time limit of the run is reached."""
        return self.seconds >= self._limit_s

    def _write(self, env_steps: int, mean_return) -> None:
        self._noted_at = time.time()
        self._file.write(
            json.dumps({"time_s": self._noted_at, "env_steps": env_steps, "mean_return": mean_return}) + "\n"
        )


def calls_per_s(call: Callable[[], object], warm_up_s: float, seconds: float) -> float:
    """Returns how often a function can be called per second, after a warm-up."""
    for duration_s in (warm_up_s, seconds):
        count, started = 0, time.monotonic()
        while (elapsed_s := time.monotonic() - started) < duration_s or count == 0:
            call()
            count += 1
    return count / elapsed_s


def evaluate_all(results: Path, policies: Sequence[str], play: Callable[[str, bool], float]) -> None:
    """Evaluates policies with sampled actions, the last one with deterministic ones, too, and writes a line for each.

    Args:
        results: the file, to whose end the lines go.
        policies: their paths.
        play: plays the policy of a path, with deterministic actions if its second argument is true, and returns the
            mean return.
    """
    for number, policy in enumerate(policies, start=1):
        line = {"policy": policy, "mean_return": play(policy, False)}
        if number == len(policies):
            line["deterministic_return"] = play(policy, True)
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
