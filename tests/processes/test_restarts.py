"""How often and how soon processes are started again, and which of them hang."""

from __future__ import annotations

from asyncrl.processes.restarts import HangDetector, RestartBudget


def test_a_process_that_keeps_dying_is_restarted_later_each_time() -> None:
    budget = RestartBudget(most=100, window_s=600.0)
    assert [budget.take("a", now=0.0) for _ in range(9)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert budget.take("b", now=0.0) == 0.1


def test_restarts_of_all_count_together_until_they_are_long_ago() -> None:
    budget = RestartBudget(most=3, window_s=600.0)
    assert None not in [budget.take(name, now) for name, now in (("a", 0.0), ("b", 500.0), ("a", 600.0))]
    assert budget.num_taken == 3
    assert budget.take("c", now=600.0) is None
    assert budget.take("c", now=600.1) == 0.1
    assert budget.take("c", now=600.2) is None
    assert RestartBudget(most=0, window_s=600.0).take("a", now=0.0) is None


def detector_of(number: int, timeout_s: float = 10.0, start_timeout_s: float = 100.0, names: str = "a") -> HangDetector:
    """One that was told of processes whose number was that when they were started."""
    detector = HangDetector(timeout_s, start_timeout_s)
    for name in names:
        detector.record_start(name, number)
    return detector


def looks(
    detector: HangDetector, progress: dict[str, int], start: float, stop: float, begun: str = "ab"
) -> list[dict[str, float]]:
    """What is found by looking once a second."""
    return [detector.find_hung(progress, begun, float(second)) for second in range(int(start), int(stop))]


def test_a_process_without_progress_for_longer_than_allowed_hangs() -> None:
    detector = detector_of(0, names="ab")
    for second in range(5):
        assert detector.find_hung({"a": second, "b": second}, "ab", float(second)) == {}
    assert looks(detector, {"a": 4, "b": 9}, 5, 15) == [{}] * 10
    assert detector.find_hung({"a": 4, "b": 10}, "ab", 15.0) == {"a": 10.0}


def test_a_process_that_starts_has_longer_for_each_of_its_environments() -> None:
    detector = detector_of(7)
    assert looks(detector, {"a": 7}, 0, 100, begun="") == [{}] * 100
    assert looks(detector, {"a": 8}, 100, 201, begun="") == [{}] * 101, "one was made"
    assert detector.find_hung({"a": 8}, "", 201.0) == {"a": 100.0}


def test_a_restarted_process_has_the_time_to_start_again() -> None:
    detector = detector_of(0)
    assert looks(detector, {"a": 2}, 0, 9) == [{}] * 9
    assert detector.find_hung({}, "", 9.0) == {}
    detector.record_start("a", 3)  # it had made one more step before it died
    assert looks(detector, {"a": 3}, 10, 60, begun="") == [{}] * 50


def test_time_in_which_nobody_looked_does_not_count() -> None:
    detector = detector_of(1)
    detector.find_hung({"a": 1}, "a", 0.0)
    detector.find_hung({"a": 2}, "a", 1.0)
    assert detector.find_hung({"a": 2}, "a", 10_000.0) == {}
    assert looks(detector, {"a": 2}, 10_001, 10_010) == [{}] * 9
    assert detector.find_hung({"a": 2}, "a", 10_010.5) == {"a": 10.0}
