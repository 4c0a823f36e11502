"""What only a CUDA device can show: memory of the device, graphs that are captured for real, and whole runs on it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import Any

import arena_targets
import numpy as np
import pytest
import torch
from command import Command
from datasets import BOX, CHOICE, Actor, train_on
from small_runs import planned, small_arena
from unavoidable import needs_cuda

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.messages import Waker
from asyncrl.buffers.pinning import pin_arena, to_device
from asyncrl.buffers.weights import WeightsChannel, weights_specs
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.inference.device_acting import DeviceActor
from asyncrl.learner.dataset import Batcher, Dataset, DeviceSlots
from asyncrl.learner.fast.graphed_step import GraphedStep
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.learner.slot_ledger import Columns
from asyncrl.learner.update_runner import UpdateRunner
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.factory import make_acting_model

pytestmark = [
    pytest.mark.gpu,
    needs_cuda,
    pytest.mark.timeout(300),
]

CUDA = torch.device("cuda")
SPECS = pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "choice"])


def test_slots_are_page_locked_and_reach_the_device_as_they_are() -> None:
    plan = planned(batch_size=12, num_workers=3, num_envs_per_worker=3)
    arena, slots = small_arena(plan)
    assert pin_arena(arena, Owner())
    on_device = DeviceSlots(slots, CUDA, arena)
    random = np.random.default_rng(0)
    names = [field.name for field in dataclasses.fields(Dataset)]
    batchers = [Batcher(slots, columns_per_dataset=4, copies=copies) for copies in (on_device, None)]
    for start in (0, 1):
        for name in names:
            array = getattr(slots, name)
            array[:] = random.integers(0, 2 if array.dtype == np.bool_ else 1000, size=array.shape)
        columns = [Columns(2 - start, 0, 3, True), Columns(4, start, start + 1, False)]
        for part in columns:
            on_device.start_copy(part.slot)
            on_device.wait_for_copy(part.slot)
        copied, expected = (batcher.collect(columns) for batcher in batchers)
        for name in names:
            assert getattr(copied, name).is_cuda
            assert torch.equal(getattr(copied, name).cpu(), getattr(expected, name)), name
        kept = copied.obs.clone()
        slots.obs[:] = -1.0
        assert torch.equal(copied.obs, kept)


class Owner:
    """Something that memory is locked for."""


def test_what_is_moved_arrives_whole_though_it_is_overwritten_at_once() -> None:
    for number in range(50):
        given = torch.full((1 << 16,), float(number))
        (moved,) = to_device([given], CUDA)
        given.fill_(-1.0)
        assert float(moved.sum()) == number * (1 << 16)


@SPECS
@pytest.mark.parametrize("settings", [{}, {"use_rnn": True}, {"algo": "sac"}], ids=["ppo", "recurrent", "sac"])
def test_graphs_of_inference_answer_as_the_model_with_weights_that_change(
    spec: EnvSpec, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # 16 rows may take another kernel than 12
    model = make_acting_model(spec, TrainConfig(encoder_mlp_layers=[32], **settings)).to(CUDA).eval()
    actor = DeviceActor(model, CUDA, seed=3)
    random = np.random.default_rng(0)
    actions = []
    for number in range(24):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01)
        state = np.zeros((4, getattr(model, "rnn_state_size", 0)), np.float32)
        parts = [(random.normal(size=(4, 3)).astype(np.float32), state) for _ in range(1 + number % 3)]
        gathered = actor.gather(parts)
        answer: Any = actor.act(*gathered)
        expected: Any = model.act(torch.from_numpy(gathered[0]).to(CUDA))
        rest = [name for name in expected._fields if name not in ("action", "log_prob")]
        for name in rest:
            np.testing.assert_allclose(getattr(answer, name), getattr(expected, name).cpu(), rtol=1e-3, atol=1e-4)
        log_prob = model.distribution.log_prob(
            torch.from_numpy(answer.action_parameters), torch.from_numpy(answer.action)
        )
        np.testing.assert_allclose(answer.log_prob, log_prob, rtol=1e-3, atol=1e-3)
        actions.append(answer.action[:4].copy())
    assert actor.pop_warning() is None
    assert len({action.tobytes() for action in actions}) > len(actions) // 2, "each batch draws again"


@SPECS
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize(
    "memory", [{}, {"use_rnn": True}, {"use_rnn": True, "rnn_type": "lstm"}], ids=["", "gru", "lstm"]
)
def test_updates_as_graphs_equal_plain_ones(spec: EnvSpec, precision: Any, memory: dict[str, Any]) -> None:
    settings: dict[str, Any] = {
        **memory,
        "rollout": 8,
        "batch_size": 64,
        "num_batches_per_epoch": 3,
        "encoder_mlp_layers": [16],
        "lr_schedule": "linear_decay",
        "kl_loss_coeff": 0.1,
        "precision": precision,
    }
    plain, graphed = (
        OnPolicyLearner(ActorCritic(spec, config), config, CUDA)
        for config in (TrainConfig(compile="off", **settings), TrainConfig(compile="cuda_graph", **settings))
    )
    actor = Actor(spec, TrainConfig(**settings))
    for number in range(8):
        dataset = actor.collect(actor.receive(plain), shift=float(number))
        graphed.publication()
        found, expected = (dataclasses.astuple(train_on(each, dataset, 100_000 * number)) for each in (graphed, plain))
        assert found == pytest.approx(expected, rel=1e-2, abs=1e-3)
        torch.testing.assert_close(graphed.publication(), plain.publication(), rtol=1e-3, atol=1e-4)
    assert graphed.notice is None
    assert isinstance(graphed._step, GraphedStep) and graphed._step.runner.makes_graphs


def test_inference_whose_graph_fails_goes_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = make_acting_model(CHOICE, TrainConfig(encoder_mlp_layers=[32])).to(CUDA).eval()
    plain = model.act

    def act(*given: Any) -> Any:
        result = plain(*given)
        assert result.log_prob.sum().item() < 0.0  # to look at the device is not possible in a capture
        return result

    monkeypatch.setattr(model, "act", act)
    actor, before = DeviceActor(model, CUDA, seed=3), torch.cuda.current_stream()
    parts = [(np.ones((4, 3), np.float32), np.zeros((4, 0), np.float32))]
    for _ in range(10):
        answer: Any = actor.act(*actor.gather(parts))
        assert np.isfinite(answer.log_prob).all()
    assert "without CUDA graphs" in (actor.pop_warning() or "")
    assert torch.cuda.current_stream() == before


def test_updates_whose_graph_fails_go_on_without_and_leave_no_memory_behind() -> None:
    weights = torch.zeros(4, device=CUDA)

    def update(inputs: Any, trains_actor: bool) -> tuple[torch.Tensor]:
        weights.add_(inputs[0])
        return (torch.tensor(float(weights.sum()), device=CUDA),)

    runner, before = UpdateRunner(update, CUDA), torch.cuda.current_stream()
    for number in range(10):
        (figure,) = runner([torch.ones(4, device=CUDA)])
        assert float(figure) == 4.0 * (number + 1), "each update is made once"
    assert "without --compile=cuda_graph" in (runner.pop_message() or "")
    assert torch.cuda.current_stream() == before
    used = torch.cuda.memory_allocated()
    for _ in range(50):
        to_device([torch.zeros(1 << 20)], CUDA)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == used


def test_another_process_reads_the_weights_on_the_device(context: BaseContext) -> None:
    size = 5_000
    arena, ready, done = Arena.create(weights_specs(size)), Waker(), Waker()
    process = context.Process(target=arena_targets.publish_on_device, args=(arena, ready, done), daemon=True)
    process.start()
    assert ready.wait(120.0)
    channel, out = WeightsChannel(arena), torch.zeros(size, device=CUDA)
    assert channel.open_on_device(CUDA)
    arena.array("weights.buffers")[:] = np.nan  # nobody reads those
    news = channel.read(out, seen=0)
    assert news is not None and (news.version, news.env_steps) == (30, 300)
    assert (out == 30.0).all()
    done.wake()
    process.join(30.0)
    assert process.exitcode == 0


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize(
    "flags",
    [
        ["--env=CartPole-v1", "--train_for_env_steps=60000"],
        ["--env=CartPole-v1", "--train_for_env_steps=60000", "--async_rl=False", "--algo=a2c", "--learner_device=cpu"],
        ["--env=CartPole-v1", "--train_for_env_steps=60000", "--use_rnn=True", "--inference_devices=cuda,cpu"],
        ["--env=Pendulum-v1", "--train_for_env_steps=6000", "--algo=sac", "--save_replay=True"],
        ["--env=CartPole-v1", "--train_for_env_steps=20000", "--algo=a3c"],
        ["--env=space_envs:Masked-v0", "--train_for_env_steps=20000", "--algo=a3c"],
        ["--env=space_envs:SeeAndTell-v0", "--train_for_env_steps=20000", "--inference_mode=central"],
    ],
    ids=["ppo", "a2c on two devices", "recurrent", "sac", "a3c", "a3c with a mask", "images"],
)
def test_whole_runs(start: Callable[..., Command], flags: list[str]) -> None:
    command = start("asyncrl.train", "--device=cuda", "--num_workers=2", *flags)
    code, output, errors = command.finish()
    assert code == 0, errors
    assert not re.search("warning:.*(graph|compile|host)", output + errors)
    logs = "".join(path.read_text() for path in (command.folder / "logs").iterdir())
    assert not re.search("over the host|could not be page-locked|capturing a CUDA graph|--compile=.* failed", logs)
