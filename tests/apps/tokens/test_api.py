"""`/tokenize` and `/detokenize`: by a server of the alias' own model, beside everything else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from gateway.apps.tokens import api as tokens
from gateway.domain.backend import COUNTS_EACH
from simulator import SimVllm
from tests.scripted import RawReply, Turn, answer, json_answer, raw_post, scripted
from tests.support import RunningGateway, running_gateway
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY, NARROW = "a-key", "narrow-key"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
PATHS = [TOKENIZE, DETOKENIZE, "/v1" + TOKENIZE, "/v1" + DETOKENIZE]
ROUTES = """
server: {{max_body: 64KiB}}
defaults: {{health: {{every: 50ms, fail_after: 1, start_grace: 0s}}}}
backends:
  a: {{url: "{a}", slots: 1}}
  twin: {{url: "{twin}"}}
  other: {{url: "{other}"}}
  plain: {{url: "{plain}", engine: openai, model: m}}
  cloud: {{url: "{cloud}", engine: vllm, cloud: true}}
aliases:
  one: {{use: [a], params: {{temperature: 0.1, chat_template_kwargs: {{enable_thinking: false}}}}}}
  twins: [a, twin]
  mixed: [a, other, plain]
  clouded: [plain, cloud]
clients:
  agent: {{key: {key}}}
  narrow: {{key: {narrow}, aliases: [twins]}}
