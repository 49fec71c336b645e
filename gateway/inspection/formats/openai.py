"""gpt-oss (harmony): `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>`."""

from __future__ import annotations

from gateway.inspection.cursor import Cursor
from gateway.inspection.formats.base import NAMED, Format, ParsedCall, make_call, read_name, read_object
from gateway.inspection.offered_tools import OfferedTools

CHANNELS = ("<|channel|>commentary to=functions.", "<|channel|>analysis to=functions.")
START, MESSAGE, CALL = "<|start|>assistant", "<|message|>", "<|call|>"


class OpenAi(Format):
    """The start of the message, the type of its content and the closing token may be missing."""

    name = "openai"
    markers = (*CHANNELS, *(START + channel for channel in CHANNELS))
    closers = (CALL, "}")

    def follow(self, marker: str) -> str:
        return NAMED

    def read(self, cursor: Cursor, tools: OfferedTools) -> list[ParsedCall]:
        cursor.expect(*self.markers)
        name = read_name(cursor, tools)
        cursor.space()
        cursor.skip("<|constrain|>json", "json")
        cursor.space()
        cursor.expect(MESSAGE)
        arguments = read_object(cursor)
        cursor.close(CALL)
        return [make_call(cursor, name, arguments)]
