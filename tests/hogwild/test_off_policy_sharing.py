"""What SAC's workers share: networks, optimizers, the entropy coefficient, and targets that whoever updates moves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from layouts import vector_observation
from transitions import one_step
from unavoidable import needs_cuda

from asyncrl.algorithms.off_policy import Transitions
from asyncrl.buffers.arena import Arena
from asyncrl.buffers.shared_tensors import SharedTensor, shared_tensor_specs
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import DiscreteAction, EnvSpec
from asyncrl.learner.optimizer import ParameterStore
from asyncrl.learner.sac import SacLearner
from asyncrl.models.sac import SacActor
from asyncrl.models.sizes import shared_sizes
from asyncrl.modes.hogwild.storage import Copies, InitialStorage, SharedStorage

# The update of discrete actions draws nothing, so that who makes it does not matter.
SPEC = EnvSpec("Choice", vector_observation(3), DiscreteAction(4, 0), None)
NAMES = ("actor", "critic", "target_critic", "log_ent_coef")
CPU = torch.device("cpu")
NUM_UPDATES = 9


def batches() -> list[Transitions]:
    generator = torch.Generator().manual_seed(5)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    def choice() -> torch.Tensor:
        return torch.randint(4, (12,), generator=generator)

    discount = torch.full((12,), 0.9)
    return [one_step(randn(12, 3), choice(), randn(12), randn(12, 3), discount) for _ in range(NUM_UPDATES)]


def learner(config: TrainConfig, storage: ParameterStore, device: torch.device = CPU) -> SacLearner:
    return SacLearner(SacActor(SPEC, config), config, SPEC, device, storage)


def values_of_one_learner(config: TrainConfig) -> dict[str, torch.Tensor]:
    """What a learner in memory of its own makes of the batches."""
    held: dict[str, torch.Tensor] = {}

    class Noting(ParameterStore):
        def allocate(self, name: str, initial: torch.Tensor) -> torch.Tensor:
            held[name] = initial
            return initial

    alone = learner(config, Noting())
    for batch in batches():
        alone.train([batch])
    return held


def values_of_workers(config: TrainConfig, copies: Copies, device: torch.device = CPU) -> dict[str, torch.Tensor]:
    """What three learners make of the batches together, one batch each in turn."""
    sizes = shared_sizes(SPEC, config)
    arena = Arena.create(shared_tensor_specs(sizes.tensors, sizes.moments, num_workers=3))
    learner(config, InitialStorage(arena))
    workers = [learner(config, SharedStorage(arena, owner, copies), device) for owner in (1, 2, 3)]
    for number, batch in enumerate(batches()):
        workers[number % 3].train([batch])
    found = {name: torch.from_numpy(SharedTensor(arena, name).value.copy()) for name in NAMES}
    arena.close()
    return found


def config_of(**settings: Any) -> TrainConfig:
    return TrainConfig(algo="sac", encoder_mlp_layers=[16], normalize_input=False, learning_rate=0.01, **settings)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("copies", [Copies.NONE, Copies.FOLLOWING])
def test_workers_that_take_turns_do_what_one_learner_does(copies: Copies, precision: str) -> None:
    config = config_of(precision=precision, tau=0.3)
    found = values_of_workers(config, copies)
    torch.testing.assert_close(found, values_of_one_learner(config), rtol=1e-6, atol=1e-6)


def test_statistics_of_observations_are_those_of_all_workers() -> None:
    config = config_of().model_copy(update={"normalize_input": True})
    sizes = shared_sizes(SPEC, config)
    arena = Arena.create(shared_tensor_specs(sizes.tensors, sizes.moments, num_workers=2))
    learner(config, InitialStorage(arena))
    first, second = (learner(config, SharedStorage(arena, owner)) for owner in (1, 2))
    seen = [batch.obs for batch in batches()[:2]]
    for each, obs in zip((first, second), seen, strict=True):
        each.observe(obs)
    everything = torch.cat(seen)
    torch.testing.assert_close(second.model.statistics[: everything.shape[1]], everything.mean(0), rtol=1e-4, atol=1e-5)
    arena.close()


@pytest.mark.gpu
@needs_cuda
def test_workers_on_a_gpu_step_the_parameters_that_lie_on_the_cpu() -> None:
    config = config_of(precision="float32", tau=0.3)
    found = values_of_workers(config, Copies.FOLLOWING, torch.device("cuda"))
    torch.testing.assert_close(found, values_of_one_learner(config), rtol=1e-3, atol=1e-3)
