"""One choice of an answer, checked and mended while it comes.

The same object serves a stream (many deltas) and an answer in one piece (one delta), so both give the same result for
the same text. A delta is OpenAI's: `content`, `reasoning`, `tool_calls`, ...
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgspec

from gateway.inspection.markers import markers_of
from gateway.inspection.mender import Call, Gap, Mender, Piece, Reasoning, Text
from gateway.inspection.policy import Expected, ReasoningField
from gateway.inspection.reasoning import Thoughts

Delta = dict[str, Any]

# What an answer can be found guilty of: the kinds of gateway_violations_total.
KINDS = (
    "tool_call_as_text",
    "reasoning_as_text",
    "finish_reason",
    "arguments_not_json",
    "unknown_tool",
    "missing_arguments",
    "tool_choice_ignored",
    "empty",
    "nothing_said",
    "swallowed",
    "reasoning_cut",
    "repetition",
    "garbage",
    "usage",
)
FIELDS = ("reasoning", "reasoning_content")
GUESS_MOST = 256 * 1024  # characters that are held until it is known whether they are thoughts


class ChoiceAnswer:
    """`violations` and `mended` are filled while it comes. `said`: some content; `thought`: some reasoning."""

    __slots__ = (
        "_apart",
        "_armed",
        "_as_text",
        "_calls",
        "_expected",
        "_held",
        "_mender",
        "_places",
        "_unsaid",
        "mended",
        "said",
        "size",
        "thought",
        "violations",
    )

    def __init__(self, expected: Expected) -> None:
        self._expected = expected
        self._armed = expected.tools is not None or expected.thoughts is not None
        self._mender: Mender | None = None  # made when there is text to look at: an answer of calls alone needs none
        self._calls: list[_ToolCall] = []
        self._places: dict[Any, int] = {}  # upstream's index of a call -> ours
        # What may be thoughts that lack their opener; None = nothing is guessed. Nothing of it is sent before it is
        # known which it is, so nothing is ever said twice.
        self._unsaid: list[str] | None = [] if expected.thoughts and expected.thoughts.implied else None
        self._held = 0  # characters of it
        self._as_text = False  # the guess was given up amid them: they are content
        self._apart = False
        self.said = False
        self.thought = False
        self.size = 0  # bytes of content and thoughts
        self.violations: set[str] = set()
        self.mended: set[str] = set()

    @property
    def called(self) -> bool:
        return bool(self._calls)

    @property
    def obeyed(self) -> bool:
        """Was a tool called that `tool_choice` asked for?"""
        if self._expected.call == "named":
            return any(call.name == self._expected.name for call in self._calls)
        return bool(self._calls) or not self._expected.must_call

    @property
    def never_closed(self) -> bool:
        """Its thoughts were taken to begin without an opener, and nothing ended them, or they came in their own field:
        then the content has none. Valid after `end`."""
        return bool(self._unsaid) or self._apart

    def text(self, text: str) -> list[Delta] | None:
        """The same for a delta that is nothing but this content. None = it goes on unchanged."""
        if not self._armed:
            return None
        self.size += len(text) if text.isascii() else len(text.encode(errors="replace"))
        mender = self._mender
        if mender is None:
            expected = self._expected
            tools = expected.tools if expected.tools is not None else ()
            mender = self._mender = Mender(expected.formats, tools, self._thoughts_to_find())
        pieces = mender.feed(text)
        if len(pieces) == 1 and type(pieces[0]) is Text and pieces[0].text == text:
            self.said = True
            return None
        return self._deltas(pieces)

    def delta(self, delta: Delta) -> list[Delta]:
        """What goes to the client for this delta: `[delta]` itself where nothing has to change."""
        content, calls = delta.get("content"), delta.get("tool_calls")
        for name in FIELDS:
            if thought := delta.get(name):
                self.thought = True
                self.size += len(str(thought).encode(errors="replace"))
        mended: list[Delta] | None = None
        if isinstance(content, str) and content:
            mended = self.text(content)
            self.said = self.said or mended is None
        changed = mended is not None
        if isinstance(calls, list) and calls:
            changed = self._take_calls(calls) or changed
        if not changed:
            return [_renamed(delta, self._expected.reasoning_field)]
        rest = {key: value for key, value in delta.items() if key not in ("content", "tool_calls")}
        out = [_renamed(rest, self._expected.reasoning_field)] if rest else []
        out += [{"content": content}] if mended is None and content else mended or []
        return [*out, {"tool_calls": calls}] if calls else out

    def _thoughts_to_find(self) -> Thoughts | None:
        """How thoughts are marked in content that begins now: who has put some in their own field opens none here."""
        found = self._expected.thoughts
        if found is None or not (found.implied and self.thought):
            return found
        self._unsaid, self._apart = None, True
        return replace(found, implied=False)

    def end(self, finish_reason: object, *, cut: bool = False) -> tuple[list[Delta], object]:
        """The choice is complete: what is still to be sent, and its finish_reason as it should be. `cut`: it has as
        many tokens as were allowed."""
        deltas = self._deltas(self._mender.finish()) if self._mender is not None else []
        if self._mender is not None and self._mender.saw_thoughts_later:
            self.violations.add("reasoning_as_text")  # they stay where they are: what is before them has been sent
        if self._unsaid:  # no end of thoughts came: it was the answer
            deltas.append({"content": "".join(self._unsaid)})
            self.said = True
            if finish_reason == "length":
                self._unsaid = None  # their end may have been cut off: the guess is not refuted
        complete = finish_reason != "length" and self._judge_calls(cut=cut)
        finish_reason = self._finish(finish_reason, complete=complete)
        if finish_reason == "length" and self.thought and not (self.said or self._calls):
            self.violations.add("reasoning_cut")  # vLLM forces a call only after the thoughts
        elif self._expected.must_call and not self.obeyed:
            self.violations.add("tool_choice_ignored")
        return deltas, finish_reason

    def _finish(self, given: object, *, complete: bool) -> object:
        if given == "repetition":
            self.violations.add("repetition")
            given = "stop"
        if self._expected.tools is None:
            return given
        if self._calls and given == "stop":
            if "tool_calls" not in self.mended:
                self.violations.add("finish_reason")
            return "tool_calls"
        if given == "tool_calls" and not (self._calls and complete):
            self.violations.add("finish_reason")
            return "length" if self._calls else "stop"
        return given

    def _deltas(self, pieces: list[Piece]) -> list[Delta]:
        deltas: list[Delta] = []
        for piece in pieces:
            if (self._unsaid is not None or self._as_text) and self._guessed(piece, deltas):
                continue
            if isinstance(piece, Text):
                self.said = True
                deltas.append({"content": piece.text})
            elif isinstance(piece, Reasoning):
                self._say_thought(piece.text, deltas)
            elif isinstance(piece, Call):
                self.mended.add("tool_calls")
                self.violations.add("tool_call_as_text")
                deltas.append({"tool_calls": [self._add(piece)]})
        return deltas

    def _say_thought(self, text: str, deltas: list[Delta]) -> None:
        self.thought = True
        self.mended.add("reasoning")
        self.violations.add("reasoning_as_text")
        if self._expected.reasoning_field != "none":
            deltas.append(_renamed({"reasoning": text}, self._expected.reasoning_field))

    def _guessed(self, piece: Piece, deltas: list[Delta]) -> bool:
        """Take a piece of what may be thoughts without an opener. False = the guess is decided, and the piece goes its
        own way."""
        found = self._expected.thoughts
        assert found is not None
        ends = isinstance(piece, Gap) and found.closer in piece.raw
        if self._as_text:
            if isinstance(piece, (Reasoning, Gap)):
                deltas.append({"content": piece.raw})
            self._as_text = isinstance(piece, Reasoning) or (isinstance(piece, Gap) and not ends)
            return isinstance(piece, (Reasoning, Gap))
        unsaid = self._unsaid
        assert unsaid is not None
        blank = isinstance(piece, Gap) and not ends and not piece.raw.strip()
        if isinstance(piece, Reasoning) or blank:
            unsaid.append(piece.raw)
            self._held += len(piece.raw)
            if self._held > GUESS_MOST:
                self._unsaid, self._as_text, self.said = None, True, True
                deltas.append({"content": "".join(unsaid)})
            return True
        self._unsaid = None  # an opener, the end of thoughts, or a call, which ends them too
        if unsaid:
            self._say_thought("".join(unsaid), deltas)
        return False

    def _add(self, call: Call) -> dict[str, Any]:
        self._calls.append(_ToolCall(call.name, [call.arguments]))
        function = {"name": call.name, "arguments": call.arguments}
        return {"index": len(self._calls) - 1, "id": call_id(), "type": "function", "function": function}

    def _take_calls(self, calls: list[Any]) -> bool:
        """Upstream's own calls, or parts of them. True when an index had to be moved behind calls of ours."""
        moved = False
        for i, call in enumerate(calls):
            if not isinstance(call, dict):
                continue
            given = call.get("index", i)
            key = i if isinstance(given, (list, dict)) else given
            place = self._places.get(key)
            if place is None:
                place = self._places[key] = len(self._calls)
                self._calls.append(_ToolCall("", []))
            if place != given:
                call["index"] = place
                moved = True
            function = call.get("function")
            if isinstance(function, dict):
                name, arguments = function.get("name"), function.get("arguments")
                self._calls[place].name += name if isinstance(name, str) else ""
                if isinstance(arguments, str):
                    self._calls[place].arguments.append(arguments)
        return moved

    def _judge_calls(self, *, cut: bool) -> bool:
        """Are the calls what they must be? False when the last one was cut off by the token limit."""
        tools = self._expected.tools
        if tools is None:
            return True
        for call in self._calls:
            wrong = _fault(call, tools)
            if wrong is None:
                continue
            self.violations.add(wrong)
            if cut and call is self._calls[-1] and wrong in ("arguments_not_json", "missing_arguments"):
                return False
        return True