"""


@dataclass
class Stage:
    """`a` and `twin` serve one model, `other` another. `plain` and `cloud` are not asked for tokens."""

    gateway: RunningGateway
    sims: dict[str, SimVllm]

    async def ask(self, path: str = TOKENIZE, model: str = "one", key: str = KEY, **body: Any) -> RawReply:
        return await self.send(json.dumps({"model": model, **body}).encode(), path, key)

    async def send(self, body: bytes, path: str = TOKENIZE, key: str = KEY) -> RawReply:
        headers = [f"authorization: Bearer {key}", "x-request-id: my-id"]
        return await raw_post(self.gateway.url, body, path, headers)

    def counted(self, code: str, alias: str = "one", backend: str = "a", endpoint: str = "tokenize") -> float:
        labels = {"alias": alias, "backend": backend, "endpoint": endpoint, "code": code}
        return self.gateway.metric("gateway_requests_total", **labels)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncIterator[Stage]:
    served = {"a": "m", "twin": "m", "other": "another", "plain": "m", "cloud": "m"}
    sims = {name: SimVllm(name, served=[model], generic=name == "plain") for name, model in served.items()}
    async with AsyncExitStack() as stack:
        urls = {name: await stack.enter_async_context(sim.serve()) for name, sim in sims.items()}
        routes = ROUTES.format(**urls, key=KEY, narrow=NARROW)
        gateway = await stack.enter_async_context(running_gateway(routes))
        await gateway.until_ready("a", "twin", "other", "plain")
        yield Stage(gateway, sims)


def error(reply: RawReply, status: int, code: str) -> str:
    assert (reply.status, reply.json["error"]["code"]) == (status, code), reply.body
    message: str = reply.json["error"]["message"]
    return message


# -- what is told -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_tokens_are_told_and_lead_back_to_their_text(stage: Stage, prefix: str) -> None:
    told = await stage.ask(prefix + TOKENIZE, prompt="Hello there", return_token_strs=True)
    assert told.status == 200
    assert told.json.keys() == {"count", "max_model_len", "tokens", "token_strs"}
    assert "".join(told.json["token_strs"]) == "Hello there"
    assert told.json["count"] == len(told.json["tokens"])
    headers = ("x-request-id", "x-gateway-alias", "x-gateway-backend", "content-type")
    assert [told.headers[name] for name in headers] == ["my-id", "one", "a", "application/json"]
    assert (await stage.ask(prefix + DETOKENIZE, tokens=told.json["tokens"])).json == {"prompt": "Hello there"}
    assert stage.counted("200") > 0
    assert stage.counted("200", endpoint="detokenize") > 0


async def test_a_chat_has_as_many_tokens_as_it_is_billed_for(stage: Stage) -> None:
    chat = await stage.ask("/v1/chat/completions", messages=HI, max_tokens=5)
    assert (await stage.ask(messages=HI)).json["count"] == chat.json["usage"]["prompt_tokens"]


async def test_it_takes_no_slot_and_needs_none(stage: Stage) -> None:
    sim, state = stage.sims["a"], stage.gateway.gateway.fleet["a"]
    sim.fault("hang_mid", after=1, count=1)
    body, headers = {"model": "one", "messages": HI, "stream": True}, {"authorization": f"Bearer {KEY}"}
    async with stage.gateway.client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as held:
        assert (held.status_code, state.inflight) == (200, 1)
        assert ((await stage.ask(prompt="x")).status, state.inflight) == (200, 1)
        sim.clear("hang_mid")
    await stage.gateway.until(stage.gateway.idle)


async def test_the_template_is_told_what_the_alias_sets() -> None:
    async def told(turn: Turn) -> None:
        await turn.send(json_answer({"count": 1, "max_model_len": 9, "tokens": [1], "token_strs": None}))

    async with scripted(told, apart=True) as backend:
        params = "{temperature: 0.1, chat_template_kwargs: {enable_thinking: false}}"
        routes = f"backends: {{a: {{url: '{backend.url}'}}}}\naliases: {{one: {{use: [a], params: {params}}}}}\n"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a")
            assert (await raw_post(gateway.url, {"model": "one", "messages": HI}, TOKENIZE)).status == 200
            (turn,) = backend.turns
            sent = {"messages": HI, "chat_template_kwargs": {"enable_thinking": False}, "model": "served/model"}
            assert (turn.path, turn.json) == (TOKENIZE, sent)
            assert not {"x-request-id", "authorization"} & turn.headers.keys()


# -- who is asked -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alias", "by"), [("twins", "twin"), ("mixed", None)])
async def test_only_a_server_of_the_same_model_speaks_for_one_that_fails(
    stage: Stage, alias: str, by: str | None
) -> None:
    stage.sims["a"].fault("status", status=500, path=TOKENIZE, count=1)
    reply = await stage.ask(model=alias, prompt="x")
    if by is not None:
        assert (reply.status, reply.headers["x-gateway-backend"]) == (200, by)
    else:
        message = error(reply, 502, "upstream_error")
        assert "a answered 500" in message
        assert "other serves another model than a" in message
    assert stage.gateway.gateway.fleet["a"].health.fails == 0


@pytest.mark.parametrize("path", PATHS)
async def test_where_none_has_a_tokenizer_it_says_why(stage: Stage, path: str) -> None:
    more = {"tokens": [1]} if "detokenize" in path else {"prompt": "x"}
    message = error(await stage.ask(path, "clouded", **more), 400, "input_unsupported")
    assert "plain has no tokenizer that can be asked" in message
    assert "cloud is a cloud" in message
    assert stage.sims["cloud"].requests == []


# -- who may ask, and what ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
async def test_who_may_not_and_what_is_no_request_is_refused(stage: Stage, path: str) -> None:
    more: dict[str, Any] = {"tokens": [1]} if "detokenize" in path else {"prompt": "x"}
    error(await stage.ask(path, key="wrong", **more), 401, "invalid_api_key")
    error(await stage.ask(path, key=NARROW, **more), 403, "model_not_allowed")
    assert "Did you mean 'twins'?" in error(await stage.ask(path, "twims", **more), 404, "model_not_found")
    error(await stage.send(b'{"model": "one"', path), 400, "invalid_request_body")
    assert "`model`" in error(await stage.send(json.dumps(more).encode(), path), 400, "invalid_request_body")
    error(await stage.send(b" " * 70_000, path), 413, "request_too_large")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TOKENIZE, {}, "prompt"),
        (TOKENIZE, {"prompt": "x", "messages": HI}, "prompt"),
        (TOKENIZE, {"prompt": ["x"]}, "prompt"),
        (TOKENIZE, {"prompt": None}, "prompt"),
        (DETOKENIZE, {}, "tokens"),
        (DETOKENIZE, {"tokens": "x"}, "tokens"),
        (DETOKENIZE, {"prompt": "x"}, "tokens"),
    ],
)
async def test_a_body_without_what_it_is_about_is_refused(
    stage: Stage, path: str, body: dict[str, Any], param: str
) -> None:
    reply = await stage.ask(path, **body)
    assert f"`{param}`" in error(reply, 400, "invalid_request_body")
    assert reply.json["error"]["param"] == param


# -- what backends do --------------------------------------------------------------------------------------------------


async def asked_of(script: Any, *more: Any, body: dict[str, Any] | None = None) -> tuple[RawReply, RunningGateway]:
    async with scripted(script, *more, apart=True) as backend:
        routes = f"backends: {{a: {{url: '{backend.url}'}}}}\naliases: {{one: [a]}}\n"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a")
            reply = await raw_post(gateway.url, {"model": "one", "prompt": "x", **(body or {})}, TOKENIZE)
            return reply, gateway


async def test_a_refusal_of_the_server_is_passed_on() -> None:
    async def refused(turn: Turn) -> None:
        wrong = {"message": "chat template is not allowed", "type": "BadRequestError", "param": "chat_template"}
        await turn.send(json_answer({"error": {**wrong, "code": 400}}, "400 Bad Request"))

    reply, gateway = await asked_of(refused)
    assert (reply.status, reply.json["error"]["message"]) == (400, "chat template is not allowed")
    assert gateway.metric("gateway_requests_total", alias="one", backend="", endpoint="tokenize", code="400") == 1


async def test_a_server_without_the_path_lacks_it() -> None:
    async def missing(turn: Turn) -> None:
        await turn.send(json_answer({"detail": "Not Found"}, "404 Not Found"))

    reply, _ = await asked_of(missing)
    error(reply, 400, "input_unsupported")


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"tokens": 1}', b'{"tokens": ' + b"[" * 2000])
async def test_junk_is_a_failure_of_the_server(body: bytes) -> None:
    async def junk(turn: Turn) -> None:
        await turn.send(answer(body))

    reply, gateway = await asked_of(junk)
    error(reply, 502, "upstream_error")
    assert gateway.gateway.memory.used == 0


async def test_silence_ends_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "WAIT", 0.1)

    async def silent(turn: Turn) -> None:
        await turn.until_lost()

    reply, gateway = await asked_of(silent)
    assert "has not answered" in error(reply, 504, "upstream_timeout")
    assert gateway.gateway.fleet["a"].health.fails == 0


async def test_a_client_that_leaves_takes_its_request_along() -> None:
    lost = asyncio.Event()

    async def silent(turn: Turn) -> None:
        await turn.until_lost()
        lost.set()

    async with scripted(silent, apart=True) as backend:
        routes = f"backends: {{a: {{url: '{backend.url}'}}}}\naliases: {{one: [a]}}\n"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a")
            leaving = asyncio.create_task(raw_post(gateway.url, {"model": "one", "prompt": "x"}, TOKENIZE))
            await until(lambda: backend.turns)
            leaving.cancel()
            async with asyncio.timeout(PATIENCE):
                await lost.wait()
            await until(lambda: gateway.gateway.memory.used == 0)
            labels = {"alias": "one", "backend": "", "endpoint": "tokenize", "code": "client_gone"}
            await until(lambda: gateway.metric("gateway_requests_total", **labels) == 1)
            assert len(gateway.gateway.fleet["a"].counting) == 0


async def test_each_client_has_a_few_texts_split_at_a_time_whatever_others_ask() -> None:
    """A server's tokenizer works in the process that answers everybody."""
    go_on = asyncio.Event()

    async def held(turn: Turn) -> None:
        await go_on.wait()
        await turn.send(json_answer({"count": 1, "max_model_len": 9, "tokens": [1], "token_strs": None}))

    async with scripted(held, apart=True) as backend:
        clients = "clients: {greedy: {key: greedy-key}, other: {key: other-key}}"
        routes = f"backends: {{a: {{url: '{backend.url}'}}}}\naliases: {{one: [a]}}\n{clients}\n"
        async with running_gateway(routes) as gateway, asyncio.timeout(PATIENCE):
            await gateway.until_ready("a")

            def ask(key: str) -> asyncio.Task[RawReply]:
                body, headers = {"model": "one", "prompt": "x"}, [f"authorization: Bearer {key}"]
                return asyncio.create_task(raw_post(gateway.url, body, TOKENIZE, headers))

            asked = [ask("greedy-key") for _ in range(3 * COUNTS_EACH)]
            await until(lambda: len(backend.turns) == COUNTS_EACH and gateway.gateway.memory.used > 0)
            asked.append(ask("other-key"))
            await until(lambda: len(backend.turns) > COUNTS_EACH)
            assert len(backend.turns) == COUNTS_EACH + 1
            go_on.set()
            assert {reply.status for reply in await asyncio.gather(*asked)} == {200}
