"""How the requests of several clients share `server.memory`."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import pytest

from gateway.admission.memory import SMALL, TINY, Memory, Share
from gateway.errors import GatewayError
from tests.gateway_process import MIB


class Someone(NamedTuple):
    sender: str


def taken(memory: Memory, client: str, size: int) -> list[Share]:
    """What this client has when no more requests of that size are accepted."""
    shares = [Share(memory, Someone(client))]
    with suppress(GatewayError):
        while True:
            shares[-1].add(size)
            shares.append(shares[-1].sibling())
    return shares


@pytest.mark.parametrize("size", [TINY + 1, SMALL, MIB, 100 * MIB])
def test_one_client_leaves_room_for_the_others(size: int) -> None:
    memory = Memory(1024 * MIB)
    first = taken(memory, "a", size)
    assert 650 * MIB < memory.used <= 752 * MIB
    with pytest.raises(GatewayError):
        Share(memory, Someone("a")).add(TINY + 1 + size)
    second = taken(memory, "b", size)
    assert sum(share.size for share in second) > 150 * MIB
    del first[:]
    assert memory.held == {"b": memory.used}
    del second[:]
    assert (memory.used, memory.held) == (0, {})


def test_one_request_may_need_most_of_the_memory() -> None:
    memory = Memory(1024 * MIB)
    share = Share(memory, Someone("a"))
    for _ in range(1000):
        share.add(MIB)
    share.release(400 * MIB)
    assert memory.held == {"a": 600 * MIB}
    share.close()
    assert (memory.used, memory.held) == (0, {})
