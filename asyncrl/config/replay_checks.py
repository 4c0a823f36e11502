"""Rules about the settings of algorithms with a replay: what cannot be combined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from asyncrl.config.errors import Problem, make_problem
from asyncrl.config.flags import format_value, multiples_as_flags
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
    if config.use_rnn:
        yield from _recurrent_replay(config, plan)
    yield from _blocks(config)
    if config.debug_forced_lag or config.debug_skip_training or config.with_vtrace:
        text = f"--debug_forced_lag, --debug_skip_training and --with_vtrace cannot be used with --algo={config.algo}."
        yield make_problem("debug_forced_lag debug_skip_training with_vtrace algo", text)


def _recurrent_replay(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    """What sequences from a replay cannot be combined with."""
    given, off = "--use_rnn=True", "--use_rnn=False"
    if config.algorithm.make_recurrent_learner is None:
        text = f"{given} needs trajectories, SAC or TD3, but --algo={config.algo} trains on single steps from a replay."
        yield make_problem("use_rnn algo", text, off, "--algo=ppo", "--algo=sac")
    if config.batch_size % plan.recurrence:
        text = f"--recurrence={plan.recurrence} must divide --batch_size={config.batch_size}."
        fitting = multiples_as_flags("batch_size", config.batch_size, plan.recurrence)
        yield make_problem("recurrence batch_size", text, *fitting)
    fields = TrainConfig.model_fields
    for name in ("n_step", "backend", "env_backend", *_BLOCKS):
        value, default = getattr(config, name), fields[name].default
        if value != default and (name != "env_backend" or plan.steps_tensors):
            text = f"{given} with --algo={config.algo} cannot be used with --{name}={value}."
            yield make_problem(f"use_rnn {name}", text, f"--{name}={format_value(default)}", off)


_NETWORKS = ("residual_blocks", "hyperspherical_weights", "batch_renorm")


_BLOCKS = (*_NETWORKS, "value_bins", "use_target_critics", "num_critics")


_OF_ANY_REPLAY = ("normalize_rewards", "weight_decay")


def without_blocks(config: TrainConfig) -> str:
    """The flags that together turn networks of blocks into plain perceptrons."""
    return _without(config, _NETWORKS)


def _without(config: TrainConfig, names: Iterable[str]) -> str:
    """The flags that together give these settings of SAC's critics their defaults."""
    of_set = config.algorithm.critics.get(config.critic, {})
    flags = ["--critic=mlp"] if config.critic != "mlp" else []
    for name in names:
        value, default = getattr(config, name), TrainConfig.model_fields[name].default
        if value != default and value != of_set.get(name, default):
            flags.append(f"--{name}={format_value(default)}")
    return " ".join(flags)


def _blocks(config: TrainConfig) -> Iterator[Problem]:
    """SAC's networks of blocks, and what belongs to them."""
    fields = TrainConfig.model_fields
    used = [name for name in _BLOCKS if getattr(config, name) != fields[name].default]
    if used and config.algorithm.has_other_learner_than_sac:
        yield Problem((*used, "algo"), f"--{', --'.join(used)}: only SAC has these.", ("--algo=sac",))
    used += [name for name in _OF_ANY_REPLAY if getattr(config, name) != fields[name].default]
    if used and config.backend == "hogwild":
        text = f"--{', --'.join(used)}: Hogwild workers train plain perceptrons without these."
        yield Problem((*used, "backend"), text, ("--backend=actor_learner", _without(config, used)))
    if config.hyperspherical_weights and config.batch_renorm:
        text = (
            "--hyperspherical_weights and --batch_renorm both normalize the features of each layer: give one of them."
        )
        yield make_problem("hyperspherical_weights batch_renorm", text, "--batch_renorm=False")
    if config.batch_renorm and config.batch_size < 2:
        text = f"--batch_renorm=True needs at least two samples in a minibatch, but --batch_size={config.batch_size}."
        yield make_problem("batch_size batch_renorm", text, "--batch_size=256")
    for name in ("encoder_mlp_layers", "critic_mlp_layers"):
        widths = getattr(config, name) or []
        if config.residual_blocks and len(set(widths)) > 1:
            text = f"--{name}={','.join(map(str, widths))}: residual blocks have one width (--residual_blocks=True)."
            yield make_problem(f"{name} residual_blocks", text, f"--{name}={','.join([str(widths[0])] * len(widths))}")
