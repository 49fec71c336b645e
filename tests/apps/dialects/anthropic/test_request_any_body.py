"""Any body: it becomes one that the request path accepts, or is refused; and a valid one loses nothing."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.apps.dialects.anthropic.request import to_chat
from gateway.domain.endpoints import CHAT
from gateway.domain.request import parse
from gateway.errors import GatewayError
from tests.apps.dialects.parts import PICTURE, call, harmless, recorded, result, text, tool
from tests.envelope import TRIGGERS

# -- bodies that are wrong somewhere ----------------------------------------------------------------------------------

NAMES = ("type", "text", "content", "name", "source", "tool", "id", "data", "input_schema", "tool_name", "format")
WORDS = (
    *("text", "tool_use", "tool_result", "image", "document", "tool_addition", "base64", "url", "file", "content"),
    *("custom", "auto", "any", "none", "enabled", "system", "assistant", "bash_20250124", "tool_search_tool_bm25"),
    *TRIGGERS,
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(WORDS)
    | st.text(max_size=8)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)

TEXT = text("a")
BLOCKS = [
    *(TEXT, PICTURE, call("a"), result("a", "b"), result("a", [TEXT, PICTURE]), {"type": "of_the_future", "x": [1]}),
    {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
    {"type": "thinking", "thinking": "hm", "signature": ""},
    {"type": "redacted_thinking", "data": "AAAA"},
    {"type": "document", "title": "a", "source": {"type": "text", "data": "b"}},
    {"type": "document", "source": {"type": "content", "content": [TEXT]}},
    {"type": "search_result", "title": "a", "source": "b", "content": [TEXT]},
    result("a", [{"type": "tool_reference", "tool_name": "d"}], is_error=True),
    {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "d"}},
    {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool("e")}},
    {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "c"}},
]
TOOLS = [tool("c", strict=True), tool("d", defer_loading=True), {"type": "bash_20250124", "name": "bash"}]
FIELDS: dict[str, Any] = {
    "system": [TEXT, TEXT],
    "tool_choice": {"type": "tool", "name": "c", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 2048},
    "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    "output_format": {"type": "json_schema", "schema": {}},
    "stop_sequences": ["END"],
    "metadata": {"user_id": "a"},
    "mcp_servers": [],
    "container": None,
    "stream": True,
    "stream_options": {"include_usage": False},
    "n": 2,
}


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """A body of parts that are right, in which some are then dropped or something else altogether."""
    contents = st.lists(st.sampled_from(BLOCKS), max_size=4) | st.just("a")
    messages = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": contents})
    body = {name: FIELDS[name] for name in draw(st.sets(st.sampled_from(sorted(FIELDS)), max_size=4))}
    body |= {"model": "m", "messages": draw(st.lists(messages, max_size=4))}
    if draw(st.booleans()):
        body["tools"] = draw(st.lists(st.sampled_from(TOOLS), max_size=3))
    copied: dict[str, Any] = json.loads(json.dumps(body))  # its parts are its own
    for _ in range(draw(st.integers(0, 3))):
        spoil(draw, copied)
    return copied


def spoil(draw: st.DrawFn, inside: Any) -> None:
    """Something in it, at any depth, is dropped or replaced."""
    while True:
        places = sorted(inside) if isinstance(inside, dict) else range(len(inside))
        if not places:
            return
        place = draw(st.sampled_from(places))
        if isinstance(inside[place], (dict, list)) and draw(st.integers(0, 3)):
            inside = inside[place]
            continue
        if draw(st.booleans()):
            del inside[place]
        else:
            inside[place] = draw(values)
        return


def translated(body: bytes) -> dict[str, Any] | None:
    """What it becomes; None where it is refused, in words that no agent acts on."""
    try:
        became = to_chat(body)
    except GatewayError as refusal:
        error = refusal
    else:
        with contextlib.suppress(GatewayError):  # a model that is missing is no matter of ours
            assert parse(CHAT, became).endpoint is CHAT
        found: dict[str, Any] = json.loads(became)
        return found
    assert error.code in ("invalid_request_body", "input_unsupported")
    assert harmless(error)
    assert len(error.message) < 500
    assert error.param is None or error.message.startswith(f"`{error.param}` ")
    return None


@given(values)
def test_any_json_is_translated_or_refused(body: Any) -> None:
    translated(json.dumps(body).encode())


@settings(max_examples=400)
@given(bodies())
def test_any_body_is_translated_or_refused(body: dict[str, Any]) -> None:
    became = translated(json.dumps(body).encode())
    if became is not None:
        alternate(became["messages"])
        assert became.keys().isdisjoint(("system", "mcp_servers", "container", "metadata", "n", "output_config"))


@given(st.binary(max_size=100))
def test_any_bytes_are_translated_or_refused(body: bytes) -> None:
    translated(body)


@given(st.sampled_from(["first_turn", "tools_loaded"]), st.integers(0), st.binary(min_size=1, max_size=3))
def test_a_real_request_with_wrong_bytes_in_it_is_translated_or_refused(name: str, at: int, wrong: bytes) -> None:
    body = recorded(name)
    at %= len(body)
    translated(body[:at] + wrong + body[at + len(wrong) :])


# -- bodies that are right --------------------------------------------------------------------------------------------


@dataclass
class Conversation:
    """A valid body's messages, and what has to arrive of them. Every text in it is there once."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    texts: dict[str, list[str]] = field(default_factory=lambda: {"user": [], "assistant": []})
    thoughts: list[str] = field(default_factory=list)
    calls: list[tuple[str, str, Any]] = field(default_factory=list)
    results: dict[str, list[str]] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)  # calls without a result yet
    said: int = 0

    def text(self, draw: st.DrawFn) -> str:
        self.said += 1
        return f"<{self.said}>" + draw(st.text(max_size=3))


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    """Turns in any order, calls answered before anything else is said, as Anthropic wants them."""
    made = Conversation()
    for role in draw(st.lists(st.sampled_from(["user", "user", "assistant", "assistant", "system"]), max_size=8)):
        if role == "assistant" and made.waiting and made.messages[-1]["role"] != "assistant":
            role = "user"  # first the results
        add(draw, made, role)
    if made.waiting or not ends_well(made.messages):
        add(draw, made, "user")
    return made


