"""Ways to run an update: what they make of it, and what happens where one of them is not possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from asyncrl.learner.transitions import Transitions
from asyncrl.learner.update_runner import Compile, UpdateFigures, UpdateRunner

CPU = torch.device("cpu")
BATCH = Transitions(*(torch.ones(2) for _ in range(5)))


class CountingUpdate:
    """Adds the noise to a tensor, and counts how often it did."""

    def __init__(self) -> None:
        self.total = torch.zeros(2)
        self.count = 0

    def __call__(self, batch: Transitions, noise: Tensor, trains_actor: bool) -> UpdateFigures:
        self.count += 1
        self.total += noise
        return UpdateFigures(self.total.clone(), self.total.sum() if trains_actor else None)


def fail_to_compile(error: Exception) -> Callable[..., Any]:
    """A `torch.compile` that fails as the real one does: when what it returned is called."""

    def compile(update: Any, **options: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            raise error

        return run

    return compile


@pytest.mark.parametrize(
    ("way", "error", "reason"),
    [
        ("inductor", RuntimeError("no C++\n  compiler\n\nSet A=1 for more"), "no C++ compiler"),
        ("inductor", NotImplementedError(), "NotImplementedError"),
        ("cuda_graph", None, ""),  # on a CPU
    ],
)
def test_a_way_that_fails_gives_way_to_the_plain_one_and_says_so_once(
    way: Compile, error: Exception | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if error is not None:
        monkeypatch.setattr(torch, "compile", fail_to_compile(error))
    update = CountingUpdate()
    runner = UpdateRunner(update, way, CPU)
    for number in range(1, 6):
        figures = runner(BATCH, torch.ones(2), number % 2 == 0)
        assert figures.critic.tolist() == [number, number]
        assert (figures.actor is not None) == (number % 2 == 0)
    assert update.count == 5, "each update is made once"
    notice = runner.take_notice()
    assert notice is not None
    assert f"--compile={way}" in notice and reason in notice and "\n" not in notice and "Set A" not in notice
    assert runner.take_notice() is None


def test_what_the_plain_update_raises_is_no_matter_of_compiling() -> None:
    def fail(batch: Transitions, noise: Tensor, trains_actor: bool) -> UpdateFigures:
        raise FloatingPointError("not finite")

    for way in ("off", "auto", "cuda_graph"):
        with pytest.raises(FloatingPointError, match="not finite"):
            UpdateRunner(fail, way, CPU)(BATCH, torch.ones(2), True)


def test_nothing_is_compiled_on_a_cpu_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", fail_to_compile(RuntimeError("was compiled")))
    for way in ("auto", "off"):
        runner = UpdateRunner(CountingUpdate(), way, CPU)
        runner(BATCH, torch.ones(2), True)
        runner(BATCH, torch.ones(2), True)
        assert runner.take_notice() is None
