"""The record of REPPO, and which runs it cannot train."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.config.algorithms import Algorithm
from asyncrl.config.errors import Problem
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig

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
        "encoder_mlp_layers": [256, 256],
        "nonlinearity": "elu",
        "squash_actions": True,
        "adaptive_stddev": True,
        "actor_critic_share_weights": True,
    },
    make_learner="asyncrl.contrib.reppo.learner:ReppoLearner",
    actions="continuous",
)


_NEEDED = {
    "use_rnn": False,
    "with_vtrace": False,
    "recompute_advantages": False,
    "squash_actions": True,
    "adaptive_stddev": True,
    "actor_critic_share_weights": True,  # the critic reads actions, so it is another network, which is not published
}


def find_problems(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    """What REPPO does not do."""
    if config.algorithm is not REPPO:
        return
    for name, value in _NEEDED.items():
        if getattr(config, name) != value:
            yield Problem((name, "algo"), f"--algo=reppo needs --{name}={value}.", (f"--{name}={value}",))
    if plan.num_ranks > 1:
        yield Problem(("algo",), "--algo=reppo trains with one learner: start it without torchrun.")
    if plan.num_policies > 1:
        yield Problem(("algo", "num_policies"), "--algo=reppo trains one policy.", ("--num_policies=1",))