def ends_well(messages: list[dict[str, Any]]) -> bool:
    """The assistant's last turn begins the answer, so it ends with a text, and that with no white space."""
    if not messages or messages[-1]["role"] != "assistant":
        return True
    said = messages[-1]["content"]
    last = said if isinstance(said, str) else said[-1].get("text", "") if said else ""
    return bool(last) and not last[-1].isspace()


def add(draw: st.DrawFn, made: Conversation, role: str) -> None:
    kinds = {"user": ["text"], "assistant": ["text", "thinking", "tool_use", "redacted_thinking"], "system": ["text"]}
    said = [block(draw, made, role, kind) for kind in draw(st.lists(st.sampled_from(kinds[role]), max_size=3))]
    if role == "user":
        said = [answer(draw, made, id_) for id_ in made.waiting] + said
        made.waiting = []
    alone = len(said) == 1 and said[0]["type"] == "text" and draw(st.booleans())
    made.messages.append({"role": role, "content": said[0]["text"] if alone else said})


def block(draw: st.DrawFn, made: Conversation, role: str, kind: str) -> dict[str, Any]:
    said = made.text(draw)
    if kind == "text":
        made.texts["assistant" if role == "assistant" else "user"].append(said)
        return {"type": "text", "text": said}
    if kind == "thinking":
        made.thoughts.append(said)
        return {"type": "thinking", "thinking": said, "signature": ""}
    if kind == "redacted_thinking":
        return {"type": "redacted_thinking", "data": "AAAA"}
    arguments = draw(st.dictionaries(st.text(max_size=3), values, max_size=3)) | {"said": said}
    made.calls.append((f"id-{made.said}", draw(st.sampled_from("ab")), arguments))
    made.waiting.append(f"id-{made.said}")
    return {"type": "tool_use", "id": f"id-{made.said}", "name": made.calls[-1][1], "input": arguments}


def answer(draw: st.DrawFn, made: Conversation, id_: str) -> dict[str, Any]:
    texts = [made.text(draw) for _ in range(draw(st.integers(0, 2)))]
    made.results[id_] = texts
    content: Any = [{"type": "text", "text": text} for text in texts]
    if len(texts) == 1 and draw(st.booleans()):
        content = texts[0]
    return {"type": "tool_result", "tool_use_id": id_, "content": content, "is_error": draw(st.booleans())}


def alternate(chat: list[dict[str, Any]]) -> None:
    """As chat templates want it: the system prompt first if anywhere, then never the same side twice in a row."""
    roles = [message["role"] for message in chat]
    assert "system" not in roles[1:]
    assert all(a != b or a == "tool" for a, b in pairwise(roles))


def joined(content: Any) -> str:
    """`None`: a turn of calls alone."""
    return content if isinstance(content, str) else "".join(part["text"] for part in content or ())


@given(conversations())
def test_nothing_of_a_valid_conversation_is_lost(made: Conversation) -> None:
    became = translated(json.dumps({"model": "m", "messages": made.messages}).encode())
    assert became is not None
    chat = became["messages"]
    for role, texts in made.texts.items():
        told = "".join(joined(message["content"]) for message in chat if message["role"] == role)
        places = [told.find(text) for text in texts]
        assert -1 not in places
        assert places == sorted(places)
    thoughts = "".join(message.get("reasoning_content", "") for message in chat)
    assert thoughts == "".join(made.thoughts)
    calls = [one for message in chat for one in message.get("tool_calls", [])]
    functions = [one["function"] for one in calls]
    assert [
        (one["id"], said["name"], json.loads(said["arguments"])) for one, said in zip(calls, functions, strict=True)
    ] == made.calls
    results = {message["tool_call_id"]: message["content"] for message in chat if message["role"] == "tool"}
    assert results.keys() == made.results.keys()
    assert all(results[id_].endswith("\n".join(texts)) for id_, texts in made.results.items())


@given(conversations())
def test_the_turns_of_a_valid_conversation_alternate_and_results_follow_their_calls(made: Conversation) -> None:
    became = translated(json.dumps({"model": "m", "messages": made.messages}).encode())
    assert became is not None
    alternate(became["messages"])
    waiting: list[str] = []
    for message in became["messages"]:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
        else:
            assert waiting == []
            waiting = [one["id"] for one in message.get("tool_calls", [])]
    assert waiting == []
