"""One attempt's stream, event by event, without effects: what may go to the client now, and whether it was whole.

Preamble (comments, role chunks) is held until the backend has said something, and dropped when the attempt is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway import rewrite
from gateway.routing.request import InferenceRequest
from gateway.upstream.sse import DONE, Choice, Chunk, data_of, is_plain, read_chunk, says_something, thinks

BROKEN_ENDS = ("abort", "error")  # vLLM's finish_reason when it is stopped, and when it fails


class Identity:
    """`id` and `created` of all chunks of one reply; fixed by the first chunk that is sent, whoever made it."""

    __slots__ = ("created", "id", "role_sent")

    def __init__(self) -> None:
        self.id: Any = None
        self.created: Any = None
        self.role_sent = False

    def fix(self, id_: Any, created: Any) -> None:
        if self.id is None:
            self.id, self.created = id_, created


class StreamTrack:
    """Follows one attempt. `take` is fed whole events and returns the bytes to send."""

    __slots__ = (
        "_first",
        "_identity",
        "_request",
        "_rewrites",
        "_wanted",
        "content",
        "done",
        "failure",
        "finished",
        "held",
        "limited",
        "progress",
        "reasoning",
        "repeated",
        "usage",
    )

    def __init__(self, request: InferenceRequest, identity: Identity) -> None:
        self._request = request
        self._identity = identity
        self._first: tuple[bytes, Chunk] | None = None
        self._rewrites: rewrite.Rewrites = ()
        self._wanted: dict[str, object] = {}
        self.held: list[bytes] = []  # not sent yet
        self.content = False  # this attempt has said something
        self.reasoning = False  # it has at least thought
        self.progress = False  # the last events were more than comments
        self.finished: set[object] = set()  # indexes of the choices that have their finish_reason
        self.done = False  # [DONE] was seen
        self.usage: dict[str, Any] | None = None
        self.failure: str | None = None  # why the stream is broken
        self.limited = False  # it ended because no more tokens were allowed
        self.repeated = False  # vLLM stopped it because it repeated itself

    @property
    def whole(self) -> bool:
        """Every choice has its finish_reason. ([DONE] alone says nothing: vLLM sends it after an error too.)"""
        return self.failure is None and len(self.finished) >= self._request.choices

    @property
    def empty(self) -> bool:
        """Whole, but it says nothing: neither content nor even a thought; and not because no more was allowed."""
        return self.whole and not (self.content or self.reasoning or self.limited)

    def take(self, events: Sequence[bytes]) -> bytes:
        """The bytes to send for these events; b"" while nothing has been said. Sets `failure` when one of them is an
        error."""
        self.progress = False
        out: list[bytes] = []
        for event in events:
            if self.content and is_plain(event):
                self.progress = True
                out.append(self._rewritten(event))
            else:
                self._take_one(event, out)
            if self.failure is not None:
                break
        return out[0] if len(out) == 1 else b"".join(out)

    def _take_one(self, event: bytes, out: list[bytes]) -> None:
        data = data_of(event)
        if data is None:
            if self.content:
                out.append(event)
            return
        self.progress = True
        if data == DONE:
            self.done = True
            return
        chunk = read_chunk(data)
        if chunk is None:  # not ours to judge: it goes on as it is, as content
            self._say(event, out, content=True)
        elif chunk.error is not None:
            self.failure = _error_text(chunk.error)
        else:
            if self._first is None:
                self._first = (event, chunk)
            self._take_chunk(event, chunk, out)

    def _take_chunk(self, event: bytes, chunk: Chunk, out: list[bytes]) -> None:
        if isinstance(chunk.usage, dict):
            self.usage = chunk.usage
            if not chunk.choices and not (self._request.wants_usage or self._request.own_usage):
                return  # we asked for it, the client did not
        choices = chunk.choices or []
        for choice in choices:
            if choice.finish_reason is not None and not self._end(choice):
                return
        if any(says_something(choice) for choice in choices):
            self._say(event, out, content=True)
        elif any(thinks(choice) for choice in choices):
            self._say(event, out, content=False)
        elif self.content or self.reasoning:
            out.append(self._rewritten(event))
        else:
            self.held.append(event)

    def _end(self, choice: Choice) -> bool:
        """Notes a finish_reason; False when it is one that means failure."""
        if choice.finish_reason in BROKEN_ENDS:
            self.failure = f"ended with finish_reason {choice.finish_reason}"
            return False
        if choice.finish_reason == "repetition":
            self.repeated = True
        elif choice.finish_reason == "length":
            self.limited = True
        self.finished.add(choice.index if isinstance(choice.index, int) else 0)
        return True

    def _say(self, event: bytes, out: list[bytes], *, content: bool) -> None:
        if not (self.content or self.reasoning):
            out.append(self.release_held())
        self.content = self.content or content
        self.reasoning = self.reasoning or not content
        out.append(self._rewritten(event))

    def release_held(self) -> bytes:
        """The preamble, now that it may go out; role chunks only if none went before."""
        self._learn()
        events = [event for event in self.held if not (self._identity.role_sent and _is_role(event))]
        self.held.clear()
        self._identity.role_sent = True
        return b"".join(self._rewritten(event) for event in events)

    def _learn(self) -> None:
        if self._first is None:
            return
        event, chunk = self._first
        self._identity.fix(chunk.id, chunk.created)
        self._wanted = {
            "model": self._request.model,
            "id": self._identity.id,
            "created": self._identity.created,
        }
        self._rewrites = rewrite.learn_all(event, chunk, self._wanted)

    def _rewritten(self, event: bytes) -> bytes:
        if self._rewrites:
            event = rewrite.apply(event, self._rewrites, self._wanted)
        if self.repeated:
            event = event.replace(b'"finish_reason":"repetition"', b'"finish_reason":"stop"')
        return event


def _is_role(event: bytes) -> bool:
    data = data_of(event)
    chunk = read_chunk(data) if data is not None else None
    if chunk is None or not chunk.choices:
        return False
    return all(isinstance(c.delta, dict) and "role" in c.delta and c.finish_reason is None for c in chunk.choices)


def _error_text(error: Any) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return f"sent an error event: {str(message)[:300]}"
