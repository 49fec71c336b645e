"""A request body is read once, for the few fields that matter; nothing of it is lost."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from gateway.domain.body import as_number, as_switch
from gateway.domain.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, ENDPOINTS, Endpoint
from gateway.domain.request import NO_MEDIA, SEQUENCES_MOST, find_media, parse
from gateway.errors import GatewayError
from tests.routing.parts import request

unhurried = settings(deadline=None)  # the machine may be busy

KNOWN = [
    *(
        "model",
        "messages",
        "stream",
        "stream_options",
        "n",
        "tools",
        "tool_choice",
        "response_format",
        "prompt",
        "input",
        *("think", "thinking", "chat_template_kwargs", "reasoning_effort", "reasoning"),
    ),
    *("max_tokens", "max_completion_tokens", "temperature", "stop"),
]
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
bodies = st.dictionaries(st.sampled_from(KNOWN) | st.text(max_size=12), values, max_size=8)


def refused(body: bytes, endpoint: Endpoint = CHAT) -> str:
    with pytest.raises(GatewayError) as caught:
        parse(endpoint, body)
    assert (caught.value.code, caught.value.status) == ("invalid_request_body", 400)
    return caught.value.message


@unhurried
@given(body=bodies, model=st.text(min_size=1), endpoint=st.sampled_from(ENDPOINTS), ascii=st.booleans())
def test_any_object_with_a_model_is_a_request_and_keeps_every_field(
    body: dict[str, Any], model: str, endpoint: Endpoint, ascii: bool
) -> None:
    body["model"] = model
    if (as_number(body.get("n")) or 0) > SEQUENCES_MOST:
        body["n"] = SEQUENCES_MOST
    parsed = parse(endpoint, json.dumps(body, ensure_ascii=ascii).encode("utf-8", "surrogatepass"))
    assert parsed.model == model
    if endpoint.chunk_object and (switch := as_switch(body.get("stream"))) is not None:
        body["stream"] = switch
    assert {name: json.loads(bytes(raw)) for name, raw in parsed.fields.items()} == body
    assert parsed.media.bytes >= 0
    assert parsed.choices >= 1
    assert 0 <= parsed.known_text_bytes <= parsed.prompt_bytes <= len(json.dumps(body).encode())
    assert all(type(limit) is int and limit >= 1 for limit in parsed.limits.values())


@unhurried
@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_a_plain_refusal(body: bytes) -> None:
    with contextlib.suppress(GatewayError):
        assert isinstance(parse(CHAT, body).model, str)


@unhurried
@given(values)
def test_a_body_that_is_no_object_with_a_model_is_refused(value: Any) -> None:
    if isinstance(value, dict):
        value.pop("model", None)
    refused(json.dumps(value).encode())


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"[]", "object"),
        (b'"text"', "object"),
        (b"{", "JSON"),
        (b'{"model": "a"', "JSON"),
        (b'{"model": "\xff"}', "`model`"),
        (b"{}", "`model`"),
        (b'{"model": null}', "`model`"),
        (b'{"model": 7}', "`model`"),
        (b'{"model": ""}', "`model`"),
        (b'{"model": ["a"]}', "`model`"),
    ],
)
def test_a_refusal_says_what_is_wrong(body: bytes, word: str) -> None:
    assert word in refused(body)


def test_a_body_nested_too_deeply_is_refused_and_not_a_crash() -> None:
    depth = 200_000
    assert refused(b"[" * depth)
    assert refused(b'{"a":' * depth)
    with contextlib.suppress(GatewayError):
        parse(CHAT, b'{"model":"a","stream":' + b"[" * depth + b"]" * depth + b"}").media  # noqa: B018  # it is worked out when it is read


def test_of_a_repeated_key_the_last_counts_for_us_and_for_the_backend() -> None:
    parsed = parse(CHAT, b'{"model": "allowed", "model": "other"}')
    assert (parsed.model, bytes(parsed.fields["model"])) == ("other", b'"other"')


# -- what it asks for -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "stream"), [(True, True), (False, False), (None, False), ("", False), ({}, False), (2, False)]
)
def test_only_true_asks_for_a_stream(value: Any, stream: bool) -> None:
    asked = request(stream=value)
    assert (asked.stream, json.loads(bytes(asked.fields["stream"]))) == (stream, value)


@pytest.mark.parametrize(
    ("value", "stream"), [("true", True), (1, True), ("YES", True), ("false", False), (0.0, False)]
)
def test_what_servers_take_for_true_or_false_goes_up_as_such(value: Any, stream: bool) -> None:
    """The gateway and the server must not expect different answers."""
    asked = request(stream=value)
    assert (asked.stream, json.loads(bytes(asked.fields["stream"]))) == (stream, stream)


def test_embeddings_do_not_stream() -> None:
    assert request(EMBEDDINGS, input="x", stream=True).stream is False


@pytest.mark.parametrize(
    ("value", "limits"),
    [(5, {"max_tokens": 5}), (None, {}), (0, {}), (-1, {}), (True, {}), (5.0, {}), ("5", {}), ([5], {})],
)
def test_only_a_positive_integer_is_a_limit(value: Any, limits: dict[str, int]) -> None:
    """The rest is for the backend's own error."""
    assert request(max_tokens=value).limits == limits


