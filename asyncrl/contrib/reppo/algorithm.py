"""The record of REPPO, and which runs it cannot train."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.config.algorithms import Algorithm
from asyncrl.config.errors import Problem
from asyncrl.config.flags import format_value
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import BoxAction, EnvSpec

REPPO = Algorithm(
    "reppo",
    defaults={
        "rollout": 128,
        "batch_size": 128,
        "num_batches_per_epoch": 16,
        "num_epochs": 8,
        "learning_rate": 0.0003,
        "lr_schedule": "constant",
        "gae_lambda": 0.95,
        "max_grad_norm": 0.5,
        "target_kl": None,
        "final_stddev": None,
        "normalize_input": True,
        "normalize_returns": True,
        "normalize_advantage": False,
        "encoder_mlp_layers": [256, 256],
        "nonlinearity": "elu",
        "squash_actions": True,
        "adaptive_stddev": True,
        "actor_critic_share_weights": True,
    },
    make_learner="asyncrl.contrib.reppo.learner:ReppoLearner",
    actions="continuous",
    ignores=frozenset(
        {
            "value_loss_coeff",
            "entropy_loss_coeff",
            "final_entropy_loss_coeff",
            "kl_loss_coeff",
            "ppo_clip_value",
            "normalize_advantage",
            "normalize_advantage_over",
            "recompute_values",
            "ppo_objective",
            "behaviour_weight_cap",
            "ppo_clip_ratio",
            "final_ppo_clip_ratio",
            "ppo_clip_mode",
            "final_stddev",
        }
    ),
)


_NEEDED = {
    "use_rnn": False,
    "with_vtrace": False,
    "recompute_advantages": False,
    "normalize_returns": True,
    "squash_actions": True,
    "adaptive_stddev": True,
    "actor_critic_share_weights": True,  # the critic reads actions, so it is another network, which is not published
}
_REFUSED = {"precision": "bf16", "compile": "cuda_graph", "encoder_mlp_layers": [], "with_pbt": True}


def find_problems(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    """What REPPO does not do."""
    if config.algorithm is not REPPO:
        return
    for name, value in _NEEDED.items():
        if getattr(config, name) != value:
            yield Problem((name, "algo"), f"--algo=reppo needs --{name}={value}.", (f"--{name}={value}",))
    for name, refused in _REFUSED.items():
        if getattr(config, name, None) == refused:  # population-based training may not be installed
            yield Problem((name, "algo"), f"--{name}={format_value(refused)} is not possible with --algo=reppo.")
    if plan.num_ranks > 1:
        yield Problem(("algo",), "--algo=reppo trains with one learner: start it without torchrun.")
    if plan.num_policies > 1:
        yield Problem(("algo", "num_policies"), "--algo=reppo trains one policy.", ("--num_policies=1",))


def find_spec_problems(config: TrainConfig, plan: ResourcePlan, spec: EnvSpec) -> Iterator[Problem]:
    """Which spaces REPPO does not know."""
    is_plain = all(isinstance(kind.action, BoxAction) for kind in spec.kinds) and not spec.agents
    if config.algorithm is REPPO and not is_plain:
        text = f"--algo=reppo needs one agent and one Box of actions; {spec.env_id} has others."
        yield Problem(("algo", "env"), text, ("--algo=sac", "--algo=ppo"))
