"""The log of a running gateway: a line for each request, in the form that is asked for, and no request suffers."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.ports import free_ports
from gateway.observe.log import LogWriter, as_json
from simulator import SimVllm
from tests.demo_process import GATEWAY, PATIENCE, gateway_ready
from tests.raw_client import chat, raw_client
from tests.support import RunningGateway, running_gateway

CHAT = "/v1/chat/completions"
SECRET = "what-was-asked-in-confidence"
KEY = "the-key-of-hermes"


@asynccontextmanager
async def logged(*sims: SimVllm) -> AsyncIterator[tuple[RunningGateway, Callable[[], list[dict[str, Any]]]]]:
    """The alias `chain` over these, for the client `hermes`; and what the log says of requests that have ended."""
    written: list[bytes] = []

    def write(data: bytes) -> int:
        written.append(data)
        return len(data)

    async with AsyncExitStack() as stack:
        lines = ["backends:"]
        for sim in sims:
            lines.append(f"  {sim.name}: {{url: '{await stack.enter_async_context(sim.serve())}'}}")
        lines += [
            f"aliases: {{chain: [{', '.join(sim.name for sim in sims)}]}}",
            f"clients: {{hermes: {{key: {KEY}}}}}",
        ]
        gateway = await stack.enter_async_context(running_gateway("\n".join(lines)))
        gateway.client.headers["authorization"] = f"Bearer {KEY}"
        await gateway.until_ready(*(sim.name for sim in sims))
        writer = LogWriter(as_json, write)
        gateway.gateway.write_log(writer)

        def read() -> list[dict[str, Any]]:
            writer.close()
            return [json.loads(line) for line in b"".join(written).splitlines()]

        yield gateway, read


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_one_line(stream: bool) -> None:
    async with logged(SimVllm("a")) as (gateway, read):
        usage = (await gateway.client.post(CHAT, json=chat("chain", "20 words"))).json()["usage"]
        asked = chat("chain", "20 words", stream=stream)
        await gateway.client.post(CHAT, json=asked, headers={"x-request-id": "my-request"})
        await gateway.until(gateway.idle)
        line = read()[1]
    told = ("id", "client", "alias", "endpoint", "stream", "backend", "attempts", "outcome", "level")
    assert [line[name] for name in told] == ["my-request", "hermes", "chain", "chat", stream, "a", 1, "200", "info"]
    assert (line["tokens_in"], line["tokens_out"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert line["queued_ms"] == 0
    assert 0 <= line["first_token_ms"] <= line["total_ms"] < 1000 * PATIENCE


async def test_a_fallback_says_who_was_left_and_why() -> None:
    one, two = SimVllm("a"), SimVllm("b")
    async with logged(one, two) as (gateway, read):
        one.fault("status", status=500, count=1)
        answer = await gateway.client.post(CHAT, json=chat("chain"))
        (line,) = read()
    assert (line["backend"], line["attempts"], line["left"], line["level"]) == ("b", 2, ["a: failed"], "warning")
    assert line["fallback"] == answer.headers["x-gateway-fallback"]


async def test_what_was_not_answered_is_a_line_too() -> None:
    sim = SimVllm("a")
    async with logged(sim) as (gateway, read):
        sim.fault("status", status=500, count=1)
        await gateway.client.post(CHAT, json=chat("chain"))
        sim.fault("hang_mid", after=3, count=1)
        async with raw_client(gateway.url) as client:
            await client.post(CHAT, chat("chain", stream=True), f"authorization: Bearer {KEY}")
            await client.until(b'"content"')
        await gateway.until(gateway.idle)
        await gateway.client.post(CHAT, json=chat("unheard-of"))
        await gateway.client.post(CHAT, content=b"{")
        await gateway.client.post(CHAT, json=chat("chain"), headers={"authorization": "Bearer wrong"})
        found = [(line["outcome"], line["client"], line["alias"], line["backend"]) for line in read()]
    assert found == [
        ("upstream_error", "hermes", "chain", "a"),
        ("client_gone", "hermes", "chain", "a"),
        ("model_not_found", "hermes", "", ""),
        ("invalid_request_body", "hermes", "", ""),
        ("invalid_api_key", "open", "", ""),
    ]


async def test_prompts_answers_and_keys_are_not_logged() -> None:
    async with logged(SimVllm("a")) as (gateway, read):
        await gateway.client.post(CHAT, json={**chat("chain", SECRET), "vllm_xargs": {"script": SECRET}})
        await gateway.client.post(CHAT, json=chat(SECRET))
        await gateway.client.post(CHAT, json=chat("chain"), headers={"x-request-id": f"{SECRET} {SECRET}"})
        await gateway.client.post(CHAT, json=chat("chain"), headers={"authorization": f"Bearer {SECRET}"})
        lines = read()
    assert len(lines) == 4
    assert SECRET not in str(lines)
    assert KEY not in str(lines)


# -- as a process -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(folder: Path, form: str, stderr: int) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`gateway serve` with its log there; ready. Its URL."""
    port = free_ports(1)
    async with SimVllm("a").serve() as url:
        routes = folder / "routes.yaml"
        server = f"server: {{data: '{folder}/state', log: {form}}}"
        routes.write_text(f"{server}\nbackends: {{a: {{url: '{url}', health: {{canary: none}}}}}}\n")
        command = [str(GATEWAY), "serve", "--config", str(routes), "--host", "127.0.0.1", "--port", str(port)]
        gateway = await asyncio.create_subprocess_exec(*command, stderr=stderr)
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
                await gateway_ready(client)
            yield gateway, f"http://127.0.0.1:{port}"
        finally:
            if gateway.returncode is None:
                gateway.kill()
                await gateway.wait()


async def ask(url: str, times: int = 1) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE, trust_env=False) as client:
        for _ in range(times):
            assert (await client.post(url + CHAT, json=chat("a"))).status_code == 200


async def stop(gateway: asyncio.subprocess.Process) -> None:
    gateway.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(gateway.wait(), PATIENCE) == 0


@pytest.mark.parametrize(("form", "requests"), [("auto", 3), ("json", 3), ("none", 0)])
async def test_a_file_gets_json_and_all_of_it_before_the_end(tmp_path: Path, form: str, requests: int) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        async with serving(tmp_path, form, file.fileno()) as (gateway, url):
            await ask(url, 3)
            await stop(gateway)
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    assert sum(line["event"] == "request" for line in lines) == requests
    assert [line for line in lines if line["event"] == "log" and line["message"].startswith("a: unknown -> ready")]


@pytest.mark.parametrize(("form", "pretty"), [("auto", True), ("json", False)])
async def test_a_terminal_gets_lines_for_people(tmp_path: Path, form: str, pretty: bool) -> None:
    terminal, end = pty.openpty()
    try:
        async with serving(tmp_path, form, end) as (gateway, url):
            await ask(url)
            await stop(gateway)
        text = os.read(terminal, 65536).decode()
    finally:
        os.close(end)
        os.close(terminal)
    assert (" INFO    200 open chat a -> a  " in text) is pretty
    assert ('"event":"request"' in text) is not pretty


async def test_a_log_that_nobody_reads_holds_up_no_request(tmp_path: Path) -> None:
    reader, writing = os.pipe()
    try:
        async with serving(tmp_path, "json", writing) as (gateway, url):
            await ask(url, 400)  # more than a pipe holds
            async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
                assert (await client.get("/health")).status_code == 200
            await stop(gateway)
    finally:
        os.close(reader)
        os.close(writing)
