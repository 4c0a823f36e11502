"""Ways to run an update: what they make of it, and what happens where a graph is not possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from graph_stand_ins import PlainCall
from torch import Tensor

from asyncrl.algorithms.losses import Samples
from asyncrl.config.hyperparameters import Hyperparameters
from asyncrl.config.schema import TrainConfig
from asyncrl.learner import update_runner
from asyncrl.learner.fast.graphed_step import GraphedStep
from asyncrl.learner.update_runner import StepMetrics, UpdateRunner, in_graphs, makes_graphs
from asyncrl.models.cuda_graph import Compile
from asyncrl.processes.children import RunFailed

CPU = torch.device("cpu")
INPUTS = [torch.zeros(3), torch.ones(2)]


class CountingUpdate:
    """Adds its last input to a tensor, and counts how often it did."""

    def __init__(self) -> None:
        self.total = torch.zeros(2)
        self.count = 0

    def __call__(self, inputs: Sequence[Tensor], trains_actor: bool) -> StepMetrics:
        self.count += 1
        self.total += inputs[-1]
        return self.total.clone(), self.total.sum() if trains_actor else None


def fail_to_capture(error: Exception) -> Callable[..., Any]:
    """A `GraphedFunction` that fails as the real one does: when it is called."""

    def make(function: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
        def run() -> Any:
            raise error

        return run

    return make


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("no memory\n  left\n\nSet A=1 for more"), "no memory left"),
        (NotImplementedError(), "NotImplementedError"),
        (None, ""),  # the real one on a CPU
    ],
)
def test_a_graph_that_fails_gives_way_to_plain_updates_and_says_so_once(
    error: Exception | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if error is not None:
        monkeypatch.setattr(update_runner, "GraphedFunction", fail_to_capture(error))
    update = CountingUpdate()
    runner = UpdateRunner(update, CPU)
    for number in range(1, 6):
        critic, actor = runner(INPUTS, number % 2 == 0)
        assert critic is not None and critic.tolist() == [number, number]
        assert (actor is not None) == (number % 2 == 0)
    assert update.count == 5, "each update is made once"
    notice = runner.pop_message()
    assert notice is not None
    assert "--compile=cuda_graph" in notice and reason in notice and "\n" not in notice and "Set A" not in notice
    assert runner.pop_message() is None


def test_ranks_do_not_make_an_update_again_whose_graph_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_runner, "GraphedFunction", fail_to_capture(RuntimeError("no memory left")))
    update = CountingUpdate()
    with pytest.raises(RuntimeError, match="no memory left"):
        UpdateRunner(update, CPU, num_ranks=2)(INPUTS, True)
    assert update.count == 0
    lost = RunFailed("a rank is lost")
    monkeypatch.setattr(update_runner, "GraphedFunction", fail_to_capture(lost))
    with pytest.raises(RunFailed, match="a rank is lost"):
        UpdateRunner(update, CPU)(INPUTS, True)


def test_sequences_of_many_short_episodes_are_not_padded() -> None:
    calls = []

    def take_step(batch: Samples, rate: Tensor, num_pieces: int) -> tuple[Tensor, Tensor]:
        calls.append((len(batch.log_prob), num_pieces))
        return torch.zeros(1), batch.log_prob.flatten()

    rows = torch.zeros(2, 20)
    for is_short, size in ((False, 4), (True, 2)):
        begins = torch.full((2, 20), is_short)
        fields = dict.fromkeys(("action", "action_parameters", "log_prob", "advantage"), rows)
        fields |= {"floats": rows, "normalized_return": rows, "normalized_value": rows}
        batch = Samples(**fields, begins=begins, valid=torch.ones(2, 20, dtype=torch.bool), rnn_state=torch.zeros(2, 3))
        step = GraphedStep(take_step, CPU, num_ranks=1)
        step.start_pass([batch], largest=4)
        calls.clear()
        step(batch, 0.1)
        assert calls == [(size, 0 if is_short else 4)], "a graph has room for four sequences"


def test_larger_minibatches_than_before_are_captured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a policy has them that has played more agents than in the datasets before."""
    monkeypatch.setattr(update_runner, "GraphedFunction", PlainCall)
    sizes = []

    def take_step(batch: Samples, rate: Tensor, num_pieces: int) -> tuple[Tensor, Tensor]:
        assert batch.share is not None
        sizes.append((len(batch.log_prob), int((batch.share > 0).sum())))
        return torch.zeros(1), batch.log_prob

    names = ("floats", "action", "action_parameters", "log_prob", "advantage", "normalized_return", "normalized_value")
    step = GraphedStep(take_step, CPU, num_ranks=1)
    for num_samples in (3, 5, 2, 8, 9):
        batch = Samples(**dict.fromkeys(names, torch.arange(float(num_samples))))
        step.start_pass([batch], largest=num_samples)
        assert step(batch, 0.1)[1].tolist() == list(range(num_samples))
    assert sizes == [(3, 3), (8, 5), (8, 2), (8, 8), (16, 9)]
    assert step.runner.pop_message() is None


def test_what_the_plain_update_raises_is_no_matter_of_compiling() -> None:
    def fail(inputs: Sequence[Tensor], trains_actor: bool) -> StepMetrics:
        raise FloatingPointError("not finite")

    with pytest.raises(FloatingPointError, match="not finite"):
        UpdateRunner(fail, CPU)(INPUTS, True)


def test_nothing_is_captured_on_a_cpu_unless_it_is_asked_for() -> None:
    ways: tuple[Compile, ...] = ("auto", "off", "cuda_graph")
    assert [makes_graphs(way, CPU, 1) for way in ways] == [False, False, True]
    assert [makes_graphs(way, torch.device("cuda"), 1) for way in ways] == [True, False, True]
    assert [makes_graphs(way, torch.device("cuda"), 2) for way in ways] == [False, False, True]


def test_a_graph_reads_the_inputs_of_its_own_kind_of_update_and_refuses_other_shapes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(update_runner, "GraphedFunction", PlainCall)
    seen: list[tuple[int, float]] = []

    def update(inputs: Sequence[Tensor], trains_actor: bool) -> StepMetrics:
        seen.append((inputs[0].data_ptr(), float(inputs[0].sum())))
        return (inputs[0] * 2.0,)

    runner = UpdateRunner(update, CPU)
    assert runner.makes_graphs
    kinds = [(1.0, True), (2.0, False), (3.0, True), (4.0, False)]
    step_metrics = [runner([torch.full((2,), value)], kind)[0] for value, kind in kinds]
    assert [float(metric[0]) for metric in step_metrics if metric is not None] == [2.0, 4.0, 6.0, 8.0]
    assert [total for _, total in seen] == [2.0, 4.0, 6.0, 8.0]
    addresses = [address for address, _ in seen]
    assert addresses[0] == addresses[2] != addresses[1] == addresses[3]
    runner([torch.ones(5)], True)
    notice = runner.pop_message()
    assert notice is not None and "captured with (2,) and is given (5,)" in notice
    assert not runner.makes_graphs


def test_a_graph_contains_all_hyperparameters_but_the_learning_rate() -> None:
    config = TrainConfig()
    for new, is_in in ((Hyperparameters(learning_rate=0.1), False), (Hyperparameters(ppo_clip_ratio=0.3), True)):
        assert in_graphs(config, new.apply_to(config)) is is_in
    assert in_graphs(config, Hyperparameters(learning_rate=0.1, max_grad_norm=0.1).apply_to(config))
