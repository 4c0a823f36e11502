"""Rules about the settings of algorithms with a replay: what cannot be combined."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.config.errors import Problem, make_problem
from asyncrl.config.flags import format_value
from asyncrl.config.plan import ReplayPlan, ResourcePlan
from asyncrl.config.schema import TrainConfig


def replay_problems(config: TrainConfig, replay: ReplayPlan, plan: ResourcePlan) -> Iterator[Problem]:
    """What algorithms with a replay need, and what they cannot be combined with."""
    if replay.size < replay.warmup_env_steps:
        text = f"--replay_size={replay.size} is smaller than the warm-up of {replay.warmup_env_steps} steps."
        yield make_problem("replay_size warmup_env_steps", text, f"--replay_size={replay.warmup_env_steps}")
    if config.lr_schedule.startswith("kl_adaptive"):
        text = f"--lr_schedule={config.lr_schedule} needs on-policy data; --algo={config.algo} has none."
        yield make_problem("lr_schedule algo", text, "--lr_schedule=constant", "--lr_schedule=linear_decay")
    if config.checkpoint_resets and not config.save_replay:
        text = "--checkpoint_resets=True needs the replay in each checkpoint (--save_replay=True)."
        yield make_problem("checkpoint_resets save_replay", text, "--save_replay=True")
    if config.use_rnn and replay.kind.learner is None:
        single = f"--algo={config.algo} trains on single steps from a replay"
        text = f"--use_rnn=True needs trajectories, SAC or TD3, but {single}."
        yield make_problem("use_rnn algo", text, "--use_rnn=False", "--algo=ppo", "--algo=sac")
    yield from _critics(config)
    if config.debug_forced_lag or config.debug_skip_training or config.with_vtrace:
        text = f"--debug_forced_lag, --debug_skip_training and --with_vtrace cannot be used with --algo={config.algo}."
        yield make_problem("debug_forced_lag debug_skip_training with_vtrace algo", text)


def _critics(config: TrainConfig) -> Iterator[Problem]:
    """Numbers of critics, and what belongs to learning from a replay, where others train."""
    fields = TrainConfig.model_fields
    if config.num_critics != fields["num_critics"].default and config.algorithm.has_other_learner_than_sac:
        yield make_problem("num_critics algo", "--num_critics: only SAC has these.", "--algo=sac")
    names = ("num_critics", "normalize_rewards", "weight_decay")
    used = [name for name in names if getattr(config, name) != fields[name].default]
    if used and config.backend == "hogwild":
        text = f"--{', --'.join(used)}: Hogwild workers train plain perceptrons without these."
        plain = " ".join(f"--{name}={format_value(fields[name].default)}" for name in used)
        yield Problem((*used, "backend"), text, ("--backend=actor_learner", plain))
