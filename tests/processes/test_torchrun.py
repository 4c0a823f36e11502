from __future__ import annotations

import pytest

from asyncrl.processes.torchrun import RankAddress, take_rank

OF_TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "ROLE_RANK": "3",
    "ROLE_NAME": "default",
    "MASTER_ADDR": "first.cluster",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "nightly",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def test_what_torchrun_says_is_read_and_removed() -> None:
    environment = {**OF_TORCHRUN, "PATH": "/bin", "GLOO_SOCKET_IFNAME": "eth1"}
    address = take_rank(environment)
    assert address == RankAddress(3, 4, 1, 2, "first.cluster", 29500, has_store=False, meeting="asyncrl/nightly")
    assert environment == {"PATH": "/bin", "GLOO_SOCKET_IFNAME": "eth1"}


@pytest.mark.parametrize(
    "changes", [{"WORLD_SIZE": "1", "RANK": "0"}, {"MASTER_ADDR": None}, dict.fromkeys(OF_TORCHRUN)]
)
def test_a_process_without_others_is_no_rank(changes: dict[str, str | None]) -> None:
    environment = {name: value for name, value in (OF_TORCHRUN | changes).items() if value is not None}
    assert take_rank(environment) is None


def test_rank_zero_opens_the_store_where_no_agent_does() -> None:
    environment = {name: value for name, value in OF_TORCHRUN.items() if not name.startswith("TORCHELASTIC")}
    address = take_rank(environment)
    assert address is not None
    assert address.has_store
    assert address.meeting == "asyncrl/"
