"""Splits raw model text as vLLM's parsers do: reasoning, content and tool calls, whole or token by token."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from simulator.formats import Call, Format, Schemas
from simulator.tokens import pieces

Delta = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How a reasoning parser finds thoughts. `implicit`: without an opener, text up to `closing` is thoughts;
    `ended_by`: a call ends them too; `trimmed`: white space at their end is lost; `blind_when_off`: with thinking off
    the tags are text."""

    opening: str
    closing: str
    implicit: bool
    switchable: bool = True
    on_by_default: bool = True
    ended_by: str = ""
    drop_after_opening: str = ""
    trimmed: bool = False
    blind_when_off: bool = False


_QWEN = Reasoning("<think>", "</think>", True, ended_by="<tool_call>")
_TRIMMED = Reasoning("<think>", "</think>", True, ended_by="<tool_call>", trimmed=True)
_REASONING = {
    "gemma4": Reasoning(
        *("<|channel>", "<channel|>", False),
        on_by_default=False,
        ended_by="<|tool_call>",
        drop_after_opening="thought\n",
        trimmed=True,
    ),
    "mistral": Reasoning("[THINK]", "[/THINK]", False),
    "deepseek_r1": Reasoning("<think>", "</think>", True, switchable=False),
    "deepseek_v3": Reasoning("<think>", "</think>", True, on_by_default=False, blind_when_off=True),
    "deepseek_v4": Reasoning("<think>", "</think>", True, ended_by="<｜DSML｜tool_calls>", trimmed=True),
    "glm45": _TRIMMED,
    "glm47": _TRIMMED,
    "step3p5": _TRIMMED,
    "qwen3": _QWEN,
}


def reasoning_of(name: str) -> Reasoning:
    """The rules of a `--reasoning-parser` name; most names follow qwen3's."""
    return _REASONING.get(name, _QWEN)


@dataclass(slots=True)
class Message:
    """One parsed choice. `content` None = no text outside of thoughts and calls."""

    content: str | None
    reasoning: str | None = None
    calls: list[Call] = field(default_factory=list)
    reasoning_tokens: int = 0


class ReasoningSplitter:
    """Separates thoughts from text, one token at a time."""

    def __init__(self, rules: Reasoning | None, thinking: bool) -> None:
        self._rules = None if rules and rules.blind_when_off and not thinking else rules
        self._inside = bool(rules and rules.implicit and (thinking or not rules.switchable))
        self._skip = self._held = ""
        self.tokens = 0  # tokens of thought so far

    def feed(self, token: str) -> tuple[str, str]:
        """(thought, text) of this token; at most one is non-empty."""
        rules = self._rules
        if rules is None:
            return "", token
        if token == rules.opening:
            self._inside, self._skip = True, rules.drop_after_opening
            return "", ""
        if not self._inside:
            return "", "" if token == rules.closing else token
        if token in (rules.closing, rules.ended_by) and token:
            self._inside = False
            return "", token if token == rules.ended_by else ""
        return self._thought(token, rules), ""

    def _thought(self, token: str, rules: Reasoning) -> str:
        self.tokens += 1
        if self._skip:  # the channel's name, which comes in pieces
            if self._skip.startswith(token):
                self._skip = self._skip[len(token) :]
                return ""
            self._skip = ""
        if rules.trimmed:
            token = self._held + token
            shown = token.rstrip() if self.tokens > 1 else token
            self._held = token[len(shown) :]
            return shown
        return token


