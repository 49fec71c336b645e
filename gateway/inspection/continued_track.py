"""Follows a stream that goes on with what another backend has begun: the client sees one answer."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from gateway.domain.request import InferenceRequest
from gateway.domain.tokens import count_of
from gateway.inspection.rewrite import ReplyIdentity, rebuilt, with_field
from gateway.inspection.stream_track import StreamTrack
from gateway.transport.sse import Choice, Chunk, content_of

_encode = msgspec.json.Encoder().encode


class ContinuedTrack(StreamTrack):
    """Reads every event. `repeated`: text that the client has already, and that this stream may begin with. `prompt`,
    `used`: tokens of the original prompt (None = not known) and of the text before. `usage` is this attempt's own;
    the client gets that of the whole answer."""

    __slots__ = ("_prompt", "_repeated", "_used")

    def __init__(
        self, request: InferenceRequest, identity: ReplyIdentity, repeated: str, prompt: int | None, used: int
    ) -> None:
        super().__init__(request, identity)
        self._repeated = repeated
        self._prompt = prompt
        self._used = used

    def conclude(self) -> None:
        """An end without further text is an end too: the answer has its beginning."""
        self.judge(sent=True)

    def _feed_chunk(self, event: bytes, chunk: Chunk, out: list[bytes]) -> None:
        choices = chunk.choices or []
        if isinstance(chunk.usage, dict):
            event = with_field(event, "usage", Raw(_encode(self._joined(chunk.usage))))
        if self._repeated and len(choices) == 1 and (text := content_of(choices[0])):
            rest = self._without_repeated(text)
            if not rest and choices[0].finish_reason is None:
                return
            if rest != text:
                choices[0].delta["content"] = rest
                event = rebuilt(event, choices)[0]
        super()._feed_chunk(event, chunk, out)

    def _look_ahead(self, event: bytes, choice: Choice, *, changed: bool = False) -> None:
        """No event is passed on unread: each may have a usage."""

    def _send(self, event: bytes, out: list[bytes], *, content: bool) -> None:
        if not content:
            self.failure = "thought again instead of continuing the text"
            return
        super()._send(event, out, content=content)

    def _without_repeated(self, text: str) -> str:
        """The text without what the client has already."""
        pairs = zip(text, self._repeated, strict=False)
        same = next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(text), len(self._repeated)))
        self._repeated = self._repeated[same:] if same == len(text) else ""
        return text[same:]

    def _joined(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The usage of the whole answer: the original prompt, and the tokens of both parts."""
        prompt, completion = self._prompt, self._used + count_of(usage.get("completion_tokens"))
        if prompt is None:
            prompt = max(0, count_of(usage.get("prompt_tokens")) - self._used)
        whole = usage | {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        if "prompt_tokens_details" in usage:
            whole["prompt_tokens_details"] = None  # those of the second prompt
        return whole
