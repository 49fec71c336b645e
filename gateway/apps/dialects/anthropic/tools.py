"""The tools of a Messages body as those of a chat."""

from __future__ import annotations

from typing import Any

from gateway.apps.dialects.anthropic.turns import Block, ChatMessages
from gateway.apps.dialects.fields import an_object, brief, expected, invalid, string

_SEARCH = "tool_search_tool"  # prefix of the types of Anthropic's own search among deferred tools
# Prefixes of the types of tools that Anthropic's servers run -> Claude Code's name for the tool, "" = it has none.
_RUN_BY_ANTHROPIC = {"web_search_": "WebSearch", "web_fetch_": "WebFetch", "code_execution_": "", "mcp_toolset": ""}
_LISTED_MOST = 300  # characters of the tools that one error names
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_tools(tools: list[Any], turns: ChatMessages, choice: Any = None) -> list[dict[str, Any]]:
    """The tools that the model may call now. Those that only Anthropic runs are left out (`turns.left_out`), unless
    `choice` demands one. A tool with `defer_loading` is left out until the conversation has loaded
    it, and then comes last, so that the beginning of the prompt stays the same. With Anthropic's own tool search no
    tool is deferred, because no other server can search."""
    declared = [an_object(tool, f"tools.{i}") for i, tool in enumerate(tools)]
    added = [(where, tool) for where, tool in turns.added.values()]
    own = [(f"tools.{i}", tool) for i, tool in enumerate(declared) if not _kind(tool).startswith(_SEARCH)]
    foreign = [(where, tool) for where, tool in [*own, *added] if _is_foreign(tool)]
    if foreign and _demands(choice, [tool for _, tool in foreign], callable_=len(own) + len(added) > len(foreign)):
        _refuse_foreign(foreign)
    turns.left_out = list(dict.fromkeys(_kind(tool) for _, tool in foreign))
    searched = any(_kind(tool).startswith(_SEARCH) for tool in declared)
    offered: dict[str, Block] = {}
    deferred: dict[str, Block] = {}
    for i, tool in enumerate(declared):
        if _kind(tool).startswith(_SEARCH) or _is_foreign(tool):
            continue
        waits = tool.get("defer_loading") is True and not searched
        (deferred if waits else offered)[string(tool, "name", f"tools.{i}")] = tool
    offered |= {name: deferred[name] for name in turns.loaded if name in deferred}
    offered |= {name: tool for name, (_, tool) in turns.added.items() if not _is_foreign(tool)}
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


def _kind(tool: Block) -> str:
    kind = tool.get("type")
    return kind if isinstance(kind, str) else "custom"


def _demands(choice: Any, foreign: list[Block], *, callable_: bool) -> bool:
    """Does the client demand a call of a tool that nobody here can run?"""
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "tool":
        return choice.get("name") in [tool.get("name") for tool in foreign]
    return kind == "any" and not callable_


def _refuse_foreign(foreign: list[tuple[str, Block]]) -> None:
    """Raises one error for all tools that only Anthropic runs, or whose parameters only its models know: told of one
    after the other, a client would need as many attempts. `foreign`: (where, tool)."""
    first, _ = foreign[0]
    listed = "; ".join([_described(foreign[0][1]), *(f"`{where}` {_described(tool)}" for where, tool in foreign[1:])])
    if len(listed) > _LISTED_MOST:
        listed = listed[:_LISTED_MOST] + "..."
    kinds = [_kind(tool) for _, tool in foreign]
    run = [next((p for p in _RUN_BY_ANTHROPIC if kind.startswith(p)), None) for kind in kinds]
    do = "Leave it out, or add `input_schema`." if None in run else "Leave it out."
    if names := sorted({_RUN_BY_ANTHROPIC[prefix] for prefix in run if prefix} - {""}):
        do += f" In Claude Code: --disallowedTools {','.join(names)}."
    raise invalid(first, f"{listed}: only Anthropic's servers run or define that. {do}", unsupported=True)


def _is_foreign(tool: Block) -> bool:
    return _kind(tool) != "custom" and "input_schema" not in tool


def _described(tool: Block) -> str:
    """`is 'web_search' of type 'web_search_20250305'`"""
    name = tool.get("name")
    return f"is {brief(name) if isinstance(name, str) else 'a tool'} of type {brief(_kind(tool))}"


def _function(name: str, tool: Block) -> dict[str, Any]:
    function = {"name": name, "description": tool.get("description"), "parameters": tool.get("input_schema")}
    if isinstance(tool.get("strict"), bool):
        function["strict"] = tool["strict"]
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}