class _ToolCall:
    __slots__ = ("arguments", "name")

    def __init__(self, name: str, arguments: list[str]) -> None:
        self.name = name
        self.arguments = arguments


def _fault(call: _ToolCall, tools: Any) -> str | None:
    if not tools.has(call.name):
        return "unknown_tool"
    try:
        arguments = msgspec.json.decode("".join(call.arguments) or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return "arguments_not_json"
    if not isinstance(arguments, dict):
        return "arguments_not_json"
    return "missing_arguments" if tools.required(call.name) - arguments.keys() else None


def is_plain(message: Delta, finish_reason: object, expected: Expected) -> bool:
    """Is this choice of a whole answer plain text to its end, in which there is nothing to find? Most are. It is told
    by what is not in it: no marker of a call, no tag of thoughts, no call, no thought."""
    text, thoughts = message.get("content"), expected.thoughts
    if not isinstance(text, str) or not text or text.isspace() or finish_reason not in ("stop", "length"):
        return False
    if expected.must_call or expected.reasoning_field != "as_is" or message.get("tool_calls"):
        return False
    if any(message.get(name) for name in FIELDS):
        return False
    if thoughts is not None and (thoughts.implied or any(tag in text for tag in thoughts.tags)):
        return False
    return expected.tools is None or markers_of(tuple(expected.formats)).anywhere.search(text) is None


def call_id() -> str:
    return f"call_{random.getrandbits(96):024x}"


def _renamed(delta: Delta, field: ReasoningField) -> Delta:
    """The same with thoughts under the name(s) that the alias wants."""
    if field == "as_is" or not any(name in delta for name in FIELDS):
        return delta
    said = next((delta[name] for name in FIELDS if delta.get(name) is not None), None)
    rest = {key: value for key, value in delta.items() if key not in FIELDS}
    names = FIELDS if field == "both" else () if field == "none" else (field,)
    return rest | dict.fromkeys(names, said)
