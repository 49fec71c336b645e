"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen 2.5 and 3; with other tags LongCat, Granite,
InternLM and Jamba."""

from __future__ import annotations

from gateway.inspection.cursor import Cursor
from gateway.inspection.formats.base import JSON_CALLS, Format, ParsedCall, read_calls
from gateway.inspection.offered_tools import OfferedTools


class Hermes(Format):
    """A JSON object (or a list of them) behind one of the `opening` tags. The `closing` tag may be missing; "" where
    the format has none. `fit`: arguments are converted to the declared types, as vLLM's parser does."""

    def __init__(
        self,
        name: str = "hermes",
        opening: tuple[str, ...] = ("<tool_call>",),
        closing: str = "</tool_call>",
        fit: bool = False,
    ) -> None:
        self.name = name
        self._fit = fit
        self._close = closing
        self.markers = opening
        self.closers = (closing,) if closing else ("}", "}]", "\n]", " ]")

    def follow(self, marker: str) -> str:
        return JSON_CALLS

    def read(self, cursor: Cursor, tools: OfferedTools) -> list[ParsedCall]:
        cursor.expect(*self.markers)
        cursor.space()
        calls = read_calls(cursor, tools, fit=self._fit)
        if self._close:
            cursor.close(self._close)
        return calls
