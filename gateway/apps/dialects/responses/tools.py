"""The tools of a Responses body as those of a chat.

A chat has functions alone: a tool in a namespace is one whose name has both, and a custom tool, which takes any text,
is one with a single text. Tools that only a cloud runs are left out, unless the client demands one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from gateway.apps.dialects.fields import UntranslatableRequest, an_object, brief, expected, string
from gateway.domain.body import value_of

_CHOICES = ("auto", "required", "none")
_FUNCTION = ("name", "description", "parameters", "strict")
_NAME_MOST = 64  # characters of a function's name
_FORMAT_MOST = 20_000  # characters of a custom tool's grammar, which the model is told

_encode = msgspec.json.Encoder().encode


class ToolName(NamedTuple):
    """The tool that a function of the chat stands for. `custom`: its input is a text."""

    name: str
    namespace: str | None = None
    custom: bool = False


@dataclass(slots=True)
class ChatTools:
    """`names`: by the function's name, where the tool is more than that. `left_out`: types of tools that no chat has.
    `foreign`: where the first of them is, and its type."""

    functions: list[dict[str, Any]] = field(default_factory=list)
    choice: object = None
    names: dict[str, ToolName] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    foreign: tuple[str, str] | None = None


def chat_tools(tools: Any, choice: Any) -> ChatTools:
    """`tools` and `tool_choice` of the chat. `allowed_tools` becomes a shorter list of tools, which every backend
    obeys. Raises GatewayError; for a tool that is demanded and that only OpenAI's servers run, it names the tool."""
    if tools is not None and not isinstance(tools, list):
        raise expected("tools", "a list", tools)
    made = ChatTools()
    for i, tool in enumerate(tools or []):
        _add(made, tool, f"tools[{i}]", None)
    _choose(made, choice)
    if made.choice == "required" and made.foreign is not None and not made.functions:
        raise _foreign(*made.foreign)
    return made


def function_name(name: str, namespace: object) -> str:
    """The name of the function that stands for a tool, in the request and in its history."""
    if not isinstance(namespace, str) or not namespace:
        return name
    flat = re.sub(r"[^a-zA-Z0-9_-]", "_", f"{namespace}__{name}")
    if len(flat) <= _NAME_MOST:
        return flat
    digest = blake2b(f"{namespace}\n{name}".encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{flat[: _NAME_MOST - 9]}_{digest}"


def custom_input(arguments: str) -> str:
    """The text that a custom tool was called with."""
    given = value_of(arguments)
    text = given.get("input") if isinstance(given, dict) else None
    return text if isinstance(text, str) else arguments


def custom_arguments(text: str) -> str:
    """The arguments of the function that stands for a custom tool."""
    return _encode({"input": text}).decode()


def _add(made: ChatTools, tool: Any, where: str, namespace: str | None) -> None:
    tool = an_object(tool, where)
    kind = tool.get("type")
    if not isinstance(kind, str):
        raise expected(f"{where}.type", "function", kind)
    if kind == "namespace" and namespace is None:
        inner = tool.get("tools")
        if not isinstance(inner, list):
            raise expected(f"{where}.tools", "a list", inner)
        for i, one in enumerate(inner):
            _add(made, one, f"{where}.tools[{i}]", string(tool, "name", where))
    elif kind in ("function", "custom"):
        name = string(tool, "name", where)
        flat = function_name(name, namespace)
        if namespace is not None or kind == "custom":
            made.names[flat] = ToolName(name, namespace, kind == "custom")
        function = {one: tool[one] for one in _FUNCTION if tool.get(one) is not None}
        if kind == "custom":
            function = _custom(tool)
        made.functions.append({"type": "function", "function": {**function, "name": flat}})
    else:
        made.left_out.append(kind)
        made.foreign = made.foreign or (where, kind)


def _custom(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A function with one text. The grammar of the text is told, for no server enforces it there."""
    told = [tool["description"]] if isinstance(tool.get("description"), str) else []
    form = tool.get("format")
    if isinstance(form, dict) and isinstance(form.get("definition"), str):
        told.append(f"The input has this {form.get('syntax')} grammar:\n{form['definition'][:_FORMAT_MOST]}")
    text = {"type": "string", "description": "The input of the tool, as it is."}
    parameters = {"type": "object", "properties": {"input": text}, "required": ["input"]}
    return {**({"description": "\n\n".join(told)} if told else {}), "parameters": parameters}


def _choose(made: ChatTools, choice: Any) -> None:
    if choice is None or isinstance(choice, str):
        if choice is not None and choice not in _CHOICES:
            raise expected("tool_choice", "auto, required, none or an object", choice)
        made.choice = choice
        return
    if not isinstance(choice, dict):
        raise expected("tool_choice", "a string or an object", choice)
    kind = choice.get("type")
    if kind in ("function", "custom"):
        name = function_name(string(choice, "name", "tool_choice"), choice.get("namespace"))
        made.choice = {"type": "function", "function": {"name": name}}
    elif kind == "allowed_tools":
        _allow(made, choice)
    elif not isinstance(kind, str):
        raise expected("tool_choice.type", "function or allowed_tools", kind)
    else:
        raise _foreign("tool_choice", kind)


def _allow(made: ChatTools, choice: dict[str, Any]) -> None:
    mode, allowed = choice.get("mode", "auto"), choice.get("tools")
    if mode not in ("auto", "required"):
        raise expected("tool_choice.mode", "auto or required", mode)
    if not isinstance(allowed, list):
        raise expected("tool_choice.tools", "a list", allowed)
    named = ChatTools()
    for i, tool in enumerate(allowed):
        _add(named, tool, f"tool_choice.tools[{i}]", None)
    names = {tool["function"]["name"] for tool in named.functions}
    names |= {
        function_name(tool["name"], tool.get("namespace")) for tool in allowed if isinstance(tool.get("name"), str)
    }
    made.functions = [tool for tool in made.functions if tool["function"]["name"] in names]
    made.choice = mode
    made.foreign = made.foreign or named.foreign


def _foreign(where: str, kind: str) -> Exception:
    what = f"is of type {brief(kind)}, which no backend here can run. Leave it out; `function` is what can be called."
    return UntranslatableRequest(where, what)
