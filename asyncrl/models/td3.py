"""TD3's policy: one continuous action for each observation."""

from __future__ import annotations

from torch import Tensor

from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.models.distributions import ActionDistribution, Deterministic
from asyncrl.models.sac import SacActor


class DeterministicActor(SacActor):
    """A network as SAC's actor has; its outputs are actions before tanh. Noise is added where rollout workers act.

    The noise (`asyncrl.models.exploration`) is not part of the policy: evaluations and exported files are without it.
    """

    def __init__(self, spec: EnvSpec, config: TrainConfig) -> None:
        super().__init__(spec, config)
        self.has_passes = type(self) is DeterministicActor and self.encoder is None

    def make_distribution(self, spec: EnvSpec) -> ActionDistribution:
        """A certain action; raises `UsageError` for actions with choices."""
        if spec.action.num_logits > 0:
            raise UsageError(f"--algo=td3 needs continuous actions, and {spec.env_id} has {spec.action}.")
        return Deterministic(spec.action.num_stddevs)

    def parameters_of(self, outputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Actions before tanh `[B, A]`, the network's outputs."""
        return outputs
