"""The tools of a Responses body as those of a chat."""

from __future__ import annotations

from typing import Any

from gateway.apps.dialects.fields import UntranslatableRequest, brief, expected, string

_CHOICES = ("auto", "required", "none")
_FUNCTION = ("name", "description", "parameters", "strict")


def chat_tools(tools: Any, choice: Any) -> tuple[list[dict[str, Any]], object]:
    """`tools` and `tool_choice` of the chat. `allowed_tools` becomes a shorter list of tools, which every backend
    obeys. Raises GatewayError; for a tool that only OpenAI's servers run, it names the tool."""
    if tools is not None and not isinstance(tools, list):
        raise expected("tools", "a list", tools)
    functions = [_function(tool, f"tools[{i}]") for i, tool in enumerate(tools or [])]
    if choice is None or isinstance(choice, str):
        if choice is not None and choice not in _CHOICES:
            raise expected("tool_choice", "auto, required, none or an object", choice)
        return functions, choice
    if not isinstance(choice, dict):
        raise expected("tool_choice", "a string or an object", choice)
    kind = choice.get("type")
    if kind == "function":
        return functions, {"type": "function", "function": {"name": string(choice, "name", "tool_choice")}}
    if kind == "allowed_tools":
        return _allowed(functions, choice)
    if not isinstance(kind, str):
        raise expected("tool_choice.type", "function or allowed_tools", kind)
    raise _foreign("tool_choice", kind)


def _allowed(functions: list[dict[str, Any]], choice: dict[str, Any]) -> tuple[list[dict[str, Any]], object]:
    mode, allowed = choice.get("mode", "auto"), choice.get("tools")
    if mode not in ("auto", "required"):
        raise expected("tool_choice.mode", "auto or required", mode)
    if not isinstance(allowed, list):
        raise expected("tool_choice.tools", "a list", allowed)
    names = set()
    for i, tool in enumerate(allowed):
        names.add(_function(tool, f"tool_choice.tools[{i}]")["function"]["name"])
    return [tool for tool in functions if tool["function"]["name"] in names], mode


def _function(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise expected(where, "an object", tool)
    kind = tool.get("type")
    if not isinstance(kind, str):
        raise expected(f"{where}.type", "function", kind)
    if kind != "function":
        raise _foreign(where, kind)
    string(tool, "name", where)
    function = {name: tool[name] for name in _FUNCTION if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _foreign(where: str, kind: str) -> Exception:
    what = f"is of type {brief(kind)}, which no backend here can run. Leave it out; `function` is what can be called."
    return UntranslatableRequest(where, what)
