"""Where a command looks for the running gateway."""

from __future__ import annotations

import pytest

from gateway.cli.running import address
from gateway.config.snapshot import Server


@pytest.mark.parametrize(
    ("server", "url"),
    [
        (Server(host="0.0.0.0", port=4000), "http://127.0.0.1:4000"),
        (Server(host="::", port=1), "http://[::1]:1"),
        (Server(host="192.168.1.5", port=2), "http://192.168.1.5:2"),
    ],
)
def test_where_the_gateway_is_looked_for(server: Server, url: str) -> None:
    assert address(server) == url
