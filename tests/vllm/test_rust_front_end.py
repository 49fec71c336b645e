"""vLLM behind its Rust front end (VLLM_USE_RUST_FRONTEND=1): served as well as behind the Python one."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.domain.health_state import State
from simulator import SimVllm
from tests.engines.test_strict import FIELDS, HISTORIES
from tests.inspection.test_answers_rust import of_stream, of_whole
from tests.raw_client import raw_client
from tests.support import RunningGateway, running_gateway

from .asks import CALL, CHAT, WEATHER, chat, script
from .servers import VllmServer

RUST = {"VLLM_USE_RUST_FRONTEND": "1"}
TAG = "<think></think><tool_call>\n%s\n</tool_call>"
OSLO = {"city": "Oslo"}
NAMED = '{"name": "get_weather", "arguments": %s}'
# text of the model -> (content, arguments of the calls)
TEXTS: dict[str, tuple[str, str, list[Any]]] = {
    "a call": (TAG % (NAMED % '{"city": "Oslo"}'), "", [OSLO]),
    "parameters": (TAG % '{"name": "get_weather", "parameters": {"city": "Oslo"}}', "", [OSLO]),
    "arguments first": (TAG % '{"arguments": {"city": "Oslo"}, "name": "get_weather"}', "", [OSLO]),
    "a list": (TAG % ("[" + NAMED % '{"city": "Oslo"}' + "]"), "", [OSLO]),
    "a string": (TAG % (NAMED % '"{\\"city\\": \\"Oslo\\"}"'), "", [OSLO]),
    "null": (TAG % (NAMED % "null"), "", [{}]),
    "a bare word": (TAG % (NAMED % '{"city": Oslo}'), "", [OSLO]),
    "Python": (TAG % (NAMED % "{'city': 'Oslo'}"), "", [OSLO]),
    "a brace too many": (TAG % (NAMED % '{"city": "Oslo"}' + "}"), "", [OSLO]),
    "no closing tag": ("<think></think><tool_call>\n" + NAMED % '{"city": "Oslo"}', "", [OSLO]),
    "two": (TAG % (NAMED % '{"city": "Oslo"}') + "\n" + CALL % "Rome", "", [OSLO, {"city": "Rome"}]),
    "XML": (TAG % "<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>", "", [OSLO]),
    "unclosed thoughts": ("<think>I call " + CALL % "Oslo", "", [OSLO]),
    "prose": ("<think></think>It is called get_weather.", "It is called get_weather.", []),
    "JSON": ('<think></think>{"name": "Ada"}', '{"name": "Ada"}', []),
}  # fmt: skip


@pytest.fixture(scope="module")
def rust_server(venv: Path, pids: Path) -> Iterator[VllmServer]:
    if not list(venv.glob("lib/python*/site-packages/vllm/vllm-rs")):
        pytest.skip("this vLLM brings no Rust front end")
    flags = ("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3", "--shutdown-timeout", "30")
    server = VllmServer("rust", pids, flags, venv, window=2048, env=RUST)
    yield server
    server.stop()


@pytest.fixture
def rust(rust_server: VllmServer) -> VllmServer:
    rust_server.up()
    return rust_server


@asynccontextmanager
async def gateway_of(server: VllmServer, more: str = "") -> AsyncIterator[RunningGateway]:
    routes = f"defaults: {{health: {{canary: none}}}}\nbackends: {{{server.routes('rust')}{more}}}"
    async with running_gateway(routes) as gateway:
        await gateway.until_ready("rust")
        yield gateway


async def test_it_is_recognised(rust: VllmServer) -> None:
    async with gateway_of(rust) as gateway:
        state = gateway.gateway.fleet["rust"]
        assert (state.server, state.reported.front_end, state.window(0.0)) == ("vllm", "rust", 2048)
        assert state.facts.lacks == {}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", TEXTS)
async def test_calls_come_as_calls(rust: VllmServer, name: str, stream: bool) -> None:
    text, content, arguments = TEXTS[name]
    async with gateway_of(rust) as gateway:
        body = chat(model="rust", tools=[WEATHER], stream=stream, **script(text))
        reply = await gateway.client.post(CHAT, json=body)
        assert reply.status_code == 200, reply.text
        found = of_stream(reply.text) if stream else of_whole(reply.json())
        assert (found[0], [json.loads(given) for _, given in found[1]]) == (content, arguments)
        assert found[2] == ("tool_calls" if arguments else "stop")


@pytest.mark.parametrize("name", HISTORIES)
async def test_histories_are_read(rust: VllmServer, name: str) -> None:
    async with gateway_of(rust) as gateway:
        body = {**chat(model="rust", **script("<think></think>x")), "messages": HISTORIES[name]}
        reply = await gateway.client.post(CHAT, json=body)
        assert (reply.status_code, gateway.state("rust")) == (200, State.READY), reply.text


@pytest.mark.parametrize("name", FIELDS)
async def test_numbers_are_read(rust: VllmServer, name: str) -> None:
    async with gateway_of(rust) as gateway:
        body = {**chat(model="rust", **script("<think></think>x")), name: FIELDS[name]}
        assert (await gateway.client.post(CHAT, json=body)).status_code == 200


async def test_what_it_lacks_is_made_of_what_it_has(rust: VllmServer) -> None:
    async with gateway_of(rust) as gateway:
        several = await gateway.client.post(CHAT, json=chat(model="rust", n=2, **script("<think></think>x")))
        assert len(several.json()["choices"]) == 2
        for path, body in {
            "/v1/completions": {"model": "rust", "prompt": ["hi", "ho"], "max_tokens": 3},
            "/v1/messages": {"model": "rust", "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]},
            "/v1/responses": {"model": "rust", "input": "hi", "max_output_tokens": 16},
        }.items():
            assert (await gateway.client.post(path, json=body)).status_code == 200, path
        vectors = await gateway.client.post("/v1/embeddings", json={"model": "rust", "input": "hi"})
        assert (vectors.status_code, vectors.json()["error"]["code"]) == (400, "input_unsupported")
        assert gateway.state("rust") is State.READY


async def test_a_server_that_drains_is_left_and_its_streams_go_on(rust: VllmServer) -> None:
    async with SimVllm("other", served=["tiny"]).serve() as url:
        routes = f"backends: {{{rust.routes('a')}, b: {{url: '{url}'}}}}\naliases: {{chain: [a, b]}}"
        async with running_gateway(routes) as gateway, raw_client(gateway.url) as client:
            await gateway.until_ready("a", "b")
            long = chat(model="chain", stream=True, max_tokens=1500, ignore_eos=True, **script("x", script_eos=0))
            await client.post(CHAT, long)
            await client.until(b'"content":"')
            assert rust.process is not None
            rust.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(30):
                while True:  # a connection that was made before may still be served
                    reply = await gateway.client.post(CHAT, json=chat(model="chain"))
                    assert reply.status_code == 200
                    if reply.headers["x-gateway-backend"] == "b":
                        break
            assert b"stream_interrupted" not in client.seen


async def test_without_a_parser_tools_are_refused_once_with_the_flag(
    venv: Path, pids: Path, http: httpx.AsyncClient
) -> None:
    bare = VllmServer("rust_bare", pids, (), venv, window=2048, env=RUST)
    try:
        bare.up()
        async with gateway_of(bare) as gateway:
            for _ in range(2):
                body = chat(model="rust", tools=[WEATHER], **script("<think></think>" + CALL % "Oslo"))
                reply = await gateway.client.post(CHAT, json=body)
                assert (reply.status_code, reply.json()["error"]["code"]) == (400, "tool_choice_unsupported")
                assert "--tool-call-parser" in reply.json()["error"]["message"]
            assert gateway.state("rust") is State.READY
    finally:
        bare.stop()
