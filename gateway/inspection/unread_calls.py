"""What a parser of calls passes on although it could not read it (`EngineTraits.leaves_calls_unread`): arguments that
are no JSON, the rest of a call's text as content behind it, and calls in thoughts that are never closed.

Behind `<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>` vLLM's Rust front end sends a call of `f`
without arguments, and `"{\\"a\\": 1}"}</tool_call>` as content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from gateway.inspection.arguments import Arguments, is_object, object_in
from gateway.inspection.finder import CallFinder, CallsInThoughts
from gateway.inspection.formats import Format
from gateway.inspection.formats.base import literal
from gateway.inspection.formats.dsml import Dsml
from gateway.inspection.formats.json_calls import CLOSER
from gateway.inspection.offered_tools import OfferedTools
from gateway.inspection.segments import Call, Segment

Delta = dict[str, Any]

FIELDS = ("reasoning", "reasoning_content")  # of thoughts
OPENER = "<tool_call>"
HELD_MOST = 1 << 20  # characters of content that are held because they may be the rest of a call
LOOK_ALWAYS = 512  # up to so many held characters, each piece is looked at; beyond, those that may complete the rest
_END = r"[\s}]*+"
_DEBRIS = re.compile(_END + literal(CLOSER))
_STRING = r'"(?:[^"\\]++|\\.)*+'
_VALUE = re.compile(
    rf'\s*+(?:{_STRING}(?:\\?\Z|"{_END}{literal(CLOSER)})|{literal("null")}{_END}{literal(CLOSER)})', re.DOTALL
)
_WHOLE_VALUE = re.compile(rf'({_STRING}"|null){_END}{re.escape(CLOSER)}', re.DOTALL)
_WHOLE_DEBRIS = re.compile(rf"(?:^|(?<=[\n}}])){_END}{re.escape(CLOSER)}")
_BRACES = re.compile(r"[\s}]+")


class UnreadCalls:
    """The calls of one choice that the server sent as calls. Each delta goes through `take`, the end through `finish`.
    `awaits`: content that comes now may be the rest of a call; `mended`: something was; `cut`: the arguments of the
    last call are no JSON, whatever was tried."""

    __slots__ = (
        "_calls",
        "_drafts",
        "_field",
        "_held",
        "_last",
        "_name",
        "_tools",
        "_wraps",
        "awaits",
        "cut",
        "mended",
    )

    def __init__(self, formats: Sequence[Format], tools: OfferedTools) -> None:
        self._drafts = CallsInThoughts(lambda: CallFinder(formats, tools))
        self._field = FIELDS[0]  # the name of the thoughts
        self._tools = tools
        self._wraps = next((one for one in formats if isinstance(one, Dsml)), None)  # may wrap arguments in a key
        self._name = ""  # of the call that came last
        self._calls: dict[Any, Arguments] = {}
        self._last: Any = None  # the server's index of the call that came last
        self._held = ""
        self.awaits = False
        self.mended = False
        self.cut = False

    def take(self, delta: Delta) -> list[Delta]:
        """The deltas instead of this one; `[delta]` itself where nothing changes."""
        parts = self._take_thoughts(delta)
        last = parts.pop() if parts else {}
        return [*parts, *self._take_rest(last)] if last else parts

    def _take_rest(self, delta: Delta) -> list[Delta]:
        content, calls = delta.get("content"), delta.get("tool_calls")
        if isinstance(calls, list) and calls:
            if not any(isinstance(call, dict) and "index" in call for call in calls):  # of a whole answer
                text = self._take_whole(content if isinstance(content, str) else "", calls)
                first = {**delta, "content": None}
                return [first, {"content": text}] if text else [first]
            return self._take_calls(delta, calls)
        if self.awaits and isinstance(content, str) and content:
            return self._take_content(delta, content)
        return [delta]

    def passes(self, index: object, piece: str) -> bool:
        """Does this piece of a call's arguments go on as it is? Then it is noted; else nothing was done."""
        arguments = self._calls.get(index)
        if arguments is not None and self._wraps is not None and arguments.empty:
            return False
        return arguments is not None and index == self._last and not self._held and arguments.passes(piece)

    def finish(self, *, cut: bool = False) -> list[Delta]:
        """What is still to be sent at the end of the answer. `cut`: a limit has ended it, perhaps inside a call."""
        held, self._held = self._held, ""
        out = self._end_call(cut=cut)
        if held.strip() and not _BRACES.fullmatch(held):
            out.append({"content": held})
        self.awaits = False
        return out

    # -- thoughts ---------------------------------------------------------------------------------------------------

    def _take_thoughts(self, delta: Delta) -> list[Delta]:
        """The delta without what may be a call in its thoughts: that is held until content, a call or the end."""
        drafts, follows = self._drafts, bool(delta.get("content") or delta.get("tool_calls"))
        field = next((name for name in FIELDS if isinstance(delta.get(name), str) and delta[name]), None)
        if field is None:
            held = _text(drafts.close()) if follows and drafts.begun else ""
            return [{self._field: held}, delta] if held else [delta]
        self._field = field
        text = _text(drafts.feed(delta[field]) + (drafts.close() if follows else []))
        if text == delta[field]:
            return [delta]
        rest = {name: value for name, value in delta.items() if name != field}
        return [{**rest, field: text}] if text else [rest] if rest else []

    def passes_thoughts(self, piece: str) -> bool:
        """Does this piece of the thoughts go on as it is? Then it is noted; else nothing was done."""
        return self._drafts.passes(piece)

    def finish_thoughts(self, *, cut: bool) -> tuple[list[Delta], list[Segment]]:
        """(thoughts that are still to be sent, the calls with which they end). `cut`: the calls are drafts, because the
        answer has more than thoughts, or a limit has ended it."""
        if not self._drafts.begun:
            return [], []
        segments = self._drafts.close() if cut else self._drafts.finish()
        calls = [segment for segment in segments if isinstance(segment, Call)]
        thoughts = _text([segment for segment in segments if not isinstance(segment, Call)])
        return [{self._field: thoughts}] if thoughts.strip() else [], [*calls]

    # -- calls ------------------------------------------------------------------------------------------------------

    def _take_calls(self, delta: Delta, calls: list[Any]) -> list[Delta]:
        before: list[Delta] = []
        made, changed = [], False
        for position, call in enumerate(calls):
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict):
                made.append(call)
                continue
            key = call.get("index", position)
            key = position if isinstance(key, list | dict) else key
            if function.get("name") or key not in self._calls:
                before += self._leave()
                self._calls[key], self._last, self.awaits = Arguments(), key, True
                self._name = str(function.get("name") or "")
            piece = function.get("arguments")
            if not isinstance(piece, str) or not piece:
                made.append(call)
                continue
            whole = self._unwrapped(self._name, piece) if self._calls[key].empty else piece
            passed = self._calls[key].feed(whole)
            changed = changed or passed != piece
            if passed or function.get("name"):
                made.append(call if passed == piece else {**call, "function": {**function, "arguments": passed}})
        if not (changed or before):
            return [delta]
        rest = {name: value for name, value in delta.items() if name != "tool_calls"}
        after = [{**rest, "tool_calls": made}] if made else [rest] if rest else []
        return [*before, *after]

    def _unwrapped(self, name: str, arguments: str) -> str:
        """The arguments, of their declared types and without a key that wraps all, where they come in one piece."""
        if self._wraps is None or not self._tools.has(name) or not is_object(arguments):
            return arguments
        given, tools = json.loads(arguments), self._tools
        inner = self._wraps.unwrapped({key: tools.fitted(name, key, given[key]) for key in given}, name, tools)
        if inner == given:
            return arguments
        self.mended = True
        return json.dumps(inner, ensure_ascii=False)

    def _leave(self) -> list[Delta]:
        """Another call begins."""
        return self.finish() if self._last is not None else []

    def _end_call(self, *, cut: bool = False) -> list[Delta]:
        """The rest of the arguments of the call that came last; none are an empty object."""
        if self._last is None:
            return []
        arguments, index, self._last = self._calls[self._last], self._last, None
        if arguments.empty:
            return [] if cut else self._arguments(index, "{}")
        rest = arguments.finish()
        self.mended = self.mended or arguments.mended
        self.cut = not arguments.whole
        return self._arguments(index, rest) if rest else []

    @staticmethod
    def _arguments(index: object, text: str) -> list[Delta]:
        return [{"tool_calls": [{"index": index, "function": {"arguments": text}}]}]

    # -- content behind a call ----------------------------------------------------------------------------------------

    def _take_content(self, delta: Delta, content: str) -> list[Delta]:
        self._held += content
        if len(self._held) > LOOK_ALWAYS and ">" not in content and len(self._held) <= HELD_MOST:
            return []
        empty = self._last is not None and self._calls[self._last].empty
        pattern = _VALUE if empty else _DEBRIS
        found = pattern.match(self._held) if len(self._held) <= HELD_MOST else None
        if found is not None and found.end() == len(self._held) and not self._held.endswith(CLOSER):
            return []  # it may go on so
        held, self._held, self.awaits = self._held, "", False
        if found is None or not found[0].endswith(CLOSER):
            return [*self._end_call(), {**delta, "content": held}]
        out: list[Delta] = []
        if empty:
            given = _string_in(found[0])
            if given is None:
                return [*self._end_call(), {**delta, "content": held}]
            out, self._last, self.mended = self._arguments(self._last, given), None, True
        else:
            out = self._end_call()
        rest = held[found.end() :]
        return [*out, {**delta, "content": rest}] if rest else out

    # -- a whole answer ------------------------------------------------------------------------------------------------

    def _take_whole(self, content: str, calls: list[Any]) -> str:
        """Mend the calls in place. Returns the content without what was theirs."""
        for call in calls:
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
                continue
            if not function["arguments"].strip():
                found = _WHOLE_VALUE.search(content)
                given = _string_in(found[0]) if found is not None else None
                if found is not None and given is not None:
                    content = content[: found.start()] + content[found.end() :]
                    function["arguments"], self.mended = given, True
                    continue
            elif (debris := _WHOLE_DEBRIS.search(content)) is not None and not _quoted(content[: debris.start()]):
                content = content[: debris.start()] + content[debris.end() :]
            self._mend(function)
        return "" if not content.strip() or _BRACES.fullmatch(content) else content

    def _mend(self, function: dict[str, Any]) -> None:
        arguments = Arguments()
        passed = arguments.feed(self._unwrapped(str(function.get("name")), function["arguments"]))
        if arguments.empty:
            function["arguments"] = "{}"
            return
        function["arguments"] = passed + arguments.finish()
        self.mended = self.mended or arguments.mended
        self.cut = not arguments.whole


def _quoted(before: str) -> bool:
    """Does prose quote the closing tag behind this text: with its opening tag, or in a block of code?"""
    return before.count("```") % 2 == 1 or before.count(OPENER) > before.count(CLOSER)


def _text(segments: Sequence[Segment]) -> str:
    return "".join(segment.raw for segment in segments)


def _string_in(text: str) -> str | None:
    """The JSON object that a string at the beginning of the text holds; {} for null; None: it is another value."""
    return None if text.lstrip()[:1] == "{" else object_in(text)