def test_both_names_of_the_limit_are_read_and_the_larger_counts() -> None:
    asked = request(max_tokens=5, max_completion_tokens=9)
    assert (asked.limits, asked.limit()) == ({"max_tokens": 5, "max_completion_tokens": 9}, 9)
    assert request().limit() is None
    assert request(COMPLETIONS, prompt="x", max_completion_tokens=9).limits == {}


def test_n_and_several_prompts_multiply() -> None:
    assert request(n=3).choices == 3
    assert [request(n=n).choices for n in (None, 0, -2, True, 1.5, "x", 1)] == [1] * 7
    assert [request(n=n).choices for n in ("2", 2.0, "9" * 5000)] == [2, 2, 1], "as servers read it"
    assert request(COMPLETIONS, prompt=["a", "b"], n=2).choices == 4
    assert request(COMPLETIONS, prompt=[[1, 2], [3]]).choices == 2
    assert request(COMPLETIONS, prompt=[1, 2, 3]).choices == 1, "one prompt, given as tokens"
    assert request(COMPLETIONS, prompt=[]).choices == 1


@pytest.mark.parametrize("name", ["stop", "bad_words"])
def test_more_words_than_are_looked_for_at_every_token_are_refused(name: str) -> None:
    with pytest.raises(GatewayError) as error:
        request(CHAT, **{name: ["x"] * 1001})
    assert (error.value.code, error.value.param) == ("invalid_request_body", name)
    assert f"`{name}` has more than 1,000 entries" in error.value.message
    for fine in (["x"] * 1000, "x" * 10_000, None, {"x": 1}):
        assert name in request(CHAT, **{name: fine}).fields


@pytest.mark.parametrize(
    "asked", [{"n": 16_385}, {"n": "99999"}, {"n": 1e300}, {"n": 2, "prompt": ["x"] * 8193}, {"prompt": [[1]] * 16_385}]
)
def test_more_answers_than_a_server_survives_are_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(GatewayError) as error:
        request(COMPLETIONS, **{"prompt": "x", **asked})
    assert error.value.code == "request_too_large"
    assert "more than 16,384 answers (n x prompts)" in error.value.message
    assert request(COMPLETIONS, prompt=["x"] * 8192, n=2).choices == 16_384


@pytest.mark.parametrize(
    ("choice", "meaning"),
    [
        (None, "auto"),
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "function": {"name": "f"}}, "named"),
        ("nonsense", "auto"),
        (7, "auto"),
    ],
)
def test_tool_choice(choice: Any, meaning: str) -> None:
    assert request(tools=[{"type": "function"}], tool_choice=choice).tool_choice == meaning
    assert request(tools=[{"type": "function"}]).tool_choice == "auto"


@pytest.mark.parametrize(("tools", "has"), [([{}], True), ([], False), (None, False), ("x", False), ({}, False)])
def test_tools_are_a_list_with_something_in_it(tools: Any, has: bool) -> None:
    assert request(tools=tools).tools is has


def test_an_empty_list_of_tools_with_space_in_it_is_empty() -> None:
    assert parse(CHAT, b'{"model": "a", "tools": [ \n ]}').tools is False


def test_whether_the_client_asked_for_usage_is_known() -> None:
    assert request(stream_options={"include_usage": True}).wants_usage
    assert not request(stream_options={"include_usage": False}).wants_usage
    assert not request(stream_options=None).wants_usage
    assert request(stream_options={"include_usage": "true"}).wants_usage, "as servers read it"
    assert not request(stream_options={"continuous_usage_stats": "false"}).own_usage
    assert request(stream_options={"include_usage": True, "continuous_usage_stats": True}).own_usage


