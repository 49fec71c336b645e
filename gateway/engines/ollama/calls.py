"""`tool_choice` required and named on Ollama, which knows neither: the call is asked for as structured output. Pure.

`tools` cannot go along: with them Ollama's own parsers look for calls in the answer, and llama-server picks a grammar
of its own. So the tools stand in the system message, and `format` is the schema of one call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from gateway.engines.base import Refused
from gateway.engines.ollama.reply import Function, Line, Message, ToolCall
from gateway.engines.ollama.schema import Definitions, Schema
from gateway.inspection.offered_tools import OfferedTools

HELD_MOST = 1024 * 1024  # bytes: a longer text is no call

_CHOICES = '`tool_choice` must be none, auto, required, or {"type": "function", "function": {"name": ...}}.'


@dataclass(frozen=True, slots=True)
class Demand:
    """One call that has to be made. `format` is the schema of its JSON, `instructions` what the model is told."""

    offered: OfferedTools
    format: Schema
    instructions: str

    def call_in(self, text: str) -> ToolCall | None:
        """The call that an answer is; None when it is none, not of an offered tool, or lacks a required argument."""
        try:
            said = _decode_said(text)
            given = said.parameters if said.arguments is msgspec.UNSET else said.arguments
            if isinstance(given, msgspec.UnsetType):
                return None
            arguments = _decode_object(given)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None
        if said.name not in self.offered or not self.offered.required(said.name) <= set(arguments):
            return None
        return ToolCall(Function(said.name, given))

    def instruct(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Ollama's messages with the instructions: many templates take one system message, and only as the first."""
        first = messages[0]
        if first["role"] != "system":
            return [{"role": "system", "content": self.instructions}, *messages]
        return [{**first, "content": f"{first['content']}\n\n{self.instructions}"}, *messages[1:]]


class _Said(msgspec.Struct):
    """Most models have learned one of these two words for a call's arguments."""

    name: str
    parameters: Raw | msgspec.UnsetType = msgspec.UNSET
    arguments: Raw | msgspec.UnsetType = msgspec.UNSET


_decode_said = msgspec.json.Decoder(_Said).decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


def read_demand(tools: Any, choice: Any) -> Demand | None:
    """What `tool_choice` demands; None where the model may do as it likes. Raises Refused."""
    if choice in (None, "auto", "none"):
        return None
    named = _name(choice) if choice != "required" else None
    if not tools:
        raise Refused("When using `tool_choice`, `tools` must be set.", "tool_choice")
    functions = _functions(tools)
    if named is not None:
        functions = [function for function in functions if function["name"] == named]
        if not functions:
            raise Refused(f"`tool_choice` names {named!r}, which is not among `tools`.", "tool_choice")
    offered = OfferedTools({"type": "function", "function": function} for function in functions)
    return Demand(offered, _schema_of_call(functions), _instructions(functions))


def _name(choice: Any) -> str:
    function = choice.get("function", choice) if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise Refused(_CHOICES, "tool_choice")
    return name


def _functions(tools: Any) -> list[dict[str, Any]]:
    """The tools as they are described to the model: name, description, parameters."""
    functions = []
    for index, tool in enumerate(tools if isinstance(tools, list) else [tools]):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            where = f"tools[{index}]"
            raise Refused(f"`{where}` must be an object with a `function` that has a `name`.", where)
        described = {
            key: function[key] for key in ("name", "description", "parameters") if function.get(key) is not None
        }
        functions.append(described)
    return functions


def _schema_of_call(functions: list[dict[str, Any]]) -> Schema:
    """One call of one of these. (`parameters`, not `arguments`: since 0.30 Ollama sorts a schema's keys, and the model
    has to write the name first.)"""
    definitions = Definitions()
    calls: list[Schema] = []
    for function in functions:
        declared = function.get("parameters") or {"type": "object", "properties": {}}
        parameters = definitions.adopt({"type": "object", **declared} if isinstance(declared, dict) else {}, "tools")
        properties = {"name": {"const": function["name"]}, "parameters": parameters}
        calls.append({"type": "object", "properties": properties, "required": list(properties)})
    return definitions.rooted(calls[0] if len(calls) == 1 else {"anyOf": calls})


def _instructions(functions: list[dict[str, Any]]) -> str:
    what = f"the tool {functions[0]['name']}" if len(functions) == 1 else "one of these tools"
    lines = [msgspec.json.encode(function).decode() for function in functions]
    form = '{"name": <the tool\'s name>, "parameters": <an object with its arguments>}'
    return "\n".join(
        [f"Call {what} now. Answer with one JSON object of this form, and nothing else:", form, "Tools:", *lines]
    )


class CallWatch:
    """Follows one answer to a demand. Its text is held until the last line tells whether it is the call; thoughts pass.
    `ignored` = the answer has ended and was none: then the text goes out as it is."""

    def __init__(self, demand: Demand) -> None:
        self._demand = demand
        self._parts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._size = 0
        self._called = False  # Ollama has read a call out of the text itself
        self.ignored = False

    def take(self, line: Line) -> Line:
        """The line as it may go on."""
        if line.error is not None:
            return line
        message = line.message = line.message or Message()
        if any(call.function.name in self._demand.offered for call in message.tool_calls or ()):
            self._called = True
        if not self._gave_up():
            self._hold(line, message)
        if line.done:
            self._end(line, message)
        return line

    def _hold(self, line: Line, message: Message) -> None:
        if message.content:
            self._parts.append(message.content)
            self._size += len(message.content.encode(errors="replace"))
        self._logprobs += line.logprobs or ()
        message.content, line.logprobs = None, None
        if self._gave_up():
            self._release(line, message)

    def _gave_up(self) -> bool:
        return self._size > HELD_MOST

    def _end(self, line: Line, message: Message) -> None:
        call = None if self._called else self._demand.call_in("".join(self._parts))
        if call is not None:
            message.tool_calls = [call]
            line.done_reason = "stop"  # the one call that was asked for is complete, whatever was to follow
            return
        self._release(line, message)
        self.ignored = not self._called

    def _release(self, line: Line, message: Message) -> None:
        """What was held goes out with this line."""
        message.content = "".join(self._parts) + (message.content or "")
        line.logprobs = [*self._logprobs, *(line.logprobs or ())] or None
        self._parts, self._logprobs = [], []
