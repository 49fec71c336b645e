"""What one request may expect of its answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import msgspec

from gateway.domain.request import InferenceRequest
from gateway.inspection.echo import asked_about
from gateway.inspection.formats import Format
from gateway.inspection.offered_tools import OfferedTools
from gateway.inspection.reasoning import THINK, Thoughts

ReasoningField = Literal["as_is", "both", "reasoning", "reasoning_content", "none"]
CLOSER = THINK.closer
CACHED_MOST = 256 * 1024  # bytes of `tools` that are kept for the next request: agents send the same ones every time


@dataclass(frozen=True, slots=True)
class InspectionPolicy:
    """What one answer is checked for, and how it is mended.

    `tools` None = none may be called. `formats`: how calls may stand in the text. `thoughts`: how thoughts may.

    `call`: "required" | "named" = the answer must call a tool (`name`, for a named one). `hold`: nobody enforces that,
    so nothing is sent before the first call. `reasoning_field`: under which name thoughts go to the client."""

    tools: OfferedTools | None = None
    formats: Sequence[Format] = ()
    thoughts: Thoughts | None = None
    call: Literal["auto", "required", "named"] = "auto"
    name: str = ""
    hold: bool = False
    reasoning_field: ReasoningField = "as_is"

    @property
    def must_call(self) -> bool:
        return self.tools is not None and self.call != "auto"


NOTHING_EXPECTED = InspectionPolicy()


class LateTools(OfferedTools):
    """A request's `tools` as bytes, read when somebody asks for one: most answers call none, and agents send 50 KB."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        if name not in ("_schemas", "_types", "_names", "_shapes"):
            raise AttributeError(name)
        read = _kept(self._raw) if len(self._raw) <= CACHED_MOST else OfferedTools(_decoded(self._raw))
        self._schemas, self._types, self._names = read._schemas, read._types, read._names
        self._shapes = read._shapes
        return getattr(self, name)

    def __bool__(self) -> bool:
        return True


@lru_cache(maxsize=32)
def _kept(raw: bytes) -> OfferedTools:
    return OfferedTools(_decoded(raw))


def _decoded(raw: bytes) -> Iterator[Any]:
    try:
        tools = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    yield from tools if isinstance(tools, list) else ()


def closes_thoughts(request: InferenceRequest, thoughts: Thoughts | None) -> bool:
    """Is a `</think>` with no opener before it the end of thoughts, as far as the request and the model can tell? Not
    where the model marks them otherwise, or not at all, and not where the client itself speaks of that tag."""
    return thoughts is not None and thoughts.closer == CLOSER and not asked_about(request, CLOSER)
