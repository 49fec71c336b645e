"""A Messages body's own fields as those of a chat body; and whole bodies, as Claude Code sends them."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from gateway.apps.dialects.anthropic.request import to_chat
from gateway.domain.endpoints import CHAT
from gateway.domain.request import parse
from gateway.errors import GatewayError
from tests.apps.dialects.parts import DATA, chat, harmless, recorded, refused, text, turns, user

BILLING = "x-anthropic-billing-header: cc_version=2.1.329.f6c; cc_entrypoint=sdk-cli;"
NOT_SAID: Any = object()

# -- the system prompt ------------------------------------------------------------------------------------------------


def test_the_system_prompt_is_the_first_message() -> None:
    assert turns(user("hi"), system="Be brief.")[0] == {"role": "system", "content": "Be brief."}


def test_a_system_prompt_of_blocks_is_one_message() -> None:
    said = [text("Be brief.", cache_control={"type": "ephemeral"}), text("Be kind.")]
    assert turns(user("hi"), system=said) == [
        {"role": "system", "content": "Be brief.\nBe kind."},
        {"role": "user", "content": "hi"},
    ]


def test_claude_codes_billing_block_is_left_out() -> None:
    assert turns(user("hi"), system=[text(BILLING), text("Be brief.")])[0]["content"] == "Be brief."


@pytest.mark.parametrize("said", [None, "", [], [text("")], [text(BILLING)]])
def test_a_system_prompt_that_says_nothing_is_no_message(said: object) -> None:
    assert turns(user("hi"), system=said) == [{"role": "user", "content": "hi"}]


# -- the other fields -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "became"),
    [
        ({"stop_sequences": ["END", "STOP"]}, {"stop": ["END", "STOP"]}),
        ({"stop_sequences": []}, {}),
        ({"output_config": {"effort": "high"}}, {"reasoning_effort": "high"}),
        ({"output_config": {}}, {}),
        ({"output_config": None}, {}),
        ({"thinking": {"type": "adaptive", "display": "omitted"}},) * 2,
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}},) * 2,
        ({"thinking": {"type": "disabled"}},) * 2,
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, {"thinking": {"type": "disabled"}}),
        ({"thinking": None}, {}),
        ({"mcp_servers": [], "container": None}, {}),
        ({"n": 3}, {}),
        ({"stream": False}, {"stream": False}),
    ],
)
def test_a_field_becomes_what_a_chat_calls_it(fields: dict[str, Any], became: dict[str, Any]) -> None:
    assert chat(user("hi"), **fields) == chat(user("hi")) | became


@pytest.mark.parametrize("kind", ["enabled", "disabled", "adaptive"])
def test_thinking_is_a_demand_but_adaptive_a_wish(kind: str) -> None:
    said = parse(CHAT, to_chat(json.dumps({"model": "m", "messages": [], "thinking": {"type": kind}}).encode()))
    assert said.thinking == ("off" if kind == "disabled" else "on")
    assert said.thinking_wish is (kind == "adaptive")


@pytest.mark.parametrize("where", ["output_config", "output_format"])
def test_a_schema_for_the_answer_becomes_a_response_format(where: str) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    said: dict[str, Any] = {"type": "json_schema", "schema": schema}
    became = chat(user("hi"), **{where: {"format": said} if where == "output_config" else said})
    wanted = {"name": "answer", "schema": schema, "strict": True}
    assert became["response_format"] == {"type": "json_schema", "json_schema": wanted}
    assert where not in became


def test_what_is_meant_for_anthropics_servers_is_left_out() -> None:
    hints = {
        "metadata": {"user_id": "somebody"},
        "service_tier": "auto",
        "cache_control": {"type": "ephemeral"},
        "context_management": {"edits": []},
        "inference_geo": "us",
        "speed": "fast",
        "betas": ["a-beta"],
    }
    assert chat(user("hi"), **hints) == chat(user("hi"))


@pytest.mark.parametrize("field", ["mcp_servers", "container"])
def test_what_anthropics_servers_would_have_to_run_is_refused(field: str) -> None:
    assert "Anthropic's servers" in refused(field, code="input_unsupported", **{field: [{"name": "x"}]})


def test_everything_else_goes_up_as_it_is() -> None:
    others = {
        "max_tokens": 100,
        "temperature": 0.25,
        "top_k": 7,
        "top_p": 0.5,
        "chat_template_kwargs": {"enable_thinking": False},
        "of_nobody": {"deep": [1, "two"]},
    }
    assert chat(user("hi"), **others) == chat(user("hi")) | others


def test_a_stream_is_asked_for_its_tokens_whatever_the_client_says_of_them() -> None:
    for asked in (True, 1, "true"):
        became = chat(user("hi"), stream=asked, stream_options={"include_usage": False})
        assert became["stream_options"] == {"include_usage": True}
    assert "stream_options" not in chat(user("hi"))


def test_numbers_keep_their_digits() -> None:
    body = b'{"model":"m","messages":[],"seed":12345678901234567890123,"temperature":0.10}'
    assert b'"seed":12345678901234567890123,"temperature":0.10' in to_chat(body)


# -- what is wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "body", "words"),
    [
        ("messages", {"messages": NOT_SAID}, "is missing"),
        ("messages", {"messages": "hi"}, "must be a list, and is 'hi'"),
        ("messages", {"messages": {"role": "user"}}, "must be a list, and is of type dict"),
        ("messages.0", {"messages": ["hi"]}, "must be an object"),
        ("messages.1.role", {"messages": [user("hi"), {"content": "hi"}]}, "is missing"),
        ("messages.1.role", {"messages": [user("hi"), {"role": "tool", "content": ""}]}, "user, assistant or system"),
        ("messages.0.role", {"messages": [{"role": ["user"], "content": "hi"}]}, "is of type list"),
        ("system", {"system": 7}, "must be a string or a list of blocks"),
        ("system", {"system": {"text": "hi"}}, "must be a string or a list of blocks"),
        ("system.1", {"system": [text("a"), "b"]}, "must be an object with a `type`"),
        ("system.0.type", {"system": [{"type": "image"}]}, "must be text, and is 'image'"),
        ("system.0.text", {"system": [{"type": "text", "text": 7}]}, "must be a string"),
        ("thinking.type", {"thinking": {"type": "hard"}}, "enabled, disabled or adaptive"),
        ("thinking.type", {"thinking": "on"}, "is missing"),
        ("thinking.type", {"thinking": {"type": {}}}, "is of type dict"),
    ],
)
def test_a_field_of_the_wrong_kind_is_named_with_what_it_must_be(field: str, body: dict[str, Any], words: str) -> None:
    given = {"messages": [user("hi")], **body}
    fields = {name: value for name, value in given.items() if value is not NOT_SAID}
    with pytest.raises(GatewayError) as caught:
        to_chat(json.dumps({"model": "m", **fields}).encode())
    assert (caught.value.code, caught.value.param) == ("invalid_request_body", field)
    assert caught.value.message.startswith(f"`{field}` ")
    assert words in caught.value.message
    assert harmless(caught.value)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"hi"', b'{"model": "m"', b'{"model": "\xff"'])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(GatewayError) as caught:
        to_chat(body)
    assert caught.value.code == "invalid_request_body"


DEEP = {
    "a block": '{"model":"m","messages":[{"role":"user","content":[{"type":"of_nobody","x":%s}]}]}',
    "a call": '{"model":"m","messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"b",'
    '"input":{"x":%s}}]}]}',
    "a tool": '{"model":"m","messages":[],"tools":[{"name":"x","input_schema":%s}]}',
    "a schema": '{"model":"m","messages":[],"output_config":{"format":{"schema":%s}}}',
    "a field": '{"model":"m","messages":[],"of_nobody":%s}',
}


def readable(body: str) -> bool:
    """Is it translated? Else it must be refused: any other exception fails the test."""
    with contextlib.suppress(GatewayError):
        to_chat(body.encode())
        return True
    return False


@pytest.mark.parametrize("where", DEEP)
def test_deep_nesting_is_translated_or_refused(where: str) -> None:
    """At every depth around the deepest that can be read at all: what was read may have to be written one deeper."""

    def fits(depth: int) -> bool:
        return readable(DEEP[where] % ("[" * depth + "]" * depth))

    low, high = 1, 4096
    assert fits(low)
    while fits(high):  # how deep a body may be depends on the version of Python
        low, high = high, 4 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    for depth in range(low - 8, low + 8):
        fits(depth)


@pytest.mark.parametrize("depth", [10, 200, 300, 470, 900])
def test_search_results_may_hold_others(depth: int) -> None:
    found = '{"type":"search_result","content":[' * depth + '{"type":"text","text":"x"}' + "]}" * depth
    body = '{"model":"m","messages":[{"role":"user","content":[' + found + "]}]}"
    if readable(body):
        assert json.loads(to_chat(body.encode()))["messages"] == [{"role": "user", "content": "x"}]
    else:
        assert depth > 10


# -- Claude Code ------------------------------------------------------------------------------------------------------


def became(name: str) -> dict[str, Any]:
    body = to_chat(recorded(name))
    assert parse(CHAT, body).stream
    found: dict[str, Any] = json.loads(body)
    return found


def names(tools: list[dict[str, Any]]) -> list[str]:
    return [one["function"]["name"] for one in tools]


def test_claude_codes_first_turn_is_a_plain_chat() -> None:
    asked, chat_ = json.loads(recorded("first_turn")), became("first_turn")
    assert asked["system"][0]["text"] == BILLING
    assert [message["role"] for message in asked["messages"]] == ["user", "system"]
    environment = asked["messages"][1]["content"][0]["text"]
    assert chat_["messages"] == [
        {"role": "system", "content": "\n".join(block["text"] for block in asked["system"][1:])},
        {
            "role": "user",
            "content": [
                *({"type": "text", "text": block["text"]} for block in asked["messages"][0]["content"]),
                {"type": "text", "text": f"<system-reminder>\n{environment}\n</system-reminder>"},
            ],
        },
    ]
    first = asked["tools"][0]
    assert chat_["tools"][0] == {
        "type": "function",
        "function": {
            "name": first["name"],
            "description": first["description"],
            "parameters": first["input_schema"],
        },
    }
    assert names(chat_["tools"]) == [one["name"] for one in asked["tools"] if "defer_loading" not in one]
    rest = {name: value for name, value in chat_.items() if name not in ("messages", "tools")}
    assert rest == {
        "model": "main",
        "max_tokens": 32000,
        "thinking": {"type": "adaptive", "display": "omitted"},
        "reasoning_effort": "high",
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_the_tools_that_claude_code_has_searched_for_come_last() -> None:
    first, loaded = became("first_turn"), became("tools_loaded")
    assert names(loaded["tools"]) == [*names(first["tools"]), "WebFetch", "Monitor"]
    assert "DeferredToolPlaceholder" not in names(loaded["tools"])


def test_the_prompt_of_claude_codes_next_turn_begins_with_that_of_the_first() -> None:
    """Else no prefix cache is worth anything."""
    first, loaded = became("first_turn"), became("tools_loaded")
    assert loaded["messages"][:2] == first["messages"]
    assert loaded["tools"][: len(first["tools"])] == first["tools"]
    arguments = {"query": "select:WebFetch,Monitor", "max_results": 5}
    thought, told = loaded["messages"][2:]
    function = thought["tool_calls"][0].pop("function")
    assert (function["name"], json.loads(function["arguments"])) == ("ToolSearch", arguments)
    assert thought == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [{"id": "chatcmpl-tool-1", "type": "function"}],
    }
    assert (told["role"], told["tool_call_id"]) == ("tool", "chatcmpl-tool-1")
    assert all(name in told["content"] for name in ("WebFetch", "Monitor"))


@pytest.mark.parametrize("name", ["first_turn", "tools_loaded"])
def test_the_recorded_requests_have_what_they_were_recorded_for(name: str) -> None:
    asked = json.loads((DATA / f"claude_code_{name}.json").read_text())
    assert {"context_management", "output_config", "metadata", "thinking", "system", "tools"} <= asked.keys()
    assert "cache_control" in asked["system"][1]
    assert any(one.get("defer_loading") for one in asked["tools"])
