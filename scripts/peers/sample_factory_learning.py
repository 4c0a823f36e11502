"""Trains with Sample Factory and evaluates the saved policies. Runs in a separate virtual environment.

Usage: sample_factory_learning.py train FOLDER OPTIONS, JSON: env, env_steps, seed, limit_s, step_marks, time_marks_s,
num_workers, num_envs_per_worker, settings (mode). Writes FOLDER/curve.jsonl, and checkpoints to FOLDER/run.

Usage: sample_factory_learning.py evaluate RESULTS_FILE OPTIONS, JSON: env, seed, episodes, policies. Statistics are
the checkpoint's.
"""

import json
import sys
from pathlib import Path

import gymnasium
import torch
from learning_log import LearningLog, evaluate_all
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.sampling.batched_sampling import preprocess_actions
from sample_factory.algo.utils.action_distributions import argmax_actions
from sample_factory.algo.utils.env_info import extract_env_info
from sample_factory.algo.utils.make_env import make_env_func_batched
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.algo.utils.rl_utils import prepare_and_normalize_obs
from sample_factory.envs.env_utils import register_env
from sample_factory.model.actor_critic import create_actor_critic
from sample_factory.model.model_utils import get_rnn_size
from sample_factory.train import make_runner
from sample_factory.utils.attr_dict import AttrDict
from sf_examples.mujoco.train_mujoco import parse_mujoco_cfg


class Curve(AlgoObserver):
    """Notes returns and has the policy saved at the marks.

    Sample Factory looks at `train_for_seconds` only when it saves, so the end is asked for by its limit of steps.
    """

    def __init__(self, folder: Path, options: dict) -> None:
        self._log = LearningLog(folder, options)

    def on_start(self, runner: Runner) -> None:
        self._log.begin()

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        env_steps = self._note(runner)
        if self._log.is_policy_due(env_steps):
            runner.save_milestone.emit()
        if self._log.is_over:
            runner.cfg.train_for_env_steps = 0

    def on_stop(self, runner: Runner) -> None:
        self._note(runner, is_last=True)

    def _note(self, runner: Runner, is_last: bool = False) -> int:
        """Notes the returns and returns the environment steps."""
        env_steps = sum(runner.env_steps.values())
        rewards = runner.policy_avg_stats.get("reward")
        self._log.note(env_steps, rewards[0] if rewards else (), is_last)
        return env_steps


def make_env(name, cfg=None, env_config=None, render_mode=None):
    return gymnasium.make(name, render_mode=render_mode)


def flags(folder: Path, options: dict) -> list[str]:
    """Returns the settings of the MuJoCo examples, apart from the number of workers and the mode."""
    return [
        f"--env={options['env']}",
        f"--async_rl={options['settings']['mode'] == 'async'}",
        f"--num_workers={options['num_workers']}",
        f"--num_envs_per_worker={options['num_envs_per_worker']}",
        f"--train_for_env_steps={options['env_steps']}",
        "--device=cpu",
        f"--seed={options['seed']}",
        "--restart_behavior=overwrite",
        f"--train_dir={folder}",
        "--experiment=run",
    ]


def train(folder: Path, options: dict) -> int:
    """Trains until the steps or the time are reached; Sample Factory saves the final policy."""
    _, runner = make_runner(parse_mujoco_cfg(flags(folder, options)))
    runner.register_observer(Curve(folder, options))
    status = runner.init()
    if status == ExperimentStatus.SUCCESS:
        status = runner.run()
    return int(status)


def evaluate(results: Path, options: dict) -> int:
    cfg = parse_mujoco_cfg([f"--env={options['env']}", "--device=cpu"])
    torch.set_num_threads(1)

    def mean_return(path: str, deterministic: bool) -> float:
        torch.manual_seed(options["seed"])
        weights = torch.load(path, map_location="cpu", weights_only=False)["model"]
        returns = play(cfg, weights, options, deterministic)
        return sum(returns) / len(returns)

    evaluate_all(results, options["policies"], mean_return)
    return 0


@torch.no_grad()
def play(cfg, weights: dict, options: dict, deterministic: bool) -> list[float]:
    """Returns the returns of the episodes, played as in sample_factory.enjoy."""
    env = make_env_func_batched(cfg, env_config=AttrDict(worker_index=0, vector_index=0, env_id=0))
    info = extract_env_info(env, cfg)
    model = create_actor_critic(cfg, env.observation_space, env.action_space)
    model.model_to_device(torch.device("cpu"))
    model.load_state_dict(weights)
    model.eval()
    state = torch.zeros([env.num_agents, get_rnn_size(cfg)])
    obs, _ = env.reset(seed=options["seed"])
    returns, current = [], 0.0
    while len(returns) < options["episodes"]:
        output = model(prepare_and_normalize_obs(model, obs), state)
        actions = argmax_actions(model.action_distribution()) if deterministic else output["actions"]
        actions = actions.unsqueeze(-1) if actions.ndim == 1 else actions
        obs, reward, terminated, truncated, _ = env.step(preprocess_actions(info, actions))
        current += float(reward)
        if bool(terminated) or bool(truncated):
            returns.append(current)
            current = 0.0
    env.close()
    return returns


def main() -> int:
    action, path, options = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    register_env(options["env"], make_env)
    return {"train": train, "evaluate": evaluate}[action](path, options)


if __name__ == "__main__":
    sys.exit(main())
