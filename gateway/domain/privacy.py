"""What a request says about privacy. It is kept with everything that is made of the request: a file and the batches
that read it, their lines and what these write, a kept response and what goes on from it, the members of an `ask_all`,
every attempt, and the trace."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Privacy:
    """The marks of one request. `local_only`: nothing of it leaves the LAN, now or later."""

    local_only: bool = False

    def __or__(self, other: Privacy) -> Privacy:
        """Each mark that one of both has."""
        return Privacy(*(getattr(self, one.name) or getattr(other, one.name) for one in fields(Privacy)))

    def headers(self) -> dict[bytes, bytes]:
        """The headers of a request that says the same."""
        return {b"x-gateway-local-only": b"1"} if self.local_only else {}


NO_MARKS = Privacy()
