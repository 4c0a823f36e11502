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

# What an environment gets that no preset knows, after few steps; observations of several kinds.
_DEFAULT_ENVS = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "LunarLander-v3")
_DEFAULTS = (
    *(replace(_BY_ENV[env], env_steps=100_000) for env in _DEFAULT_ENVS),
    Task("toy_environments:Target-v0", 100_000, (-40, -20, -10), -54, -5.3),
    Task("toy_environments:Catch-v0", 100_000, (0, 0.5, 0.9), -0.75, 1),
)

# What is compared with other libraries, named before any of them was measured on it.
_PEER_ENVS = (
    "Acrobot-v1",
    "LunarLander-v3",
    "BipedalWalker-v3",
    "Hopper-v5",
    "Walker2d-v5",
    "HalfCheetah-v5",
    "Ant-v5",
)
_PEERS = (*(_BY_ENV[env] for env in _PEER_ENVS), replace(_BY_ENV["Humanoid-v5"], env_steps=1_000_000))

# Environments that had no part in finding a preset or a default. They were named before they were first trained.
_UNTOUCHED = (
    Task("flappy_bird_gymnasium:FlappyBird-v0", 300_000, (0, 5, 20), -8, 50),
    Task("highway_env:highway-fast-v0", 20_000, (15, 20, 25), 10.4, 29),
    Task("Taxi-v4", 300_000, (-200, -50, 0, 7), -777, 8),
    Task("MountainCar-v0", 300_000, (-190, -150, -120), -200, -110),
    Task("Pusher-v5", 300_000, (-60, -45, -35), -150, -25),
    Task("HumanoidStandup-v5", 300_000, (50_000, 80_000, 110_000), 33_000, 150_000),
)

# Three agents that share a policy; 2,000,001 agent steps. Random actions have -26.
_AGENTS = (Task("mpe2:simple_spread_v3", 666_667, (-22, -20, -18), -26, -14),)

SUITES: dict[str, tuple[Task, ...]] = {
    "quick": tuple(replace(_BY_ENV[env], env_steps=steps) for env, steps in _QUICK_STEPS.items()),
    "full": _TASKS,
    "peers": _PEERS,
    "defaults": _DEFAULTS,
    "untouched": _UNTOUCHED,
    "agents": _AGENTS,
}

USUAL_SYSTEMS: dict[str, tuple[str, ...]] = {
    "quick": ("asyncrl",),
    "full": ("asyncrl", "asyncrl_sync", "sample_factory", "sb3_zoo", "sb3_default"),
    "peers": ("asyncrl", "asyncrl_sync", "sample_factory", "sb3_zoo"),
    "defaults": ("asyncrl_defaults", "sb3_default"),
    "untouched": ("asyncrl", "sb3_default"),
    "agents": ("asyncrl", "sb3_agents"),
}
"""Names of the systems that each suite compares by default."""