class ToolStream:
    """Turns the text after the thoughts into content and tool-call deltas, one token at a time."""

    def __init__(self, form: Format, schemas: Schemas, new_id: Callable[[], str], live: bool = True) -> None:
        self._form, self._schemas, self._new_id, self._live = form, schemas, new_id, live
        self._region = self._blank = ""
        self._inside = self._started = False
        self._named = False  # the name of the running hermes call is out
        self._streamed = 0  # characters of its arguments that are out
        self.calls = 0

    def feed(self, token: str) -> list[Delta]:
        form = self._form
        if not self._inside:
            short = len(form.opening) == 1 or form.opening.isalpha()
            if self._opens(token, short):
                self._inside, self._region, self._named, self._streamed = True, token, False, 0
                return []
            return self._content(token)
        self._region += token
        if form.closing and form.closing in token:
            deltas = self._emit(final=True)
            self._inside = False
            return deltas
        return self._emit(final=False)

    def finish(self) -> list[Delta]:
        """What comes out when the model stops inside a region."""
        if not self._inside:
            return []
        self._inside = False
        return self._emit(final=True, cut=bool(self._form.closing))

    def _content(self, token: str) -> list[Delta]:
        if not token.strip() and (self.calls or not (self._started or self._form.null_content)):
            if not self.calls:  # line breaks before a call are lost, before text they are not
                self._blank += token
            return []
        token, self._blank = self._blank + token, ""
        self._started = True
        return [{"content": token}] if token else []

    def _opens(self, token: str, short: bool) -> bool:
        opening = self._form.opening
        if short:
            return not self._started and token.lstrip().startswith(opening[:5])
        return token == opening

    def _emit(self, final: bool, cut: bool = False) -> list[Delta]:
        if self._form.null_content:
            return self._emit_hermes()
        if not final:
            return []
        deltas: list[Delta] = []
        for call in self._form.read(self._region, self._schemas):
            deltas += self._call_deltas(call)
        if not deltas and self._form.closing == "" and self._live:
            return [{"content": self._region}]  # a whole-output format that turned out to be text
        return deltas

    def _call_deltas(self, call: Call) -> list[Delta]:
        index, self.calls = self.calls, self.calls + 1
        if not self._live:  # tool_choice none: such a parser drops the markup
            return []
        first: Delta = {"id": self._new_id(), "type": "function", "index": index, "function": {"name": call.name}}
        if self._form.one_delta:
            first["function"]["arguments"] = call.arguments
            return [{"tool_calls": [first]}]
        parts = re.findall(r'"(?:[^"\\]|\\.)*"\S? ?|[^"]+', call.arguments)
        return [
            {"tool_calls": [first]},
            *({"tool_calls": [{"index": index, "function": {"arguments": p}}]} for p in parts),
        ]

    def _emit_hermes(self) -> list[Delta]:
        """hermes streams a call while it is written: the name when it is known, then the arguments as they come."""
        body, closing, _ = self._region.removeprefix(self._form.opening).partition(self._form.closing)
        body = body.strip()
        calls: list[Delta] = []
        if not self._named:
            name = re.search(r'"name"\s*:\s*"([^"]+)"', body)
            if not name:
                return []
            self._named, self.calls = True, self.calls + 1
            calls.append({"id": self._new_id(), "type": "function", "index": self.calls - 1,
                          "function": {"name": name[1]}})  # fmt: skip
        arguments = _hermes_arguments(body, whole=bool(closing))
        if len(arguments) > self._streamed:
            calls.append({"index": self.calls - 1, "function": {"arguments": arguments[self._streamed :]}})
            self._streamed = len(arguments)
        return [{"content": None, "tool_calls": calls}] if calls else []


def _hermes_arguments(body: str, whole: bool) -> str:
    """The text of a call's arguments so far. Only of a whole call the last brace is known to be the call's own."""
    found = re.search(r'"arguments"\s*:\s*', body)
    if not found:
        return ""
    text = body[found.end() :]
    return text.removesuffix("}").rstrip() if whole or _is_json(body) else text


def parse(
    tokens: Iterable[str],
    rules: Reasoning | None,
    thinking: bool,
    form: Format | None,
    schemas: Schemas,
    tools_live: bool,
) -> Message:
    """The whole answer at once, as vLLM does without `stream`. It differs from the stream where vLLM's differs."""
    splitter = ReasoningSplitter(rules, thinking)
    thoughts, text = "", ""
    for token in tokens:
        thought, content = splitter.feed(token)
        thoughts, text = thoughts + thought, text + content
    message = Message(text or None, thoughts or None, reasoning_tokens=splitter.tokens)
    if form is None or not text:
        message.content = text if rules is None else text or None
        return message
    return _with_calls(message, text, form, schemas, tools_live)


def _with_calls(message: Message, text: str, form: Format, schemas: Schemas, live: bool) -> Message:
    short = len(form.opening) == 1 or form.opening.isalpha()
    at = (0 if text.lstrip().startswith(form.opening) else -1) if short else text.find(form.opening)
    if at < 0 or (not live and form.keeps_markup_on_none):
        return message
    calls = form.read(text[at:], schemas)
    if not form.salvages_cut:
        calls = [c for c in calls if _is_json(c.arguments)]
    if not calls and form.unreadable == "raw":
        return message
    before = text[:at].strip() if live and form.strips_content else text[:at]
    message.content = before if before.strip() else None
    message.calls = calls if live else []
    return message


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


__all__ = ["Delta", "Message", "Reasoning", "ReasoningSplitter", "ToolStream", "parse", "pieces", "reasoning_of"]
