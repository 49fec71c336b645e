"""What a simulated backend remembers of a request."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Record:
    """One request as it arrived, and what became of it."""

    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes = b""
    status: int | None = None
    aborted: bool = False  # the client left before the answer was whole
    done: bool = False
    faults: tuple[str, ...] = ()
    at: float = field(default_factory=time.time)

    @property
    def json(self) -> Any:
        """The decoded body; None when it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None
