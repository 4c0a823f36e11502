"""The learner takes as many threads as make its updates fastest, and looks again when the machine may have changed."""

from __future__ import annotations

from asyncrl.learner.threads import RETRY_S, ThreadChoice


class Machine:
    """A clock on which an update takes as long as its number of threads says."""

    def __init__(self, seconds: dict[int, float], most: int) -> None:
        self.now, self.seconds, self.used = 0.0, seconds, 0
        self.choice = ThreadChoice(most, clock=lambda: self.now, use=self.use)

    def use(self, count: int) -> None:
        self.used = count

    def update(self, count: int = 1) -> int:
        with self.choice.updating(count):
            self.now += count * self.seconds[self.used]
        return self.used

    def run_for(self, seconds: float) -> list[int]:
        until, used = self.now + seconds, []
        while self.now < until:
            used.append(self.update())
        return used


def test_the_fastest_number_of_threads_is_taken_after_a_trial_of_each() -> None:
    machine = Machine({1: 0.04, 2: 0.02, 4: 0.011, 6: 0.015}, most=6)
    assert [machine.update() for _ in range(20)] == [1] * 4 + [2] * 4 + [4] * 4 + [6] * 4 + [4] * 4


def test_another_number_is_taken_once_the_machine_is_shared_and_back_again() -> None:
    machine = Machine({1: 0.04, 2: 0.02}, most=2)
    machine.run_for(1.0)
    assert machine.update() == 2
    machine.seconds = {1: 0.05, 2: 0.5}
    assert machine.run_for(2 * RETRY_S)[-1] == 1
    machine.seconds = {1: 0.04, 2: 0.02}
    used = machine.run_for(3 * RETRY_S)
    assert used[-1] == 2
    assert 2 in used[: round(1.1 * RETRY_S / 0.04)]


def test_one_update_shows_that_a_number_is_far_too_slow() -> None:
    machine = Machine({1: 0.04, 2: 1.0}, most=2)
    assert [machine.update() for _ in range(7)] == [1] * 4 + [2] + [1] * 2
    used = machine.run_for(4 * RETRY_S)
    assert used.count(2) <= 4, "one for each trial"


def test_a_trial_is_announced_before_its_update() -> None:
    machine = Machine({1: 0.04, 2: 0.02}, most=2)
    announced = []
    for _ in range(9):
        announced.append(machine.choice.is_trying)
        machine.update()
    assert announced == [True] * 8 + [False]


def test_a_small_difference_is_no_reason_to_change() -> None:
    machine = Machine({1: 0.0195, 2: 0.02}, most=2)
    machine.run_for(1.0)
    assert machine.update() == 2


def test_with_one_core_there_is_nothing_to_try() -> None:
    machine = Machine({1: 0.04}, most=1)
    assert set(machine.run_for(2 * RETRY_S)) == {1}
