"""`/v1/messages/count_tokens`: by the tokenizer of a backend, at once, whatever else goes on."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, MutableMapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from gateway.config.load import load_text
from simulator import SimVllm
from tests.scripted import RawReply, raw_post
from tests.support import RunningGateway, running_gateway, without_canaries

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/messages/count_tokens"
KEY, NARROW_KEY = "a-key", "narrow-key"
MOST = 64 * 1024  # bytes of a body
HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
TOOLS = [
    {
        "name": "get_weather",
        "description": "The weather in a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
]
TALK: list[dict[str, Any]] = [
    *HI,
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "tool_use", "id": "a", "name": "get_weather", "input": {"city": "Oslo"}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "rain " * 50}]},
]

ROUTES = """
server: {{max_body: 64KiB}}
defaults: {{health: {{every: 50ms, fail_after: 1, start_grace: 0s}}}}
backends:
  a: {{url: "{a}", slots: 1}}
  b: {{url: "{b}"}}
  plain: {{url: "{plain}", engine: openai, model: m}}
  cloud: {{url: "{cloud}", engine: vllm, cloud: true}}
aliases:
  one: [a]
  pair: [a, b]
  estimated: [plain]
  mixed: [plain, b]
  clouded: [plain, cloud]
clients:
  agent: {{key: {key}}}
  narrow: {{key: {narrow}, aliases: [one]}}
"""


@dataclass
class Stage:
    """`a` has one slot. `plain` and `cloud` are no vLLM of ours: the one can't count, the other may not be asked."""

    gateway: RunningGateway
    sims: dict[str, SimVllm]

    async def ask(
        self, model: str = "one", messages: Any = HI, *headers: str, path: str = PATH, key: str = KEY, **more: Any
    ) -> RawReply:
        body = {"model": model, "messages": messages, **more}
        return await self.send(json.dumps(body).encode(), *headers, path=path, key=key)

    async def send(self, body: bytes, *headers: str, path: str = PATH, key: str = KEY) -> RawReply:
        return await raw_post(self.gateway.url, body, path, [f"x-api-key: {key}", "x-request-id: my-id", *headers])

    def counted(self, outcome: str, alias: str = "", backend: str = "") -> float:
        labels = {"alias": alias, "backend": backend, "endpoint": "count_tokens", "code": outcome}
        return self.gateway.metric("gateway_requests_total", **labels)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncIterator[Stage]:
    sims = {name: SimVllm(name, served=["m"], generic=name == "plain") for name in ("a", "b", "plain", "cloud")}
    async with AsyncExitStack() as stack:
        urls = {name: await stack.enter_async_context(sim.serve()) for name, sim in sims.items()}
        routes = ROUTES.format(**urls, key=KEY, narrow=NARROW_KEY)
        gateway = await stack.enter_async_context(running_gateway(routes))
        await gateway.until_ready("a", "b", "plain")
        yield Stage(gateway, sims)


def picture(size: int) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * size}}


def count(reply: RawReply) -> int:
    assert reply.status == 200, reply.body
    assert reply.json.keys() == {"input_tokens"}
    found: int = reply.json["input_tokens"]
    return found


def by(reply: RawReply) -> str | None:
    return reply.headers.get("x-gateway-backend")


# -- the number -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [{}, {"messages": TALK, "tools": TOOLS}, {"system": "Be brief. " * 20}],
    ids=["a word", "a talk with tools", "a system prompt"],
)
async def test_it_is_what_a_message_is_billed_for(stage: Stage, asked: dict[str, Any]) -> None:
    reply = await stage.ask(**asked)
    assert by(reply) == "a"
    message = await stage.ask(**asked, path="/v1/messages", max_tokens=5)
    assert message.status == 200
    assert count(reply) == message.json["usage"]["input_tokens"]


async def test_it_is_what_a_chat_is_billed_for(stage: Stage) -> None:
    chat = await stage.ask(path="/v1/chat/completions", max_tokens=5)
    assert count(await stage.ask()) == chat.json["usage"]["prompt_tokens"]


@pytest.mark.parametrize("path", ["/messages/count_tokens", PATH + "?beta=true"])
async def test_the_path_is_served_without_v1_and_with_a_query_too(stage: Stage, path: str) -> None:
    assert count(await stage.ask(path=path)) == count(await stage.ask())


