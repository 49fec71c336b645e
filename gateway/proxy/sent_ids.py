"""The request ids that backends are sent. A client may choose its request's id, and engines take ids for unique: a
vLLM refuses the second of two requests with one id, and older ones stop or hang, also where the connection of the first
was cut and the engine is not done with it (vllm-project/vllm#27987)."""

from __future__ import annotations

import random
from math import inf

AFTER_CUT = 30.0  # seconds that an id stays taken where no whole answer came: a step of a long prompt may take so long
FEW = 1000  # ids that are never looked through for those that are free again


class SentIds:
    """The ids that clients chose and backends may still know. Time is passed in, in seconds. `among_others`: other
    gateways send their clients' ids to the same backends, so each of them adds a mark of its own."""

    def __init__(self, *, among_others: bool = False) -> None:
        self._mark = f"-{random.getrandbits(32):08x}" if among_others else ""
        self._until: dict[str, float] = {}  # id -> when it is free again; inf = its attempt runs
        self._most = FEW

    def __len__(self) -> int:
        return len(self._until)

    def take(self, wanted: str, now: float) -> str:
        """The id to send, until `release`: the wanted one, or a longer one where that is taken."""
        if len(self._until) >= self._most:
            self._until = {name: until for name, until in self._until.items() if until > now}
            self._most = max(FEW, 2 * len(self._until))
        sent = wanted + self._mark
        while self._until.get(sent, 0.0) > now:
            sent = f"{wanted}-{random.getrandbits(32):08x}"
        self._until[sent] = inf
        return sent

    def release(self, sent: str, now: float, *, ended: bool) -> None:
        """Its attempt is over. `ended`: with the backend's whole answer."""
        if ended:
            del self._until[sent]
        else:
            self._until[sent] = now + AFTER_CUT
