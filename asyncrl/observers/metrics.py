"""What each metric means that a run publishes to `metrics.jsonl`, TensorBoard, trackers and observers.

Each of several policies has separate metrics, whose names begin with `policy_N/`.
"""

from __future__ import annotations

import re

from asyncrl.config.hooks import hooks

METRICS: dict[str, str] = {
    "rollout/ep_rew_mean": "mean return of the last 100 training episodes",
    "rollout/ep_len_mean": "mean number of steps of the last 100 training episodes",
    "episode_extra_stats/NAME": (
        'mean over the last 100 episodes of a number in info["episode_extra_stats"], and of is_success'
    ),
    "eval/mean_reward": "mean return of an evaluation by a fixed policy",
    "eval/std_reward": "standard deviation of these returns",
    "eval/mean_ep_length": "mean number of steps of an evaluation's episodes",
    "time/fps": "environment steps per second that were trained on since the record before",
    "time/time_elapsed": "seconds since the command, earlier parts of a resumed run included",
    "time/total_env_steps": (
        "environment steps that were trained on; of one of several policies its part of them, in proportion to the "
        "steps of its agents"
    ),
    "time/total_agent_steps": "steps of agents that were trained on, in environments of several agents",
    "time/total_frames": "frames of a game: environment steps times the frame skip",
    "train/loss": "sum of all losses, each with its coefficient",
    "train/policy_gradient_loss": "loss of the policy",
    "train/value_loss": "loss of the value function, with its coefficient",
    "train/entropy_loss": "minus the entropy, with its coefficient; 0 without an entropy bonus",
    "train/kl_loss": (
        "penalty, with its coefficient, for the divergence from the policy that acted, with PPO's decoupled objective "
        "from that before training on the dataset"
    ),
    "train/approx_kl": "mean KL divergence of the updated policy from the one that it is compared with (docs: async)",
    "train/clip_fraction": "share of samples whose ratio is outside of the clip range",
    "train/effective_sample_size": "share of the samples that the importance weights leave, between 0 and 1",
    "train/explained_variance": "share of the variance of returns that the value function predicts",
    "train/learning_rate": "mean learning rate of the last dataset's or report's optimizer steps",
    "train/grad_norm": "norm of the gradient before it is clipped",
    "train/max_ratio_deviation_first_batch": (
        "largest difference from 1 of a ratio in the first minibatch: what the age of samples does"
    ),
    "train/entropy": "entropy of the policy in nats, without a coefficient",
    "train/std": "mean standard deviation of continuous actions, before squashing, in the unit of --action_unit",
    "train/n_updates": "optimizer steps since the start of the run",
    "train/skipped_steps": "optimizer steps that were skipped for NaN or infinity",
    "train/exploration_rate": "DQN's probability of a choice at random",
    "train/actor_loss": "loss of the policy (SAC, TD3)",
    "train/critic_loss": (
        "loss of the critics: half the sum of mean squared errors, with bins the sum of cross-entropies (SAC, TD3)"
    ),
    "train/ent_coef": "SAC's entropy coefficient",
    "train/ent_coef_loss": "loss of SAC's entropy coefficient",
    "train/q_mean": "mean value that critics, or DQN's network, give the actions in the replay",
    "train/grad_norm_actor": "norm of the policy's gradient before it is clipped (SAC, TD3)",
    "train/grad_norm_critic": "norm of the critics' gradient before it is clipped (SAC, TD3)",
    "lag/mean": "mean age of samples at their first use, in policy versions (optimizer steps)",
    "lag/p95": "age that 95 % of the samples do not exceed",
    "lag/max": "largest age",
    "lag/age_ms": "mean time between acting and first use, in milliseconds",
    "lag/over_bound": "share of samples that were older than the plan's bound",
    "replay/size": "environment steps in the replay",
    "replay/updates_per_env_step": "updates for each environment step since the warm-up",
    "replay/age_env_steps": "mean number of environment steps since the samples of batches were collected",
    "replay/age_updates": "mean number of updates since then, without samples of a saved replay",
    "replay/learner_blocked": "share of the learner's time in which it waited for steps",
    "replay/workers_blocked": "share of the workers' time in which they waited for updates",
    "perf/rollout_busy": "share of the rollout workers' time in which they did not wait",
    "perf/inference_busy": "share of the inference workers' time in which they did not wait",
    "perf/learner_busy": "share of the learner's time in which it did not wait",
    "perf/cores_in_use": (
        "processor time of rollout, inference and learner processes since the record before, divided by the time"
    ),
    "perf/inference_batch_size": "mean number of observations in a forward pass of an inference worker",
    "perf/slots_ready": "slots with trajectories that waited for the learner at the record",
    "perf/restarts": "restarts of processes",
    "perf/failed_saves": "checkpoints that could not be saved",
    "perf/env_failures": "failures of environments",
    "perf/not_finite_steps": "steps dropped because reward or observation was NaN or infinite",
    "perf/dropped_samples": "samples that were dropped, because they were too old or an environment had failed",
    "profile/ROLE/PHASE": "share of a role's time that it spent in a phase (--profile)",
    "hogwild/staleness_mean": "mean number of updates that others made between a worker's pull and its push",
    "hogwild/staleness_p95": "number that 95 % of the updates do not exceed",
    "hogwild/staleness_max": "largest number",
    "hogwild/recomputed": "share of updates that were over --hogwild_max_staleness and were computed again",
    "worker/N/env_steps": "environment steps of a worker (Hogwild)",
    "worker/N/ep_rew_mean": "mean return of a worker's last 100 episodes (Hogwild)",
    "worker/N/ep_len_mean": "mean number of steps of a worker's last 100 episodes (Hogwild)",
    "hyperparameters/NAME": "present value of a setting that an observer changed",
    "hyperparameters/policy_version": "policy version from which on the present values count",
    **{name: meaning for name, (meaning, _) in hooks("METRICS").items()},
}
"""Published name, with words in capitals for what varies, and meaning."""