async def test_a_request_without_max_tokens_is_counted_and_one_for_a_stream(stage: Stage) -> None:
    assert count(await stage.ask(stream=True, max_tokens=10)) == count(await stage.ask())


# -- who counts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [True, False], ids=["gone", "unhealthy"])
async def test_the_next_backend_counts_where_the_first_is_down(stage: Stage, gone: bool) -> None:
    assert by(await stage.ask("pair")) == "a"
    first = stage.sims["a"]
    if gone:
        await first.kill()
    else:
        first.fault("unhealthy")
    await stage.gateway.until(lambda: stage.gateway.state("a").value == "down")
    reply = await stage.ask("pair")
    if gone:
        await first.revive()
    first.clear("unhealthy")
    await stage.gateway.until_ready("a")
    assert by(reply) == "b"
    assert count(reply) == count(await stage.ask("pair"))


async def test_the_next_backend_counts_where_the_first_fails_to(stage: Stage) -> None:
    with_fault = stage.sims["a"].fault("status", status=500, path="/tokenize", count=1)
    assert by(await stage.ask("pair")) == "b"
    assert with_fault.count == 0
    assert stage.gateway.state("a").value == "ready", "an estimate does as well: its health stays as it is"


async def test_one_that_can_not_count_is_passed_over(stage: Stage) -> None:
    assert by(await stage.ask("mixed")) == "b"


@pytest.mark.parametrize("alias", ["estimated", "clouded"])
async def test_where_nobody_can_count_it_is_estimated(stage: Stage, alias: str) -> None:
    short, long = await stage.ask(alias), await stage.ask(alias, [{"role": "user", "content": "word " * 1000}])
    assert (by(short), by(long)) == (None, None)
    assert 1 <= count(short) < 100
    assert 500 < count(long) < 3000


@pytest.mark.parametrize("alias", ["one", "estimated"])
async def test_pictures_are_estimated_by_their_number_and_not_by_their_bytes(stage: Stage, alias: str) -> None:
    none = count(await stage.ask(alias))
    asked = len(stage.sims["a"].requests)
    one, two, large = [
        await stage.ask(alias, [{"role": "user", "content": shown}])
        for shown in ([picture(4096)], [picture(4096)] * 2, [picture(32768)])
    ]
    assert {by(one), by(two), by(large)} == {None}
    assert len(stage.sims["a"].requests) == asked
    assert none + 100 < count(one) < count(two) - 100
    assert count(large) == count(one)


async def test_a_cloud_is_never_asked(stage: Stage) -> None:
    assert by(await stage.ask("clouded")) is None
    assert stage.sims["cloud"].requests == []
    assert stage.sims["cloud"].seen["/tokenize"] == 0


async def test_only_the_tokenizer_is_asked(stage: Stage) -> None:
    requests = stage.sims["a"].requests
    before = len(requests)
    await stage.ask(messages=TALK, tools=TOOLS, max_tokens=7, temperature=0.5)
    [asked] = requests[before:]
    assert asked.path == "/tokenize"
    assert asked.json.keys() == {"model", "messages", "tools"}
    assert [message["role"] for message in asked.json["messages"]] == ["user", "assistant", "tool"]


async def test_the_backends_are_those_that_are_there_when_the_whole_body_has_come() -> None:
    """routes.yaml may be edited while a large body is on its way."""
    async with AsyncExitStack() as stack:
        old, new = [await stack.enter_async_context(SimVllm(name).serve()) for name in ("old", "new")]
        routes = "backends: {{{name}: {{url: '{url}'}}}}\naliases: {{main: [{name}]}}"
        running = await stack.enter_async_context(running_gateway(routes.format(name="old", url=old)))
        await running.until_ready("old")
        edited = load_text(routes.format(name="new", url=new), environ={}).snapshot
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            await running.gateway.put_in_force(without_canaries(edited))
            await running.until_ready("new")
            return {"type": "http.request", "body": json.dumps({"model": "main", "messages": HI}).encode()}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": PATH, "headers": [], "query_string": b""}
        await running.app(scope, receive, send)
        assert sent[0]["status"] == 200
        assert dict(sent[0]["headers"])[b"x-gateway-backend"] == b"new"


# -- it waits for nobody ----------------------------------------------------------------------------------------------


