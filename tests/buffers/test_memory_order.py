"""The protocols hand data over whole on processors that reorder loads and stores, and not without the fences of words.

Each test runs the package's own classes in every execution of the model `weak_memory`. "Without fences" shows that the
model reorders, and that the protocol needs the fences.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from weak_memory import WeakArena, outcomes

from asyncrl.buffers.control import RunControl, WorkerDeaths
from asyncrl.buffers.gradients import GradientPlaces
from asyncrl.buffers.messages import IndexRing, RequestTable
from asyncrl.buffers.shared_tensors import SharedMoments
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.hyperparameters import NUM_HYPERPARAMETERS

RING = {"ring.items": (2,), "ring.head": (1,), "ring.tail": (1,), "data": (3, 1)}
WEIGHTS = {
    "weights.buffers": (2, 2),
    "weights.versions": (2,),
    "weights.env_steps": (2,),
    "weights.count": (1,),
}
REQUESTS = {f"splits.{name}": (1,) for name in ("request_seq", "response_seq", "request_slot", "request_row")}
DEATHS = {f"worker_deaths.{name}": (1,) for name in ("died", "server", "learner", "total")}


def number(value: Any) -> Any:
    return value.tolist()[0]


def test_the_model_reorders_plain_accesses_and_fences_forbid_it() -> None:
    """Message passing, and two processes that each write a word and read the other's."""

    def writer(arena: WeakArena) -> None:
        arena.array("data")[0] = 7
        arena.words("flag")[0] = 1

    def reader(arena: WeakArena) -> tuple[int, int]:
        return arena.words("flag")[0], number(arena.array("data")[0])

    shapes = {"data": (1, 1), "flag": (1,), "x": (1,), "y": (1,)}
    passing = {(None, seen) for seen in [(0, 0), (0, 7), (1, 7)]}
    assert outcomes([writer, reader], shapes) == passing
    assert outcomes([writer, reader], shapes, is_fenced=False) == passing | {(None, (1, 0))}

    def crossing(own: str, other: str) -> Any:
        def role(arena: WeakArena) -> int:
            arena.words(own)[0] = 1
            return arena.words(other)[0]

        return role

    roles = [crossing("x", "y"), crossing("y", "x")]
    assert outcomes(roles, shapes) == {(0, 1), (1, 0), (1, 1)}
    assert (0, 0) in outcomes(roles, shapes, is_fenced=False)


def produce(arena: WeakArena) -> int:
    """Sends up to three items through a ring of two, each after its data."""
    ring, sent = IndexRing(arena, "ring"), 0  # type: ignore[arg-type]
    for item in range(3):
        arena.array("data")[item] = item + 10
        try:
            ring.push(item)
        except OverflowError:
            break
        sent += 1
    return sent


def consume(arena: WeakArena) -> tuple[tuple[int, int], ...]:
    ring = IndexRing(arena, "ring")  # type: ignore[arg-type]
    return tuple((item, number(arena.array("data")[item])) for _ in range(2) for item in ring.pop_all())


def is_whole(outcome: Any) -> bool:
    sent, received = outcome
    return bool(received == tuple((item, item + 10) for item in range(len(received))) and len(received) <= sent)


def test_a_ring_gives_items_in_order_each_with_its_data() -> None:
    found = outcomes([produce, consume], RING)
    assert all(map(is_whole, found))
    assert {len(received) for _, received in found} == {0, 1, 2, 3} and {sent for sent, _ in found} == {2, 3}
    assert not all(map(is_whole, outcomes([produce, consume], RING, is_fenced=False)))


def publish(arena: WeakArena) -> None:
    channel = WeightsChannel(arena)  # type: ignore[arg-type]
    for version in (1, 2, 3):
        channel.publish(np.full(2, version), version, 10 * version)


def read(arena: WeakArena) -> Any:
    out = np.zeros(2)
    publication = WeightsChannel(arena).read(out, 0)  # type: ignore[arg-type]
    return publication and (*map(int, publication), *out.tolist())


def is_one_publication(outcome: Any) -> bool:
    _, seen = outcome
    return seen is None or seen == (seen[0], seen[0], 10 * seen[0], seen[0], seen[0])


def test_a_reader_of_weights_gets_one_publication_whole() -> None:
    found = outcomes([publish, read], WEIGHTS)
    assert all(map(is_one_publication, found))
    assert {seen and seen[0] for _, seen in found} == {None, 1, 2, 3}
    assert not all(map(is_one_publication, outcomes([publish, read], WEIGHTS, is_fenced=False)))


def ask(arena: WeakArena) -> Any:
    """A worker: writes observations, asks, and reads the actions once it is answered."""
    table = RequestTable(arena)  # type: ignore[arg-type]
    arena.array("obs")[0] = 5
    table.ask(0, slot=2, row=3)
    return None if table.is_open(0) else number(arena.array("action")[0])


