"""The tools of a Messages body as those of a chat."""

from __future__ import annotations

from typing import Any

from gateway.dialects.anthropic.blocks import Block
from gateway.dialects.anthropic.turns import Turns
from gateway.dialects.fields import brief, expected, invalid, string

_SEARCH = "tool_search_tool"  # prefix of the types of Anthropic's own search among deferred tools
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_tools(tools: list[Any], turns: Turns) -> list[dict[str, Any]]:
    """The tools that the model may call now. A tool with `defer_loading` is left out until the conversation has loaded
    it, and then comes last, so that the beginning of the prompt stays the same. With Anthropic's own tool search no
    tool is deferred, because no other server can search."""
    declared = [_checked(tool, f"tools.{i}") for i, tool in enumerate(tools)]
    searched = any(_kind(tool).startswith(_SEARCH) for tool in declared)
    offered: dict[str, Block] = {}
    deferred: dict[str, Block] = {}
    for i, tool in enumerate(declared):
        where = f"tools.{i}"
        if _kind(tool).startswith(_SEARCH):
            continue
        _refuse_foreign(tool, where)
        waits = tool.get("defer_loading") is True and not searched
        (deferred if waits else offered)[string(tool, "name", where)] = tool
    offered |= {name: deferred[name] for name in turns.loaded if name in deferred}
    for name, (where, tool) in turns.added.items():
        _refuse_foreign(tool, where)
        offered[name] = tool
    return [_function(name, tool) for name, tool in offered.items() if name not in turns.removed]


def chat_tool_choice(choice: Any) -> dict[str, Any]:
    """`tool_choice` and `parallel_tool_calls`."""
    if choice is None:
        return {}
    if not isinstance(choice, dict):
        raise expected("tool_choice", "an object with a `type`", choice)
    kind = choice.get("type")
    if kind == "tool":
        translated: object = {"type": "function", "function": {"name": string(choice, "name", "tool_choice")}}
    else:
        translated = _CHOICES.get(kind) if isinstance(kind, str) else None
        if translated is None:
            raise expected("tool_choice.type", "auto, any, tool or none", kind)
    parallel = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") is True else {}
    return {"tool_choice": translated, **parallel}


def _checked(tool: Any, where: str) -> Block:
    if not isinstance(tool, dict):
        raise expected(where, "an object", tool)
    return tool


def _kind(tool: Block) -> str:
    kind = tool.get("type")
    return kind if isinstance(kind, str) else "custom"


def _refuse_foreign(tool: Block, where: str) -> None:
    """Raises for a tool that only Anthropic runs, or whose parameters only its models know."""
    kind = _kind(tool)
    if kind != "custom" and "input_schema" not in tool:
        what = f"is of type {brief(kind)}, which Anthropic alone runs or defines. Leave it out, or add `input_schema`."
        raise invalid(where, what, unsupported=True)


def _function(name: str, tool: Block) -> dict[str, Any]:
    function = {"name": name, "description": tool.get("description"), "parameters": tool.get("input_schema")}
    if isinstance(tool.get("strict"), bool):
        function["strict"] = tool["strict"]
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}
