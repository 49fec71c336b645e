"""What takes an answer from its connection without waiting for it."""

from __future__ import annotations

from typing import Protocol

from .h1_response import H1Response


class Taker(Protocol):
    """Takes an answer in the callbacks of its connection, instead of a reader that waits for it."""

    def answered(self, body: bytes) -> None:
        """The answer is this body, plain, with status 200 and a head as the answer before. The connection is free."""
        ...

    def goes_on(self, data: bytes) -> bool:
        """A stream goes on with this, the content of one chunk. False = nothing was done: it is to be `streamed`."""
        ...

    def streamed(self, data: bytes, *, last: bool) -> bool:
        """The answer is a stream, with status 200 and a head as one before, and this has come of it; empty with the
        head alone. `last`: with its end, and the connection is free. False = nothing was done: `expect` it."""
        ...

    def expect(self, response: H1Response) -> None:
        """The answer, or what has come of it, will be in this response."""
        ...

    def arrived(self) -> None:
        """More of it is there, or its end, or a failure."""
        ...
