"""Which request is open can be told from the words alone."""

from __future__ import annotations

import pytest
from small_runs import planned, small_arena

from asyncrl.buffers.messages import RequestTable


def test_a_request_is_open_from_question_to_answer() -> None:
    arena, _ = small_arena(planned(num_workers=2, num_envs_per_worker=2, batch_size=8))
    client, server = RequestTable(arena), RequestTable(arena)
    assert server.open_request(0) is None
    client.ask(0, slot=2, row=1)
    assert server.open_request(0) == (2, 1)
    assert not client.is_open(1)
    with pytest.raises(RuntimeError, match="split 0 asked again"):
        client.ask(0, slot=3, row=0)
    assert RequestTable(arena).open_request(0) == (2, 1)
    server.answer(0)
    assert not client.is_open(0)
    assert server.open_request(0) is None
    client.ask(0, slot=3, row=0)
    assert server.open_request(0) == (3, 0)
