"""The environments of each suite, their steps, and the returns whose times are reported."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Task:
    """One environment.

    Attributes:
        env: Gymnasium id.
        env_steps: environment steps of a run, where schedules of the learning rate end.
        thresholds: returns whose times are reported, lowest first.
        low, high: returns with the normalized scores 0 and 1: about that of random actions (20 episodes), and a good
            result, which can be exceeded.
    """

    env: str
    env_steps: int
    thresholds: tuple[float, ...]
    low: float
    high: float

    def normalized(self, score: float) -> float:
        """Returns the position of a return between `low` (0) and `high` (1)."""
        return (score - self.low) / (self.high - self.low)

    def denormalized(self, share: float) -> float:
        """Returns the return at a position between `low` (0) and `high` (1)."""
        return self.low + share * (self.high - self.low)


TIME_MARKS_S = (10, 30, 60, 120, 300)
"""Seconds of training after which a policy is evaluated, from the first environment step."""

STEP_MARKS = (0.1, 0.25, 0.5, 1.0)
"""Shares of a task's steps after which a policy is evaluated."""

_TASKS = (
    Task("CartPole-v1", 100_000, (100, 200, 400, 475), 20, 500),
    Task("Acrobot-v1", 300_000, (-300, -150, -100, -85), -500, -80),
    Task("Pendulum-v1", 300_000, (-1000, -500, -250, -180), -1250, -150),
    Task("MountainCarContinuous-v0", 200_000, (0, 50, 85, 92), -35, 95),
    Task("LunarLander-v3", 1_000_000, (0, 100, 200, 250), -230, 280),
    Task("LunarLanderContinuous-v3", 1_000_000, (0, 100, 200, 250), -240, 280),
    Task("BipedalWalker-v3", 1_000_000, (0, 100, 200, 280), -105, 320),
    Task("Hopper-v5", 1_000_000, (500, 1000, 2000, 3000), 25, 3500),
    Task("Walker2d-v5", 1_000_000, (500, 1000, 2000, 3000, 4000), 0, 5000),
    Task("HalfCheetah-v5", 1_000_000, (1000, 2000, 3000, 5000, 7000), -260, 8000),
    Task("Ant-v5", 1_000_000, (500, 1000, 1500, 2000, 3000), -20, 4500),
    Task("Humanoid-v5", 3_000_000, (500, 1000, 2000, 4000, 5000), 105, 6000),
    Task("Swimmer-v5", 1_000_000, (30, 60, 90, 110), 0, 130),
    Task("InvertedDoublePendulum-v5", 500_000, (1000, 3000, 6000, 9000), 50, 9350),
    Task("ALE/Pong-v5", 1_000_000, (-18, -10, 0, 15), -21, 21),
)
_BY_ENV = {task.env: task for task in _TASKS}

# The regression gate: tasks that are learned within half a minute, with discrete and continuous actions, in both
# simulators.
_QUICK_STEPS = {"CartPole-v1": 100_000, "LunarLander-v3": 300_000, "Hopper-v5": 500_000, "HalfCheetah-v5": 500_000}

SUITES: dict[str, tuple[Task, ...]] = {
    "quick": tuple(replace(_BY_ENV[env], env_steps=steps) for env, steps in _QUICK_STEPS.items()),
    "full": _TASKS,
}
