"""Ports for servers of tests and of the bench: nobody else gets one before its server listens."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from bench.ports import free_ports

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_no_port_comes_twice_and_rows_do_not_overlap() -> None:
    rows = [range(first, first + 3) for first in (free_ports(3) for _ in range(50))]
    assert len({port for row in rows for port in row}) == 150


def test_a_port_with_a_listener_is_left_out() -> None:
    before = free_ports(1)
    with ExitStack() as stack:
        for port in range(before + 1, before + 4):
            with suppress(OSError):  # somebody else listens there
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
        first = free_ports(2)
        assert not {first, first + 1} & set(range(before + 1, before + 4))


@pytest.mark.skipif(not RANGE.exists(), reason="only Linux tells which ports it gives to connections")
def test_no_connection_of_a_client_gets_such_a_port() -> None:
    lowest = int(RANGE.read_text().split()[0])
    assert all(free_ports(1) < lowest for _ in range(50))
