"""Rules about networks and critics of papers: what they cannot be combined with, and what is probably a mistake."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from asyncrl.config.errors import Problem, make_problem
from asyncrl.config.flags import format_value
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.critics.papers import PAPERS
from asyncrl.contrib.critics.settings import CriticSettings

_NETWORKS = ("residual_blocks", "hyperspherical_weights", "batch_renorm")
_ALL = (*_NETWORKS, "value_bins", "use_target_critics")


def find_problems(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    """What networks and critics of papers cannot be combined with."""
    if plan.replay is None:
        return
    own = CriticSettings.of(config)
    used = [name for name in _ALL if getattr(config, name) != TrainConfig.model_fields[name].default]
    if used and config.algorithm.has_other_learner_than_sac:
        yield Problem((*used, "algo"), f"--{', --'.join(used)}: only SAC has these.", ("--algo=sac",))
    if used and config.backend == "hogwild":
        text = f"--{', --'.join(used)}: Hogwild workers train plain perceptrons without these."
        yield Problem((*used, "backend"), text, ("--backend=actor_learner", _without(config, used)))
    for name in used if config.use_rnn else ():
        default = format_value(TrainConfig.model_fields[name].default)
        text = f"--use_rnn=True with --algo={config.algo} cannot be used with --{name}={getattr(config, name)}."
        yield make_problem(f"use_rnn {name}", text, f"--{name}={default}", "--use_rnn=False")
    if own.has_blocks and config.critic_only_keys:
        text = "--critic_only_keys needs SAC's perceptrons, and there are networks of blocks."
        yield make_problem("critic_only_keys critic", text, _without(config, _NETWORKS))
    if own.hyperspherical_weights and own.batch_renorm:
        text = (
            "--hyperspherical_weights and --batch_renorm both normalize the features of each layer: give one of them."
        )
        yield make_problem("hyperspherical_weights batch_renorm", text, "--batch_renorm=False")
    if own.batch_renorm and config.batch_size < 2:
        text = f"--batch_renorm=True needs at least two samples in a minibatch, but --batch_size={config.batch_size}."
        yield make_problem("batch_size batch_renorm", text, "--batch_size=256")
    if own.residual_blocks:
        yield from _block_widths(config)


def _block_widths(config: TrainConfig) -> Iterator[Problem]:
    for name in ("encoder_mlp_layers", "critic_mlp_layers"):
        widths = getattr(config, name) or []
        if len(set(widths)) > 1:
            text = f"--{name}={','.join(map(str, widths))}: residual blocks have one width (--residual_blocks=True)."
            yield make_problem(f"{name} residual_blocks", text, f"--{name}={','.join([str(widths[0])] * len(widths))}")


def _without(config: TrainConfig, names: Iterable[str]) -> str:
    """The flags that together give these settings their defaults."""
    critic = CriticSettings.of(config).critic
    paper_values = PAPERS.get(critic, {})
    flags = ["--critic=mlp"] if critic != "mlp" else []
    for name in names:
        value, default = getattr(config, name), TrainConfig.model_fields[name].default
        if value != default and value != paper_values.get(name, default):
            flags.append(f"--{name}={format_value(default)}")
    return " ".join(flags)


def find_warnings(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    """Bins that end at returns that the run probably exceeds."""
    own = CriticSettings.of(config)
    is_default = own.value_limit == CriticSettings.model_fields["value_limit"].default
    if plan.replay is not None and own.value_bins is not None and not config.normalize_rewards and is_default:
        text = (
            f"The bins of --value_bins={own.value_bins} end at returns of {own.value_limit:g} "
            "(--value_limit), and larger ones are clipped."
        )
        fitting = ("--normalize_rewards=True", "--value_limit=LARGEST_RETURN")
        yield make_problem("value_bins value_limit normalize_rewards", text, *fitting)
