"""Trains with Stable-Baselines3's PPO or A2C and evaluates the saved policies. Runs in a separate virtual environment.

Usage: stable_baselines3_learning.py train FOLDER OPTIONS, JSON: env, env_steps, seed, limit_s, step_marks,
time_marks_s, settings (as in zoo_ppo.json; empty: the defaults; `algorithm` is ppo or a2c), and perhaps `start_from`, a
saved policy that training continues, for env_steps more. Writes FOLDER/curve.jsonl and FOLDER/policies/.

Usage: stable_baselines3_learning.py evaluate RESULTS_FILE OPTIONS, JSON: env, seed, episodes, policies, settings.
Statistics are the saved ones.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
from gymnasium import spaces
from learning_log import LearningLog, evaluate_all
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecNormalize
from torch import nn

NUM_EVALUATION_ENVS = 8
OF_THE_ENVIRONMENT = ("algorithm", "policy", "normalize", "n_envs", "frame_stack")
"""Settings that are not arguments of an algorithm."""
ALGORITHMS = {"ppo": PPO, "a2c": A2C}


class Curve(BaseCallback):
    """Notes returns, saves the policy at the marks, and ends the run after its time."""

    def __init__(self, folder: Path, options: dict) -> None:
        super().__init__()
        self._folder = folder / "policies"
        self._log = LearningLog(folder, options)
        self._num_agents = options.get("num_agents", 1)

    def save(self) -> None:
        """Saves the policy after its statistics, because the time of the policy's file counts."""
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"policy_{self._env_steps}.zip"
        normalize = self.model.get_vec_normalize_env()
        if normalize is not None:
            normalize.save(str(path.with_suffix(".pkl")))
        self.model.save(path)

    def _on_training_start(self) -> None:
        self._log.begin()

    def _on_training_end(self) -> None:
        self._log.note(self._env_steps, self._returns, is_last=True)

    def _on_step(self) -> bool:
        self._log.note(self._env_steps, self._returns)
        if self._log.is_policy_due(self._env_steps):
            self.save()
        return not self._log.is_over

    @property
    def _env_steps(self) -> int:
        return self.num_timesteps // self._num_agents

    @property
    def _returns(self) -> Iterator[float]:
        return (episode["r"] for episode in self.model.ep_info_buffer)


def make_agents(env: str, num_envs: int) -> VecEnv:
    """Makes PettingZoo environments whose agents are the environments of a `VecEnv`, as supersuit does."""
    import importlib

    import supersuit
    from stable_baselines3.common.vec_env import VecMonitor

    module = importlib.import_module(env.replace(":", "."))
    agents = supersuit.pettingzoo_env_to_vec_env_v1(module.parallel_env())
    envs = supersuit.concat_vec_envs_v1(agents, num_envs, num_cpus=1, base_class="stable_baselines3")
    envs.venv.seed = lambda seed: envs.venv.reset(seed=seed)  # Stable-Baselines3 calls it, and supersuit has none
    return VecMonitor(envs)


def make_envs(env: str, settings: dict, num_envs: int, seed: int, in_training: bool) -> VecEnv:
    """Makes environments as rl-baselines3-zoo does, in one process and without normalization."""
    if env.startswith("mpe2:"):
        return make_agents(env, num_envs)
    if not env.startswith("ALE/"):
        return make_vec_env(env, num_envs, seed)
    import ale_py

    gymnasium.register_envs(ale_py)
    # The wrapper skips frames itself. An evaluation plays whole games.
    wrapper = {"terminal_on_life_loss": in_training}
    games = make_atari_env(env, num_envs, seed, env_kwargs={"frameskip": 1}, wrapper_kwargs=wrapper)
    return VecFrameStack(games, settings["frame_stack"])


def arguments(settings: dict) -> dict:
    """Returns arguments of an algorithm: {"linear": x} is a schedule from x to 0; functions and classes are names."""
    found = {}
    for name, value in settings.items():
        if name not in OF_THE_ENVIRONMENT:
            found[name] = linear(value["linear"]) if isinstance(value, dict) and "linear" in value else value
    network = dict(found.get("policy_kwargs", {}))
    if "activation_fn" in network:
        network["activation_fn"] = getattr(nn, network["activation_fn"])
    if network.get("optimizer_class") == "RMSpropTFLike":
        network["optimizer_class"] = RMSpropTFLike
    return {**found, "policy_kwargs": network or None}


def linear(start: float):
    return lambda remaining: remaining * start


def default_policy(envs: VecEnv) -> str:
    """Returns the policy that Stable-Baselines3's documentation names for the kind of observations."""
    if isinstance(envs.observation_space, spaces.Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if is_image_space(envs.observation_space) else "MlpPolicy"


def algorithm_of(settings: dict) -> type:
    """Returns the class of the algorithm that the settings name, PPO by default."""
    return ALGORITHMS[settings.get("algorithm", "ppo")]


def train(folder: Path, options: dict) -> None:
    """Trains until the steps or the time are reached, and saves the final policy."""
    settings = options["settings"]
    envs = make_envs(options["env"], settings, settings.get("n_envs", 1), options["seed"], in_training=True)
    if settings.get("normalize"):
        envs = VecNormalize(envs, gamma=settings.get("gamma", 0.99))
    algorithm, start_from = algorithm_of(settings), options.get("start_from")
    if start_from is None:
        policy = settings.get("policy") or default_policy(envs)
        model = algorithm(policy, envs, device="cpu", seed=options["seed"], **arguments(settings))
    else:
        model = algorithm.load(start_from, envs, device="cpu")
        model.set_random_seed(options["seed"])
    num_agents = envs.num_envs // settings.get("n_envs", 1)
    curve = Curve(folder, {**options, "num_agents": num_agents})
    model.learn(num_agents * options["env_steps"], callback=curve, reset_num_timesteps=start_from is None)
    curve.save()
    envs.close()


class DrawnActions:
    """A policy whose state-dependent exploration noise is resampled as often as in training."""

    def __init__(self, model: PPO | A2C, num_envs: int) -> None:
        self._model, self._num_envs, self._steps = model, num_envs, 0
        self._every = model.sde_sample_freq if model.sde_sample_freq > 0 else model.n_steps

    def predict(self, *positional, **named):
        if self._model.use_sde and self._steps % self._every == 0:
            self._model.policy.reset_noise(self._num_envs)
        self._steps += 1
        return self._model.predict(*positional, **named)


def evaluate(results: Path, options: dict) -> None:
    num_envs = min(NUM_EVALUATION_ENVS, options["episodes"])

    def play(path: str, deterministic: bool) -> float:
        envs = make_envs(options["env"], options["settings"], num_envs, options["seed"], in_training=False)
        statistics = Path(path).with_suffix(".pkl")
        if statistics.exists():
            envs = VecNormalize.load(str(statistics), envs)
            envs.training = envs.norm_reward = False
        policy = DrawnActions(algorithm_of(options["settings"]).load(path, device="cpu"), envs.num_envs)
        episodes = options["episodes"] * (envs.num_envs // num_envs)  # of each agent
        mean_return, _ = evaluate_policy(policy, envs, episodes, deterministic=deterministic)
        envs.close()
        return float(mean_return)

    evaluate_all(results, options["policies"], play)


def main() -> int:
    {"train": train, "evaluate": evaluate}[sys.argv[1]](Path(sys.argv[2]), json.loads(sys.argv[3]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