PHASES: dict[str, str] = {
    "step": "share of time in which environments step",
    "fetch_weights": "share of time in which new weights are copied",
    "gather": "share of time in which observations or samples of a batch are collected",
    "forward": "share of time in which the policy computes actions",
    "copy": "share of time in which actions or samples are copied to where they are used",
    "train": "share of time in which updates are computed",
    "publish": "share of time in which new weights are published",
    "save": "share of time in which a checkpoint is written",
    "exchange_with_ranks": "share of time in which ranks exchange gradients",
    "other": "share of time for everything else",
    "wait_for_actions": "share of time in which workers wait for actions of an inference worker",
    "wait_for_slots": "share of time in which workers wait for free shared memory, because the learner is slower",
    "wait_for_requests": "share of time in which inference workers wait for observations",
    "wait_for_samples": "share of time in which the learner waits for samples, because the workers are slower",
    "wait_for_updates": "share of time in which workers wait for updates, because the learner is slower",
    "wait_for_ranks": "share of time in which a rank waits for the others",
}
"""What a role does in each phase, by the phase's published name (`profile/ROLE/PHASE`)."""

MACHINE: dict[str, str] = {
    "cores in use": "processor time of the run's processes, divided by the time",
    "memory": "memory of the run's processes, with what they share counted once",
    "memory free": "memory of the machine that programs can still get",
    "cores, all programs": "processor time of all programs on the machine, divided by the time",
    "processes": "processes of the run",
    "GPU": "share of time at work, and memory in use, both by all programs",
}
"""What the dashboard shows of the machine, which is not in the records."""


def describe(name: str) -> str | None:
    """The meaning of a published metric; None if it is unknown."""
    name = re.sub(r"^policy_\d+/", "", name)
    if name in METRICS:
        return METRICS[name]
    for pattern, meaning in METRICS.items():
        if re.fullmatch(re.sub(r"(?<![a-zA-Z])[A-Z]+(?![a-zA-Z])", ".+", pattern), name):
            return meaning
    return None
