"""The tools of a Messages body: which are offered, in which order, and how one is chosen."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.apps.dialects.anthropic.request import chat_of
from tests.apps.dialects.parts import assistant, call, chat, refused, result, text, tool, user

SEARCH = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
SEARCHED = (
    user("hi"),
    assistant(call("s", "search")),
    user(result("s", [{"type": "tool_reference", "tool_name": name} for name in ("d", "b")])),
)


def offered(*messages: dict[str, Any], tools: list[dict[str, Any]]) -> list[str]:
    """The names of the tools, in their order."""
    return [one["function"]["name"] for one in chat(*messages, tools=tools).get("tools", [])]


def held(*names: str) -> list[dict[str, Any]]:
    return [tool(name, defer_loading=True) for name in names]


def added(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool_addition", "tool": {"type": "tool_reference", "name": name}, **more}


def removed(name: str) -> dict[str, Any]:
    return {**added(name), "type": "tool_removal"}


def defined(definition: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": definition}}


# -- what a tool becomes ----------------------------------------------------------------------------------------------


def test_a_tool_is_a_function() -> None:
    schema = {"type": "object", "properties": {"zone": {"type": "string"}}}
    given = {"name": "now", "description": "The time.", "input_schema": schema, "cache_control": {"type": "ephemeral"}}
    function = {"name": "now", "description": "The time.", "parameters": schema}
    assert chat(user("hi"), tools=[given])["tools"] == [{"type": "function", "function": function}]


def test_what_a_tool_does_not_say_is_not_said() -> None:
    assert chat(user("hi"), tools=[{"name": "now", "type": "custom"}])["tools"] == [
        {"type": "function", "function": {"name": "now"}}
    ]


@pytest.mark.parametrize("strict", [True, False])
def test_strictness_goes_along(strict: bool) -> None:
    assert chat(user("hi"), tools=[tool("now", strict=strict)])["tools"][0]["function"]["strict"] is strict


@pytest.mark.parametrize("kind", ["web_search_20250305", "bash_20250124", "computer_use", "mcp_toolset"])
def test_a_tool_that_only_anthropic_knows_is_refused_where_it_is_demanded(kind: str) -> None:
    foreign = {"type": kind, "name": "x"}
    demand: dict[str, Any] = {"tool_choice": {"type": "tool", "name": "x"}, "code": "input_unsupported"}
    assert kind in refused("tools.1", user("hi"), tools=[tool("now"), foreign], **demand)
    where = "messages.1.content.0.tool.definition"
    later = {"role": "system", "content": [defined(foreign)]}
    refused(where, user("hi"), later, tools=[tool("now")], **demand)
    refused("tools.0", user("hi"), tools=[foreign], tool_choice={"type": "any"}, code="input_unsupported")


@pytest.mark.parametrize("kind", ["web_search_20250305", "bash_20250124", "computer_use", "mcp_toolset"])
def test_a_tool_that_only_anthropic_knows_is_left_out_where_it_is_offered(kind: str) -> None:
    foreign = {"type": kind, "name": "x"}
    later = {"role": "system", "content": [defined({**foreign, "type": "new_tool"})]}
    assert offered(user("hi"), tools=[tool("now"), foreign]) == ["now"]
    assert offered(user("hi"), later, tools=[tool("now"), foreign]) == ["now"]
    assert "tools" not in chat(user("hi"), tools=[foreign], tool_choice={"type": "auto"})
    body = {"model": "m", "messages": [user("hi"), later], "tools": [foreign, foreign]}
    assert chat_of(msgspec.json.encode(body))[1] == [kind, "new_tool"]


def test_one_error_names_every_such_tool_and_what_claude_code_calls_it() -> None:
    search, fetch = {"type": "web_search_20250305", "name": "web_search"}, {"type": "web_fetch_20250910", "name": "get"}
    demand: dict[str, Any] = {"tool_choice": {"type": "tool", "name": "get"}, "code": "input_unsupported"}
    said = refused("tools.0", user("hi"), tools=[search, tool("now"), fetch], **demand)
    assert "'web_search' of type 'web_search_20250305'" in said
    assert "`tools.2` is 'get' of type 'web_fetch_20250910'" in said
    assert said.endswith("Leave it out. In Claude Code: --disallowedTools WebFetch,WebSearch.")
    demand["tool_choice"] = {"type": "any"}
    many = refused("tools.0", user("hi"), tools=[{"type": "x" * 99, "name": "y" * 99}] * 99, **demand)
    assert len(many) < 500
    assert many.endswith("Leave it out, or add `input_schema`.")


def test_one_whose_parameters_are_told_is_a_tool_like_any_other() -> None:
    assert offered(user("hi"), tools=[tool("bash", type="bash_20250124")]) == ["bash"]


def test_no_tools_are_none() -> None:
    assert "tools" not in chat(user("hi"), tools=[])
    assert "tools" not in chat(user("hi"))


# -- tools that are held back -----------------------------------------------------------------------------------------


def test_a_tool_is_held_back_until_a_result_names_it_and_comes_last_then() -> None:
    tools = [*held("b"), tool("a"), *held("c", "d"), tool("search")]
    assert offered(user("hi"), tools=tools) == ["a", "search"]
    assert offered(*SEARCHED, tools=tools) == ["a", "search", "d", "b"]


def test_the_model_is_told_what_it_can_call_now() -> None:
    told = chat(*SEARCHED, tools=held("b", "d"))["messages"][-1]
    assert (told["role"], told["tool_call_id"]) == ("tool", "s")
    assert [line.split()[2] for line in told["content"].splitlines()] == ["d", "b"]


def test_an_addition_loads_a_tool_too() -> None:
    later = {"role": "system", "content": [added("b")]}
    became = chat(user("hi"), later, tools=[*held("b"), tool("a")])
    assert [one["function"]["name"] for one in became["tools"]] == ["a", "b"]
    assert became["messages"] == [{"role": "user", "content": "hi"}], "it is no text"


def test_a_name_that_is_not_declared_loads_nothing() -> None:
    assert offered(*SEARCHED, tools=[tool("a")]) == ["a"]


def test_with_anthropics_own_search_none_is_held_back() -> None:
    assert offered(user("hi"), tools=[SEARCH, *held("b"), tool("a")]) == ["b", "a"]


# -- tools that come and go -------------------------------------------------------------------------------------------


def test_a_tool_that_is_removed_is_offered_no_more_until_it_is_named_again() -> None:
    tools = [tool("a"), tool("b"), *held("c", "d")]
    gone = (*SEARCHED, {"role": "system", "content": [removed("a"), removed("d")]})
    assert offered(*gone, tools=tools) == ["b"]
    assert offered(*gone, assistant("ok"), {"role": "system", "content": [added("a")]}, tools=tools) == ["a", "b"]
    assert offered(*gone, *SEARCHED[1:], tools=tools) == ["b", "d"]


def test_a_tool_may_come_with_its_definition() -> None:
    later = user(defined(tool("b", description="another")), text("go on"))
    assert offered(user("hi"), later, tools=[tool("a")]) == ["a", "b"]
    assert offered(user("hi"), later, tools=[]) == ["b"]
    assert [one["function"]["name"] for one in chat(user("hi"), later)["tools"]] == ["b"]
    [_, changed] = chat(user("hi"), later, tools=[tool("a"), tool("b")])["tools"]
    assert changed["function"]["description"] == "another"


def test_one_that_came_with_its_definition_can_go_again() -> None:
    gone = {"role": "system", "content": [removed("b")]}
    assert offered(user(defined(tool("b"))), assistant("ok"), gone, tools=[tool("a")]) == ["a"]


# -- the choice -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "became"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "now"}, {"type": "function", "function": {"name": "now"}}),
    ],
)
def test_a_choice_becomes_a_chats(choice: dict[str, Any], became: object) -> None:
    one = chat(user("hi"), tools=[tool("now")], tool_choice=choice)
    assert one["tool_choice"] == became
    assert "parallel_tool_calls" not in one
    single = chat(user("hi"), tools=[tool("now")], tool_choice={**choice, "disable_parallel_tool_use": True})
    assert (single["tool_choice"], single["parallel_tool_calls"]) == (became, False)


def test_without_a_choice_nothing_is_said_of_one() -> None:
    assert "tool_choice" not in chat(user("hi"), tools=[tool("now")], tool_choice=None)


@pytest.mark.parametrize("tools", [[], held("now"), None])
def test_where_no_tool_is_offered_none_can_be_chosen(tools: list[dict[str, Any]] | None) -> None:
    choice = {"type": "any", "disable_parallel_tool_use": True}
    became = chat(user("hi"), tool_choice=choice, **({} if tools is None else {"tools": tools}))
    assert became.keys() == {"model", "messages"}


# -- what is wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("tools", {"tools": {"name": "x"}}),
        ("tools", {"tools": None}),
        ("tools.1", {"tools": [tool("x"), "y"]}),
        ("tools.0.name", {"tools": [{"input_schema": {}}]}),
        ("tools.0.name", {"tools": [{"name": ["x"]}]}),
        ("tool_choice", {"tool_choice": "auto"}),
        ("tool_choice", {"tool_choice": ["auto"]}),
        ("tool_choice.type", {"tool_choice": {}}),
        ("tool_choice.type", {"tool_choice": {"type": "required"}}),
        ("tool_choice.type", {"tool_choice": {"type": ["any"]}}),
        ("tool_choice.name", {"tool_choice": {"type": "tool"}}),
    ],
)
def test_what_is_wrong_with_the_tools_is_named_by_its_place(field: str, fields: dict[str, Any]) -> None:
    refused(field, user("hi"), **fields)
