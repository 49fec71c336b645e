"""`tool_choice` required and named on Ollama, which supports neither: the call is requested as structured output. Pure.

`tools` cannot be sent along: with them Ollama's own parsers look for calls in the answer, and llama-server chooses its
own grammar. So the tools are described in the system message, and `format` is the schema of one call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from gateway.engines.base import InexpressibleRequest
from gateway.engines.ollama.reply import CalledFunction, OllamaLine, OllamaMessage, ToolCall
from gateway.engines.ollama.schema import Definitions, Schema
from gateway.inspection.offered_tools import OfferedTools

HELD_MOST = 1024 * 1024  # bytes: a longer text cannot be a call

_CHOICES = '`tool_choice` must be none, auto, required, or {"type": "function", "function": {"name": ...}}.'


@dataclass(frozen=True, slots=True)
class RequiredCall:
    """A required call. `format` is the schema of its JSON, `instructions` the text for the system message."""

    offered: OfferedTools
    format: Schema
    instructions: str

    def call_in(self, text: str) -> ToolCall | None:
        """The call that an answer's text is; None if it is no call of an offered tool with all required arguments."""
        try:
            written = _decode_call(text)
            given = written.parameters if written.arguments is msgspec.UNSET else written.arguments
            if isinstance(given, msgspec.UnsetType):
                return None
            arguments = _decode_object(given)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None
        if written.name not in self.offered or not self.offered.required(written.name) <= set(arguments):
            return None
        return ToolCall(CalledFunction(written.name, given))

    def instruct(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The messages with the instructions added. Many templates take only one system message, as the first."""
        first = messages[0]
        if first["role"] != "system":
            return [{"role": "system", "content": self.instructions}, *messages]
        return [{**first, "content": f"{first['content']}\n\n{self.instructions}"}, *messages[1:]]


class _WrittenCall(msgspec.Struct):
    """A call as a model writes it. Models use one of two keys for the arguments."""

    name: str
    parameters: Raw | msgspec.UnsetType = msgspec.UNSET
    arguments: Raw | msgspec.UnsetType = msgspec.UNSET


_decode_call = msgspec.json.Decoder(_WrittenCall).decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


def read_required_call(tools: Any, choice: Any) -> RequiredCall | None:
    """The call that `tool_choice` requires; None if it requires none. Raises Refused."""
    if choice in (None, "auto", "none"):
        return None
    named = _name(choice) if choice != "required" else None
    if not tools:
        raise InexpressibleRequest("When using `tool_choice`, `tools` must be set.", "tool_choice")
    functions = _functions(tools)
    if named is not None:
        functions = [function for function in functions if function["name"] == named]
        if not functions:
            raise InexpressibleRequest(f"`tool_choice` names {named!r}, which is not among `tools`.", "tool_choice")
    offered = OfferedTools({"type": "function", "function": function} for function in functions)
    return RequiredCall(offered, _schema_of_call(functions), _instructions(functions))


def _name(choice: Any) -> str:
    function = choice.get("function", choice) if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise InexpressibleRequest(_CHOICES, "tool_choice")
    return name


def _functions(tools: Any) -> list[dict[str, Any]]:
    """The tools as they are described to the model: name, description, parameters."""
    functions = []
    for index, tool in enumerate(tools if isinstance(tools, list) else [tools]):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            where = f"tools[{index}]"
            raise InexpressibleRequest(f"`{where}` must be an object with a `function` that has a `name`.", where)
        described = {
            key: function[key] for key in ("name", "description", "parameters") if function.get(key) is not None
        }
        functions.append(described)
    return functions


def _schema_of_call(functions: list[dict[str, Any]]) -> Schema:
    """The schema of one call of one of these functions. (`parameters`, not `arguments`: since 0.30 Ollama sorts a
    schema's keys, and the model has to write the name first.)"""
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


class RequiredCallReader:
    """Reads the required call from one answer. The text is held until the last line, when it is parsed as a call;
    thoughts are passed on at once. `ignored`: the answer has ended without a call, and its text was passed on
    unchanged."""

    def __init__(self, required_call: RequiredCall) -> None:
        self._required = required_call
        self._parts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._size = 0
        self._called = False  # Ollama itself has parsed a call
        self.ignored = False

    def take(self, line: OllamaLine) -> OllamaLine:
        """The line to pass on instead of `line`."""
        if line.error is not None:
            return line
        message = line.message = line.message or OllamaMessage()
        if any(call.function.name in self._required.offered for call in message.tool_calls or ()):
            self._called = True
        if not self._gave_up():
            self._hold(line, message)
        if line.done:
            self._end(line, message)
        return line

    def _hold(self, line: OllamaLine, message: OllamaMessage) -> None:
        if message.content:
            self._parts.append(message.content)
            self._size += len(message.content.encode(errors="replace"))
        self._logprobs += line.logprobs or ()
        message.content, line.logprobs = None, None
        if self._gave_up():
            self._release(line, message)

    def _gave_up(self) -> bool:
        return self._size > HELD_MOST

    def _end(self, line: OllamaLine, message: OllamaMessage) -> None:
        call = None if self._called else self._required.call_in("".join(self._parts))
        if call is not None:
            message.tool_calls = [call]
            line.done_reason = "stop"  # the one required call is complete, even if the limit cut the text behind it
            return
        self._release(line, message)
        self.ignored = not self._called

    def _release(self, line: OllamaLine, message: OllamaMessage) -> None:
        """Add the held text to this line."""
        message.content = "".join(self._parts) + (message.content or "")
        line.logprobs = [*self._logprobs, *(line.logprobs or ())] or None
        self._parts, self._logprobs = [], []
