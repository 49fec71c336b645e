"""Whatever a client sends is answered by us with a 4xx, or passed on: never with a 500 that says that we failed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.accounting.accounts import estimate
from gateway.apps.cloud.request import chat_arguments, embeddings_arguments
from gateway.apps.dialects.anthropic.request import to_chat
from gateway.apps.dialects.app import read_request
from gateway.apps.dialects.ollama.exchange import READ
from gateway.domain.backend import BackendState
from gateway.domain.endpoints import (
    CHAT,
    COMPACT,
    COMPLETIONS,
    EMBEDDINGS,
    ENDPOINTS,
    IMAGES,
    MESSAGES,
    OLLAMA,
    OLLAMA_CHAT,
    OLLAMA_EMBED,
    OLLAMA_EMBEDDINGS,
    OLLAMA_GENERATE,
    RERANK,
    RESPONSES,
    SCORE,
    SPEECH,
    Endpoint,
)
from gateway.domain.request import parse
from gateway.domain.tokens import silence_budget
from gateway.domain.upstream import UpstreamFailure
from gateway.engines.base import InexpressibleRequest
from gateway.engines.ollama.request import chat_call, completion_call, embeddings_call
from gateway.engines.outgoing import outgoing_fields
from gateway.engines.tokenize import tokenize_body
from gateway.errors import GatewayError
from gateway.routing.conversation_key import affinity_key
from gateway.routing.inspection_policy import policy_for
from gateway.routing.needs import is_task
from gateway.routing.plan import make_plan
from gateway.transport.h1 import H1Client
from simulator import SimVllm
from tests.apps.dialects.parts import response_to_chat
from tests.raw_client import raw_client
from tests.routing.parts import NOW, alias, backend, fleet
from tests.scripted import Turn, json_answer, scripted
from tests.support import PATIENCE, RunningGateway, running_gateway

# -- values that are wrong somewhere ----------------------------------------------------------------------------------

DEEP = [depth for near in (330, 500, 990, 1000, 1024) for depth in range(near - 12, near + 12, 3)]
ODD = [
    b"1" + b"0" * 399, b"9" * 5000, b"-1", b"-0", b"0", b"1.0", b"1e3", b"1e400", b"-1e999", b"9223372036854775807",
    b"9223372036854775808", b"18446744073709551616", b"0.1", b"NaN", b"Infinity", b"-Infinity", b"null", b"true",
    b'""', b'"\xff\xfe"', b'"a\xc3"', b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\u0000"', b"[]", b"{}", b"[[]]",
    b"[null]", b"[{}]", b'[""]', b"[1]", b'{"type":1}', b'{"a":"\xff"}', b'["\xff"]', b'{"\xff":1}',
    b'{"effort":1e400}', b'{"type":"function","function":"\xff"}',
    b'[{"role":"user","content":[{"type":"image_url","x":1e400}]}]',
    b'[{"role":"user","content":[{"type":"image_url","image_url":{"url":""},"x":1' + b"0" * 60 + b"}]}]",
    b'[{"type":"function","function":{"name":"\xff"}}]', b'{"include_usage":"\xff"}', b"[1e400]",
    b'"' + b"x" * 9000 + b'"', *(b"[" * depth + b"]" * depth for depth in DEEP),
    *(b'{"a":' * depth + b"1" + b"}" * depth for depth in DEEP),
]  # fmt: skip
NAMES = [
    *(
        "model",
        "messages",
        "prompt",
        "input",
        "system",
        "stream",
        "stream_options",
        "n",
        "tools",
        "tool_choice",
        "stop",
    ),
    *("response_format", "think", "thinking", "reasoning", "reasoning_effort", "chat_template_kwargs", "user", "seed"),
    *("max_tokens", "max_completion_tokens", "prompt_cache_key", "logprobs", "temperature", "options", "format"),
    *("images", "raw", "keep_alive", "template", "context"),
    *(
        "parallel_tool_calls",
        "instructions",
        "text",
        "include",
        "max_output_tokens",
        "previous_response_id",
        "stop_sequences",
        "output_config",
        "metadata",
        "encoding_format",
        "suffix",
        "echo",
        "stop",
    ),
]
POOLED_NAMES = ["query", "documents", "text_1", "text_2", "top_n"]
PROMPT = {
    CHAT.name: b'"messages":[{"role":"user","content":"hello"}]', COMPLETIONS.name: b'"prompt":"hello"',
    EMBEDDINGS.name: b'"input":"hello"',
    MESSAGES.name: b'"messages":[{"role":"user","content":"hello"}],"max_tokens":9',
    RERANK.name: b'"query":"hello","documents":["hello"]', SCORE.name: b'"text_1":"hello","text_2":["hello"]',
    OLLAMA_CHAT.name: b'"messages":[{"role":"user","content":"hello","images":["aGk="]}]',
    OLLAMA_GENERATE.name: b'"prompt":"hello"', OLLAMA_EMBED.name: b'"input":"hello"',
    OLLAMA_EMBEDDINGS.name: b'"prompt":"hello"',
    RESPONSES.name: b'"input":"hello"', COMPACT.name: b'"input":"hello"', SPEECH.name: b'"input":"hello","voice":"v"',
    IMAGES.name: b'"prompt":"hello"',
}  # fmt: skip


def with_field(endpoint: Endpoint, name: str, value: bytes) -> bytes:
    """A right body whose field `name` is that (a second time, if it had it: the last one counts)."""
    return b'{"model":"a",%b,"%b":%b}' % (PROMPT[endpoint.name], name.encode(), value)


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.sampled_from([10**25, 10**399, -(10**399), 2**63, 2**63 - 1])
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["user", "auto", "required", "function", "text", "image_url", "json_schema", "enabled", "\0"])
)
keys = st.sampled_from(["type", "role", "content", "function", "name", "text", "mode", "effort", "json_schema", "id"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys | st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """JSON objects of known fields that hold anything; now and then not quite JSON."""
    fields = draw(st.dictionaries(st.sampled_from(NAMES + POOLED_NAMES), values, max_size=5))
    if draw(st.integers(0, 3)):
        fields["model"] = "a"
    body = json.dumps(fields).encode("utf-8", "surrogatepass")
    for _ in range(draw(st.integers(0, 1))):
        at = draw(st.integers(0, len(body)))
        body = body[:at] + draw(st.sampled_from([b"\xff", b'"', b"]", b"\x00", b"1e400", b"\\ud800"])) + body[at + 1 :]
    return body


# -- all that is done with a body before it is sent -------------------------------------------------------------------

STATES = [
    backend("vllm"), backend("small", context=200), backend("ollama", engine="ollama", model="m"),
    backend("cloud", engine="openai", cloud=True, model="m"),
    backend("switch", thinking_switch="enable_thinking", model="m"),
    backend("effort", thinking_switch="reasoning_effort"),
]  # fmt: skip
ALIASES = [
    alias(*(state.name for state in STATES)),
    alias(*(state.name for state in STATES), thinking="on", min_max_tokens=2000, on_unsupported="strip",
          params={"chat_template_kwargs": {"a": {"b": 1}}, "max_tokens": 5, "stop": {"x": 1}}),
    alias(*(state.name for state in STATES), thinking="off", reasoning_field="reasoning"),
]  # fmt: skip


def as_chat(endpoint: Endpoint, body: bytes) -> bytes:
    if endpoint in (RESPONSES, COMPACT):
        return response_to_chat(body)[0]
    if endpoint in OLLAMA:
        return READ[endpoint](body, lambda model: model).body
    return to_chat(body) if endpoint is MESSAGES else body


def run_through(endpoint: Endpoint, body: bytes) -> None:
    """Raises what is no refusal."""
    try:
        request = parse(endpoint, as_chat(endpoint, body))
    except GatewayError as error:
        refused(error)
        return
    affinity_key(request, None, "me", "a")
    is_task(request)
    assert estimate(request) > 0
    for asked in ALIASES:
        for mode in (None, "mend", "strip"):
            plan = make_plan(asked, fleet(*STATES), request, NOW, resort=mode)
            for candidate in plan.candidates:
                policy_for(request, asked, candidate, NOW)
                silence_budget(request, 100, None, None)
                tokenize_body(candidate.state, request)
                fields, _ = outgoing_fields(request, asked, candidate.state, candidate.adapt)
                msgspec.json.encode(fields)
                asked_elsewhere(request.endpoint, fields, request.stream, candidate.state)


def refused(error: GatewayError) -> None:
    assert 400 <= error.status < 500
    json.loads(error.envelope())


def asked_elsewhere(endpoint: Endpoint, fields: dict[str, msgspec.Raw], stream: bool, state: BackendState) -> None:
    """What the engines with an API of their own make of it."""
    for make in ENGINES_CALLS[endpoint.name]:
        try:
            msgspec.json.encode(make(fields, stream))
        except InexpressibleRequest as refused:
            json.dumps(str(refused.message))


ENGINES_CALLS: dict[str, list[Any]] = {
    "chat": [
        lambda f, s: chat_call(f, stream=s, thinking=None).body,
        lambda f, s: chat_arguments(f, frozenset(["tools", "stop", "max_tokens"]), stream=s),
    ],
    "completions": [lambda f, s: completion_call(f, stream=s).body],
    "embeddings": [lambda f, s: embeddings_call(f).body, lambda f, s: embeddings_arguments(f)],
    "rerank": [],
    "score": [],
}


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: str(endpoint.name))
@pytest.mark.parametrize("name", [*NAMES, *(name for name in POOLED_NAMES if name not in NAMES)])
def test_an_odd_value_in_any_field_is_refused_or_passed_on(endpoint: Endpoint, name: str) -> None:
    for value in ODD:
        if len(value) < 1000:
            run_through(endpoint, with_field(endpoint, name, value))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(ENDPOINTS), bodies())
def test_any_body_is_refused_or_passed_on(endpoint: Endpoint, body: bytes) -> None:
    run_through(endpoint, body)


def test_an_odd_body_to_explain_is_refused_or_explained() -> None:
    for name, value in product(NAMES, ODD):
        try:
            said = msgspec.json.decode(with_field(CHAT, name, value))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        with suppress(GatewayError, RecursionError):  # the latter is answered where the API is (gateway/api)
            read_request("a", said)


@pytest.mark.parametrize("limit", [b"9223372036854775808", b"1" + b"0" * 399, b'"\xff"', b"1.5", b"-1", b"true"])
def test_a_token_limit_that_is_no_number_is_passed_on(limit: bytes) -> None:
    request = parse(CHAT, with_field(CHAT, "max_tokens", limit))
    assert not request.limits
    fields, adapted = outgoing_fields(request, ALIASES[0], STATES[0])
    assert bytes(fields["max_tokens"]) == limit
    assert not adapted


def test_the_largest_limit_is_cut_to_the_window() -> None:
    request = parse(CHAT, with_field(CHAT, "max_tokens", b"9223372036854775807"))
    fields, adapted = outgoing_fields(request, ALIASES[0], STATES[0])
    assert int(bytes(fields["max_tokens"])) < 32768
    assert adapted == ["max_tokens_clamped"]


def test_a_long_name_of_a_model_is_neither_repeated_nor_compared() -> None:
    from gateway.errors import model_not_found

    error = model_not_found("x" * 10_000_000, ["a", "x" * 100])
    assert len(error.message) < 300


# -- as black box -----------------------------------------------------------------------------------------------------

PATHS = [
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages", "/v1/messages/count_tokens",
    "/admin/explain", "/admin/reload", "/tokenize", "/detokenize",
    "/v1/responses/input_tokens",
]  # fmt: skip
WHOLE = [
    b"", b" ", b"\xef\xbb\xbf{}", b"null", b"[]", b'"a"', b"1", b"{", b"{}", b'{"model":1}', b'{"model":""}', b"\x00",
    '{"model":"a"}'.encode("utf-16"), b'{"model":"a"}{}', b'{"model":"\\ud800"}', b'{"model":"\xff"}', b'{"\xff":1}',
    b'{"model":"a","model":"b"}', b'{"model":"nobody\\u0000"}', b'{"model":"' + b"x" * 100_000 + b'"}', b"[" * 100_000,
    b'{"model":"a","messages":' + b"[" * 3000 + b"]" * 3000 + b"}", b'{"a":' * 5000, b"\xff" * 100,
    b'{"alias":"a","tokens":1' + b"0" * 400 + b"}", b'{"alias":["a"]}', b'{"alias":"a","request":[]}',
    b'{"alias":"a","client":{}}', b'{"alias":"a","request":{"messages":"x","tools":{"a":1}}}',
    b'{"alias":"a","request":{"messages":' + b"[" * 990 + b"]" * 990 + b"}}",
]  # fmt: skip


CHOICE = {"index": 0, "message": {"role": "assistant", "content": "a"}, "text": "a", "finish_reason": "stop"}
RESULTS = {"data": [{"index": 0, "embedding": [0.5], "score": 0.5}], "results": [{"index": 0, "relevance_score": 0.5}]}
ANSWER = {"id": "x", "created": 1, "model": "m", "choices": [CHOICE], **RESULTS, "usage": {"prompt_tokens": 1}}
CHUNK = {**ANSWER, "choices": [{**CHOICE, "delta": {"content": "a"}}]}
JSON_BODY = [("content-type", "application/json")]
ANSWERED, STREAMED = json_answer(ANSWER), b"data: " + json.dumps(CHUNK).encode() + b"\n\n"


async def takes_anything(turn: Turn) -> None:
    if b'"stream":true' in turn.body:
        await turn.stream(STREAMED, b"data: [DONE]\n\n")
    else:
        await turn.send(ANSWERED)


@asynccontextmanager
async def gateway_before_one() -> AsyncIterator[RunningGateway]:
    async with scripted(takes_anything) as backend:
        routes = (
            f"backends: {{near: {{url: '{backend.url}', vision: true, tool_parser: hermes}}}}\n"
            "aliases: {a: {use: [near], params: {chat_template_kwargs: {b: {c: 1}}}, min_max_tokens: 2000}}\n"
        )
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("near")
            yield gateway
            assert gateway.gateway.fleet["near"].health.fails == 0


def odd_bodies() -> Iterator[tuple[str, bytes]]:
    yield from product(PATHS, WHOLE)
    for endpoint in ENDPOINTS:
        for name, value in product(POOLED_NAMES if endpoint in (RERANK, SCORE) else NAMES, ODD):
            if len(value) < 1000 or name in ("max_tokens", "messages", "tools", "chat_template_kwargs", "stop"):
                yield "/v1" + endpoint.path, with_field(endpoint, name, value)
    for name in ("messages", "tools", "max_tokens"):
        yield from (("/v1/messages/count_tokens", with_field(MESSAGES, name, value)) for value in ODD)
    for name, value in product(("messages", "chat_template_kwargs", "return_token_strs"), ODD):
        yield "/tokenize", with_field(CHAT, name, value)
    yield from (("/detokenize", b'{"model": "a", "tokens": ' + value + b"}") for value in ODD)


def code_of(said: bytes) -> object:
    """The code in any envelope."""
    error = json.loads(said)
    return error["code"] if isinstance(error["error"], str) else error["error"]["code"]


async def test_no_odd_body_makes_the_gateway_fail(caplog: pytest.LogCaptureFixture) -> None:
    asked = list(odd_bodies())
    async with gateway_before_one() as gateway:
        client = H1Client(("http", "127.0.0.1", int(gateway.url.rpartition(":")[2])), PATIENCE)

        async def ask(path: str, body: bytes) -> None:
            try:
                answer = await client.send("POST", path, JSON_BODY, body)
                said = await answer.read_all(10_000_000)
                answer.release()
            except UpstreamFailure as failure:
                raise AssertionError((path, body[:300])) from failure
            assert answer.status < 500 or code_of(said) not in ("internal_error", None), (
                path, body[:300], said
            )  # fmt: skip
            assert answer.status != 500, (path, body[:300], said)

        for at in range(0, len(asked), 16):
            await asyncio.gather(*(ask(path, body) for path, body in asked[at : at + 16]))
        await client.close()
    assert "Traceback" not in caplog.text


HEADS = [
    "GET /v1/models/%00 HTTP/1.1", "GET /v1/models/%ff%fe HTTP/1.1", "GET /v1/models/%zz HTTP/1.1",
    "GET /%2e%2e/%2e%2e HTTP/1.1", "GET /v1/models/\xff HTTP/1.1", "GET /events?samples=maybe HTTP/1.1",
    "GET /events?samples=%ff HTTP/1.1", "GET /status?%00=%ff&&&=== HTTP/1.1", "GET /status/history?a[]=1 HTTP/1.1",
    "POST /admin/backends/%00/probe HTTP/1.1", "POST /admin/backends/a/probe?now=%ff HTTP/1.1",
    "POST /admin/backends/%F0%9F%98%80/drain HTTP/1.1", "GET /v1/models/a?\xff HTTP/1.1",
    "GET http://elsewhere/v1/models HTTP/1.1", "GET //v1//models HTTP/1.1", "GET /v1/chat/completions HTTP/1.1",
    "OPTIONS * HTTP/1.1", "DELETE /v1/models/a HTTP/1.1", "GET /docs HTTP/1.1", "GET /openapi.json HTTP/1.1",
    "HEAD /v1/models HTTP/1.1",
]  # fmt: skip
FIELDS = [
    "authorization: Bearer \xff", "authorization: \xff", "x-api-key: \xff\xfe", "x-request-id: \xff",
    "traceparent: \xff", "accept: \xff", "accept: text/\xff;q=\xff", "origin: \xff", "origin: http://[",
    "content-encoding: \xff", "content-type: \xff", "anthropic-version: \xff\xfe", "openai-beta: \x7f",
    "x-session-id: \xff", "x-gateway-local-only: \xff", "cookie: \xff", "content-encoding: gzip, gzip",
    "accept-encoding: \xff", "x-forwarded-for: \xff", "authorization:", "authorization: Bearer",
]  # fmt: skip


async def status_of(gateway: RunningGateway, request: bytes) -> int:
    async with raw_client(gateway.url) as client:
        await client.send(request)
        return int((await client.until(b"\r\n")).split(b" ")[1])


@pytest.mark.parametrize("clients", [False, True])
async def test_no_odd_path_query_or_header_makes_the_gateway_fail(
    clients: bool, caplog: pytest.LogCaptureFixture
) -> None:
    body = b'{"model":"a","messages":[{"role":"user","content":"hello"}]}'
    asked = [f"{head}\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode("latin-1") for head in HEADS]
    for path, method in product(
        ("/v1/chat/completions", "/v1/messages", "/status", "/metrics", "/admin/reload"), ("GET", "POST")
    ):
        for field in FIELDS:
            head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{field}\r\nconnection: close\r\n"
            sent = body if method == "POST" else b""
            asked.append(head.encode("latin-1") + b"content-length: %d\r\n\r\n" % len(sent) + sent)
    sim = SimVllm()
    key = "clients: {ann: {key: a-key-of-ann}}\n" if clients else ""
    async with sim.serve() as url, running_gateway(f"{key}backends: {{a: {{url: '{url}'}}}}") as gateway:
        await gateway.until_ready("a")
        for request in asked:
            status = await status_of(gateway, request)
            assert status < 500, (status, request[:200])
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("endpoint", [CHAT, MESSAGES], ids=lambda endpoint: str(endpoint.name))
@pytest.mark.parametrize("value", [b"{}", b"[]", b"0"])
def test_a_body_of_countless_values_is_not_read(endpoint: Endpoint, value: bytes) -> None:
    body = b'{"model":"a","max_tokens":1,"messages":[' + (value + b",") * 8_000_001 + b"{}]}"
    with pytest.raises(GatewayError) as raised:
        to_chat(body) if endpoint is MESSAGES else parse(endpoint, body)
    assert raised.value.code == "request_too_large"