def test_pictures_and_sound_are_found_and_their_data_is_no_prompt() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 50_000}}
    sound = {"type": "input_audio", "input_audio": {"data": "A" * 10_000, "format": "wav"}}
    asked = request(
        messages=[{"role": "user", "content": [{"type": "text", "text": "what?"}, picture, picture, sound]}]
    )
    assert asked.known_media == NO_MEDIA, "not looked for before somebody asks"
    assert asked.prompt_bytes == asked.known_text_bytes > 110_000
    assert (asked.media.images, asked.media.audio) == (2, True)
    assert asked.media is asked.known_media, "looked for once"
    assert 50 < asked.known_text_bytes < 500


def test_a_file_is_counted_by_the_pages_that_it_may_have() -> None:
    file = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64," + "A" * 150_000}}
    asked = request(messages=[{"role": "user", "content": [file]}])
    assert (asked.media.images, asked.media.pages, asked.media.pictures) == (0, 3, 3)
    assert asked.known_text_bytes < 500


def test_the_prompt_is_messages_and_tools_and_nothing_else() -> None:
    messages = [{"role": "user", "content": "hello"}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    asked = request(messages=messages, tools=tools, metadata={"x": "y" * 1000})
    assert asked.prompt_bytes == len(msgspec.json.encode(messages)) + len(msgspec.json.encode(tools))


# -- thinking ---------------------------------------------------------------------------------------------------------

SAID: list[tuple[dict[str, Any], str | None, bool]] = [
    ({"chat_template_kwargs": {"enable_thinking": True}}, "on", False),
    ({"chat_template_kwargs": {"thinking": False}}, "off", False),
    ({"chat_template_kwargs": {"enable_thinking": "yes", "thinking": None}}, None, False),
    ({"chat_template_kwargs": [True]}, None, False),
    ({"think": True}, "on", False),
    ({"think": False}, "off", False),
    ({"think": "high"}, "on", True),
    ({"think": 1}, None, False),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "on", False),
    ({"thinking": {"type": "disabled"}}, "off", False),
    ({"thinking": {"type": "adaptive"}}, "on", True),
    ({"thinking": True}, None, False),
    ({"reasoning_effort": "low"}, "on", True),
    ({"reasoning_effort": "none"}, "off", True),
    ({"reasoning_effort": None}, None, False),
    ({"reasoning": {"effort": "high"}}, "on", True),
    ({"reasoning": {"effort": "none"}}, "off", True),
    ({"reasoning": {"summary": "auto"}}, None, False),
]


@pytest.mark.parametrize(("body", "thinking", "wish"), SAID)
def test_thinking_is_read_in_all_the_ways_it_is_said(body: dict[str, Any], thinking: str | None, wish: bool) -> None:
    asked = request(**body)
    assert (asked.thinking, asked.thinking_wish) == (thinking, wish)


@pytest.mark.parametrize(("demand", "thinking"), [(body, said) for body, said, wish in SAID if said and not wish])
@pytest.mark.parametrize("effort", ["none", "high"])
def test_a_demand_counts_more_than_a_wish(demand: dict[str, Any], thinking: str, effort: str) -> None:
    asked = request(**{**demand, "reasoning_effort": effort})
    assert (asked.thinking, asked.thinking_wish) == (thinking, False)


def test_a_demand_wins_over_a_level_that_was_read_before_it() -> None:
    asked = request(think="high", chat_template_kwargs={"enable_thinking": False})
    assert (asked.thinking, asked.thinking_wish) == ("off", False)


WORDS = st.sampled_from(["image_url", "input_audio", "text", '"image_url"', "image", 5, None])
PARTS = st.dictionaries(st.sampled_from(["type", "text", "image_url", "x"]), WORDS, max_size=3)
CONTENTS = st.one_of(WORDS, st.lists(st.one_of(PARTS, WORDS), max_size=4), PARTS)


@given(st.lists(st.one_of(st.dictionaries(st.sampled_from(["content", "role"]), CONTENTS), WORDS), max_size=4))
def test_media_are_found_in_the_parts_of_messages_and_nowhere_else(messages: list[Any]) -> None:
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content if isinstance(part, dict)]
    media = [part for part in parts if part.get("type") in ("image_url", "input_audio")]
    found = find_media(Raw(msgspec.json.encode(messages)))
    assert found.images == sum(part["type"] == "image_url" for part in media)
    assert found.audio == any(part["type"] == "input_audio" for part in media)
    assert found.bytes == sum(len(msgspec.json.encode(part)) for part in media)
