"""The record of one request: what is counted, logged and traced of it. The request path writes it, stage by stage;
`settle` and the observers read it when the request has ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.accounting.accounts import Reservation
from gateway.accounting.limits import Charge
from gateway.config.snapshot import Client
from gateway.domain.backend import BackendState
from gateway.domain.request import Endpoint, InferenceRequest
from gateway.domain.usage import NO_TOKENS, Tokens
from gateway.inspection.stream_track import StreamTrack
from gateway.inspection.whole import WholeAnswer
from gateway.metrics.registry import OPEN
from gateway.routing.refusal import Tried


@dataclass(slots=True, eq=False)
class AttemptRecord:
    """One attempt on one backend. `number` counts from 1 within its request. `detour`: why a later step was asked,
    ("fallback" | "routed", reason). The defaults are those of an attempt that has not begun."""

    state: BackendState
    request: InferenceRequest
    number: int
    detour: tuple[str, str] | None
    adapted: Sequence[str] = ()  # what was changed to ask this backend
    unsent: bool = False  # not a byte of it went to the backend
    answered: bool = False  # the client has the answer, or its end is being sent
    first_token: float = 0.0  # when the first content was sent to the client, in the loop's seconds; 0 = none
    usage: dict[str, Any] | None = None  # reported with the answer that the client got
    tokens: Tokens = NO_TOKENS  # of the usage that was counted
    audio_seconds: float = 0.0  # of speech that was read or spoken, as far as it is known
    unused: dict[str, Any] | None = None  # of an answer that was not used, or went on elsewhere
    answer: WholeAnswer | StreamTrack | None = None  # the one that the client got


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request. Every field has a neutral value from the beginning, which stays if the request is refused before
    that stage. Observers must read the record at once: the bytes of the request are released afterwards."""

    id: str
    endpoint: Endpoint  # of the client's path; `request.endpoint` is the one after translation
    began: float  # in the loop's seconds
    client_label: str = OPEN  # for metrics: the client's name, where routes.yaml has `clients`
    client: Client | None = None
    request: InferenceRequest | None = None  # None = the body could not be read
    alias: str = ""  # "" = none was found
    charge: Charge | None = None  # tokens that were counted against the client's tpm
    reserved: list[Reservation] = field(default_factory=list)  # the probable cost of its attempts
    attempts: list[AttemptRecord] = field(default_factory=list)
    trying: AttemptRecord | None = None  # the latest attempt, unless it has failed before content
    tried: list[Tried] = field(default_factory=list)  # the backends that did not answer, and why
    queued: float | None = None  # seconds that it has waited for slots; None = it did not get that far
    resumed: str = ""  # the backend that went on with the stream after it had broken at another one
    joined: str = ""  # the id of the request whose answer it got, because it repeats it
    committed: bool = False  # the status of a stream was sent
    outcome: str = "200"  # the HTTP status of an answer, an error code, "joined", "client_gone" or "client_stalled"
    seconds: float = 0.0  # from its beginning to its end

    def release_bytes(self) -> None:
        """Release the request's bytes now. Its parts form cycles, which would wait for a garbage collection."""
        self.attempts.clear()
        self.trying = None
        if self.request is not None:
            self.request.fields.clear()

    def served_by(self) -> AttemptRecord | None:
        """The attempt whose answer, or beginning of an answer, the client got."""
        attempts = self.attempts
        for attempt in attempts:
            if attempt.answered:
                return attempt
        return attempts[-1] if any(attempt.first_token for attempt in attempts) else None
