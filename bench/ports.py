"""Ports for servers that are started as processes of their own."""

from __future__ import annotations

import itertools
import random
import socket
from collections.abc import Iterator

# Systems give ports above these to connections of clients and to listeners on port 0: one of those may be taken again
# before the server that it was looked up for listens there.
_FIRST, _COUNT = 15_000, 15_000


def _ports() -> Iterator[int]:
    begin = random.SystemRandom().randrange(_COUNT)  # processes side by side begin at different ones
    return (_FIRST + (begin + number) % _COUNT for number in itertools.count())


_next = _ports()


def free_ports(count: int) -> int:
    """The first of `count` local TCP ports in a row that nobody uses now, and that this process has not got before."""
    for _ in range(_COUNT):
        ports = [next(_next) for _ in range(count)]
        if ports[-1] - ports[0] == count - 1 and all(map(_is_free, ports)):
            return ports[0]
    raise OSError("no free ports in a row")


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
