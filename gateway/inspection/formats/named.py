"""Calls that are the name of the tool, with tags around it, and behind it the arguments as JSON."""

from __future__ import annotations

import re

from gateway.inspection.cursor import NAME, Cursor
from gateway.inspection.formats.base import (
    JSON_CALLS,
    NAMED,
    SPACED,
    Format,
    literal,
    make_call,
    one_of,
    read_calls,
    read_name,
    read_object,
)
from gateway.inspection.offered_tools import OfferedTools
from gateway.inspection.segments import Call


class DeepSeek(Format):
    """`<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>`. `names_type`: the type precedes the name,
    `function<｜tool▁sep｜>NAME` (V3 and R1, whose arguments are in a fenced block). The fence may be missing."""

    opens, closes = ("<｜tool▁calls▁begin｜>",), ("<｜tool▁calls▁end｜>",)
    CALL, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
    markers, closers = (*opens, CALL), (*closes, CALL_END)

    def __init__(self, name: str, *, names_type: bool) -> None:
        self.name = name
        self._names_type = names_type
        self._named = literal("function") + literal(self.SEPARATOR) + NAMED if names_type else NAMED

    def follow(self, marker: str) -> str:
        return self._named if marker == self.CALL else SPACED + literal(self.CALL) + self._named

    def read_call(self, cursor: Cursor, tools: OfferedTools) -> Call:
        cursor.expect(self.CALL)
        if self._names_type:
            cursor.expect("function")
            cursor.expect(self.SEPARATOR)
        name = read_name(cursor, tools)
        if not self._names_type:
            cursor.expect(self.SEPARATOR)
        fenced = cursor.skip_spaced("```json", "```")
        arguments = read_object(cursor)
        if fenced:
            cursor.close("```")
        cursor.close(self.CALL_END)
        return make_call(cursor, name, arguments)


class KimiK2(Format):
    """`<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`, in a section."""

    name = "kimi_k2"
    opens = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>")
    closes = ("<|tool_calls_section_end|>", "<|tool_call_section_end|>")
    CALL, CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
    markers, closers = (*opens, CALL), (*closes, CALL_END)
    _id = re.compile(r"[^<|]{0,192}")
    _count = re.compile(r":\d+\Z")

    def follow(self, marker: str) -> str:
        named = one_of("^<|")
        return named if marker == self.CALL else SPACED + literal(self.CALL) + named

    def read_call(self, cursor: Cursor, tools: OfferedTools) -> Call:
        cursor.expect(self.CALL)
        name = self._count.sub("", cursor.run(self._id).strip()).removeprefix("functions.")
        if name not in tools:
            cursor.fail()
        cursor.expect("<|tool_call_argument_begin|>")
        arguments = read_object(cursor)
        cursor.close(self.CALL_END)
        return make_call(cursor, name, arguments, tools.fitted)


class Mistral(Format):
    """`[TOOL_CALLS]NAME[ARGS]{...}`; older models `[TOOL_CALLS][{"name": ..., "arguments": {...}}]`. `[CALL_ID]...`
    may stand before `[ARGS]`, and `[ARGS]` may be missing."""

    name = "mistral"
    markers = ("[TOOL_CALLS]",)
    closers = ("}", "}]", "\n]", " ]")

    def follow(self, marker: str) -> str:
        return f"{SPACED}{NAMED}|{JSON_CALLS}"

    def read(self, cursor: Cursor, tools: OfferedTools) -> list[Call]:
        cursor.expect(*self.markers)
        cursor.space()
        if cursor.at("[", "{"):
            return read_calls(cursor, tools, fit=True)
        name = read_name(cursor, tools)
        if cursor.skip_spaced("[CALL_ID]"):
            match = NAME.match(cursor.text, cursor.pos)
            cursor.pos = match.end() if match else cursor.pos
        cursor.skip_spaced("[ARGS]")
        return [make_call(cursor, name, read_object(cursor), tools.fitted)]


class OpenAi(Format):
    """gpt-oss (harmony): `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>`. The start
    of the message, the type of its content and the closing token may be missing."""

    name = "openai"
    _channels = ("<|channel|>commentary to=functions.", "<|channel|>analysis to=functions.")
    markers: tuple[str, ...] = (
        *_channels,
        *map("<|start|>assistant".__add__, (*_channels, " to=functions.")),
    )
    closers = ("<|call|>", "}")

    @property
    def variants(self) -> tuple[Format, ...]:
        return (OpenAiBare(),)

    def follow(self, marker: str) -> str:
        return NAMED

    def read_call(self, cursor: Cursor, tools: OfferedTools) -> Call:
        cursor.expect(*self.markers)
        name = _unglued(cursor, tools)
        cursor.skip_spaced("<|channel|>commentary", "<|channel|>analysis")
        cursor.skip_spaced("<|constrain|>json", "json", "<|constrain|>", "code")
        cursor.skip_spaced("<|message|>")
        arguments = read_object(cursor)
        cursor.close("<|call|>")
        return make_call(cursor, name, arguments)


_TYPE = "json"  # of the content; at times it is glued to the name


def _unglued(cursor: Cursor, tools: OfferedTools) -> str:
    """Read an offered tool's name, without the type that may be glued to it."""

    def known(word: str) -> bool:
        return tools.has(word) or (word.endswith(_TYPE) and tools.has(word.removesuffix(_TYPE)))

    def could_become(word: str) -> bool:
        begun = (_TYPE[:end] for end in range(1, len(_TYPE) + 1))
        return tools.could_become(word) or any(word.endswith(b) and tools.has(word.removesuffix(b)) for b in begun)

    word = cursor.name(known, could_become)
    return word if tools.has(word) else word.removesuffix(_TYPE)


class OpenAiBare(OpenAi):
    """The same without the special tokens, which some servers take out of the text: `commentary to=functions.NAME
    json{...}`. The beginning of the message may be in the prompt: `to=functions.NAME<|channel|>commentary ...`."""

    name = "openai_bare"
    markers = (
        *(f"{start}{channel} to=functions." for start in ("assistant", "") for channel in ("commentary", "analysis")),
        "to=functions.",
    )
    only_at_start = True

    @property
    def variants(self) -> tuple[Format, ...]:
        return ()
