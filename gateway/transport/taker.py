"""What takes an answer from its connection without waiting for it."""

from __future__ import annotations

from typing import Protocol

from .h1_response import H1Response


class Taker(Protocol):
    """Takes an answer in the callbacks of its connection, instead of a reader that waits for it."""

    def answered(self, body: bytes) -> None:
        """The answer is this body, plain, with status 200 and a head as the answer before. The connection is free."""
        ...

    def expect(self, response: H1Response) -> None:
        """The answer, or what has come of it, will be in this response."""
        ...

    def arrived(self) -> None:
        """More of it is there, or its end, or a failure."""
        ...