def serve(arena: WeakArena) -> Any:
    table = RequestTable(arena)  # type: ignore[arg-type]
    request = table.open_request(0)
    if request is None:
        return None
    obs = number(arena.array("obs")[0])
    arena.array("action")[0] = obs + 1
    table.answer(0)
    return request, obs


def is_served(outcome: Any) -> bool:
    action, served = outcome
    return action in (None, 6) and served in (None, ((2, 3), 5)) and not (action == 6 and served is None)


def test_a_server_sees_the_observations_and_the_worker_the_actions() -> None:
    shapes = {**REQUESTS, "obs": (1, 1), "action": (1, 1)}
    found = outcomes([ask, serve], shapes)
    assert all(map(is_served, found)) and (6, ((2, 3), 5)) in found
    assert not all(map(is_served, outcomes([ask, serve], shapes, is_fenced=False)))


def announce(arena: WeakArena) -> None:
    deaths(arena).announce(0)


def close_requests(arena: WeakArena) -> None:
    """An inference worker: its last answer is in the slot before it acknowledges the death."""
    if deaths(arena).pending_for_server([0]):
        arena.array("slot")[0] = 9
        deaths(arena).acknowledge_as_server(0)


def take_over(arena: WeakArena) -> Any:
    """The learner: may use the dead worker's slot when it is told so."""
    return number(arena.array("slot")[0]) if deaths(arena).pending_for_learner() else None


def deaths(arena: WeakArena) -> WorkerDeaths:
    return WorkerDeaths(arena, has_server=True, has_slots=True)  # type: ignore[arg-type]


def test_the_learner_takes_a_dead_workers_slot_after_its_last_answer() -> None:
    roles, shapes = [announce, close_requests, take_over], {**DEATHS, "slot": (1, 1)}
    assert outcomes(roles, shapes) == {(None, None, None), (None, None, 9)}
    assert (None, None, 0) in outcomes(roles, shapes, is_fenced=False)


def hand_over(arena: WeakArena) -> int:
    """A worker: writes gradients into its two places, and again into those that were freed."""
    places, written = GradientPlaces(arena), 0  # type: ignore[arg-type]
    for number_of_gradient in (1, 2, 3):
        place = places.free_place(0)
        if place is None:
            break
        places.write(place, np.full(2, number_of_gradient), number_of_gradient)
        written += 1
    return written


def combine(arena: WeakArena) -> Any:
    places = GradientPlaces(arena)  # type: ignore[arg-type]
    taken = places.take(1)
    if taken is None:
        return None
    found = tuple(places.values[taken[0]].tolist())
    places.free(taken)
    return found


def test_a_gradient_is_taken_whole_and_its_place_is_written_again_only_after_that() -> None:
    shapes = {"gradients.values": (2, 2), "gradients.state": (2,), "gradients.order": (2,)}
    found = outcomes([hand_over, combine], shapes)
    whole = {None, (1, 1), (2, 2)}  # the second, if the first became ready after its place was looked at
    assert {gradient for _, gradient in found} == whole and {written for written, _ in found} == {2, 3}
    assert not {gradient for _, gradient in outcomes([hand_over, combine], shapes, is_fenced=False)} <= whole


def write_moments(arena: WeakArena) -> None:
    moments = SharedMoments(arena, "obs")  # type: ignore[arg-type]
    for count in (1, 2, 3):
        moments.write_entry(0, np.full(3, count))


def read_moments(arena: WeakArena) -> tuple[float, ...]:
    return tuple(SharedMoments(arena, "obs").entry(0).tolist())  # type: ignore[arg-type]


def test_an_entry_of_moments_is_read_whole() -> None:
    shapes = {"moments.obs.values": (1, 2, 3), "moments.obs.written": (1,)}
    found = {entry for _, entry in outcomes([write_moments, read_moments], shapes)}
    assert found == {(count, count, count) for count in range(4)}
    assert found < {entry for _, entry in outcomes([write_moments, read_moments], shapes, is_fenced=False)}


def test_a_count_of_the_control_words_covers_what_was_written_before_it() -> None:
    """So what the runner sends is complete when the learner takes it."""
    shapes = {
        "control": (11,),
        "control.best_return": (1, 1),
        "control.hyperparameters": (1, NUM_HYPERPARAMETERS),
        "control.update": (3,),
        "control.change": (2,),
        "control.training_info_sizes": (2,),
        "control.training_info_bytes": (2, 1),
        "weights": (1, 1),
    }

    def send(arena: WeakArena) -> None:
        control = RunControl(arena, 0)  # type: ignore[arg-type]
        arena.array("weights")[0] = 4
        control.num_changes += 1

    def take(arena: WeakArena) -> Any:
        control = RunControl(arena, 0)  # type: ignore[arg-type]
        return None if control.has_taken_change else number(arena.array("weights")[0])

    assert outcomes([send, take], shapes) == {(None, None), (None, 4)}
    assert (None, 0) in outcomes([send, take], shapes, is_fenced=False)