async def test_it_takes_no_slot_and_needs_none(stage: Stage) -> None:
    sim, state = stage.sims["a"], stage.gateway.gateway.fleet["a"]
    sim.fault("hang_mid", after=1, count=1)
    body = {"model": "one", "messages": HI, "stream": True}
    headers = {"x-api-key": KEY}
    async with stage.gateway.client.stream("POST", "/v1/messages", json=body, headers=headers) as held:
        assert held.status_code == 200
        assert state.inflight == 1
        reply = await stage.ask()
        assert (by(reply), state.inflight) == ("a", 1)
        sim.clear("hang_mid")
    await stage.gateway.until(stage.gateway.idle)
    assert count(await stage.ask()) == count(reply)


# -- errors -----------------------------------------------------------------------------------------------------------


def is_error(reply: RawReply, status: int, kind: str, code: str) -> str:
    """It is Anthropic's envelope, with the ids. Returns the message."""
    assert (reply.status, reply.headers["content-type"], reply.ended) == (status, "application/json", True)
    error = reply.json["error"]
    assert reply.json == {"type": "error", "error": error, "request_id": "my-id"}
    assert (error["type"], error["code"]) == (kind, code)
    assert reply.headers["x-request-id"] == reply.headers["request-id"] == "my-id"
    assert reply.headers["x-should-retry"] == "false"
    message: str = error["message"]
    return message


async def test_an_unknown_model_is_a_404(stage: Stage) -> None:
    before = stage.counted("model_not_found")
    assert "'pairs' does not exist" in is_error(await stage.ask("pairs"), 404, "not_found_error", "model_not_found")
    assert stage.counted("model_not_found") == before + 1


async def test_a_wrong_key_is_a_401(stage: Stage) -> None:
    before = stage.counted("invalid_api_key")
    reply = await stage.ask(key="wrong")
    is_error(reply, 401, "authentication_error", "invalid_api_key")
    assert reply.headers["retry-after"] == "1"
    assert stage.counted("invalid_api_key") == before + 1


async def test_an_alias_of_others_is_a_403(stage: Stage) -> None:
    assert count(await stage.ask("one", key=NARROW_KEY))
    is_error(await stage.ask("pair", key=NARROW_KEY), 403, "permission_error", "model_not_allowed")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "empty"),
        (b"{oops", "not valid JSON"),
        (b'{"messages": []}', "`model`"),
        (b'{"model": "one"}', "`messages`"),
        (b'{"model": "one", "messages": [{"role": "user", "content": 7}]}', "`messages.0.content`"),
        (b'{"model": "one", "messages": [{"role": "user", "content": "\xff"}]}', "`messages`"),
    ],
)
async def test_a_body_that_is_wrong_is_a_400(stage: Stage, body: bytes, words: str) -> None:
    before = stage.counted("invalid_request_body")
    assert words in is_error(await stage.send(body), 400, "invalid_request_error", "invalid_request_body")
    assert stage.counted("invalid_request_body") == before + 1


async def test_what_no_backend_reads_is_a_400(stage: Stage) -> None:
    pdf = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(b"%PDF-").decode()}
    asked = [{"role": "user", "content": [{"type": "document", "source": pdf}]}]
    is_error(await stage.ask(messages=asked), 400, "invalid_request_error", "input_unsupported")


async def test_a_body_that_is_too_large_is_a_413(stage: Stage) -> None:
    before = stage.counted("request_too_large")
    reply = await stage.ask(messages=[{"role": "user", "content": "x" * MOST}])
    assert str(MOST) in is_error(reply, 413, "request_too_large", "request_too_large")
    assert stage.counted("request_too_large") == before + 1


# -- what is told of it -----------------------------------------------------------------------------------------------


async def test_every_answer_has_its_ids_and_is_counted(stage: Stage) -> None:
    exact, guess = stage.counted("200", "one", "a"), stage.counted("200", "estimated")
    for alias in ("one", "estimated"):
        reply = await stage.ask(alias)
        assert reply.headers["x-request-id"] == reply.headers["request-id"] == "my-id"
    assert (stage.counted("200", "one", "a"), stage.counted("200", "estimated")) == (exact + 1, guess + 1)


async def test_without_an_id_of_the_clients_it_gets_one(stage: Stage) -> None:
    body = {"model": "one", "messages": HI}
    answers = [await stage.gateway.client.post(PATH, json=body, headers={"x-api-key": KEY}) for _ in "ab"]
    ids = {answer.headers["request-id"] for answer in answers}
    assert len(ids) == 2
    assert all(answer.headers["x-request-id"] in ids for answer in answers)
