"""All endpoints under a small `server.memory`: whatever large and many bodies and answers come, the process stays near
its limit."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest

import gateway as gateway_package
from gateway.domain.endpoints import ENDPOINTS
from gateway.http.app import App
from tests import native_responses as native
from tests.gateway_process import MIB, GatewayProcess, gateway_process
from tests.raw_client import raw_client
from tests.scripted import Turn, json_answer, scripted
from tests.waiting import standing

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

LIMIT = 32 * MIB
BESIDE = 48 * MIB  # beside the bodies that are counted: code, heaps, copies under way
MANY, LARGE = 16, 6 * MIB
FORMS = "/v1/files", "/v1/audio/transcriptions", "/v1/audio/translations"
BODIES = [f"/v1{endpoint.path}" for endpoint in ENDPOINTS] + [
    "/v1/batches",
    "/v1/messages/count_tokens",
    "/v1/responses/input_tokens",
    "/tokenize",
    "/detokenize",
    "/admin/explain",
    "/admin/mode",
    "/admin/reload",
    "/admin/backends/a/start",
    "/admin/backends/a/stop",
]
ROUTES = """
server: {{memory: {limit}, keep_responses: 1h, data: {data}}}
backends:
  a: {{url: '{url}', model: m, context: 100000000, health: {{every: none, canary: none}}}}
  s: {{engine: http, url: '{url}', serves: [speech, transcriptions, translations]}}
"""


@asynccontextmanager
async def process(folder: Path, *scripts: object) -> AsyncIterator[GatewayProcess]:
    async with scripted(*scripts) as backend:  # type: ignore[arg-type]  # a Script each
        backend.responds = True
        routes = ROUTES.format(limit=LIMIT // MIB * 1024 * 1024, data=folder / "data", url=backend.url)
        async with gateway_process(folder, routes.replace(str(LIMIT), "32MiB")) as gateway:
            for path in ("/v1/files", "/v1/batches"):  # what is imported and opened once
                await gateway.client.get(path)
            yield gateway


async def test_every_path_is_walked() -> None:
    """A path that takes a body is one of these."""
    from gateway.api.app import build_api
    from gateway.config.load import load_text

    app = App(
        load_text("server: {keep_responses: 1h}\nbackends: {a: {url: 'http://127.0.0.1:1'}}", environ={}).snapshot
    )
    api = build_api(app.gateway).routes
    posts = {str(getattr(route, "path", "")) for route in api if "POST" in getattr(route, "methods", ())}
    without = {path for path in posts if path.endswith(("/drain", "/resume", "/probe", "/cancel"))}
    known = {path.removeprefix("/v1").replace("/backends/a/", "/backends/{name}/") for path in (*BODIES, *FORMS)}
    assert {path.removeprefix("/v1") for path in posts - without} <= known


async def _flood(gateway: GatewayProcess, many: int, data: bytes) -> int:
    """What the process has grown by, while so many clients have sent this."""
    before = gateway.resident()
    async with AsyncExitStack() as stack:
        for _ in range(many):
            client = await stack.enter_async_context(raw_client(gateway.url))
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(5):
                    await client.send(data)
        return await standing(gateway.resident) - before


async def test_large_and_many_bodies_and_forms(tmp_path: Path) -> None:
    fields = b"".join(
        b'--b\r\ncontent-disposition: form-data; name="f%d"\r\n\r\n%b\r\n' % (number, b"x" * 60_000)
        for number in range(99)
    )
    begun = b'{"model": "a", "input": "' + b" " * (LARGE - 100)
    sent = [(path, "application/json", LARGE, begun) for path in BODIES]
    sent += [(path, "multipart/form-data; boundary=b", len(fields) + 100, fields) for path in FORMS]
    async with process(tmp_path) as gateway:
        for path, kind, length, body in sent:
            lines = f"POST {path} HTTP/1.1", "host: 127.0.0.1", f"content-type: {kind}", f"content-length: {length}"
            grown = await _flood(gateway, MANY, "\r\n".join((*lines, "", "")).encode() + body)
            assert grown < LIMIT + BESIDE, (path, grown // MIB)


def whole_response(size: int) -> bytes:
    return json_answer(native.whole(native.message("x" * size)))


async def _ask(gateway: GatewayProcess, body: dict[str, object], path: str = "/v1/responses") -> int:
    try:
        return (await gateway.client.post(path, json=body)).status_code
    except httpx.HTTPError:
        return 0


async def test_large_and_many_whole_answers_of_responses(tmp_path: Path) -> None:
    async def much(turn: Turn) -> None:
        await turn.send(whole_response(6 * MIB))

    async with process(tmp_path, much) as gateway:
        before = gateway.resident()
        asked = [_ask(gateway, {"model": "a", "input": "hi", "store": False}) for _ in range(10)]
        statuses = await asyncio.gather(*asked)
        assert set(statuses) <= {0, 200, 503}
        assert gateway.resident() - before < LIMIT + 2 * BESIDE  # one at a time is read, checked and translated


async def test_large_and_many_kept_conversations(tmp_path: Path) -> None:
    async def short(turn: Turn) -> None:
        await turn.send(whole_response(10))

    async with process(tmp_path, short) as gateway:
        made = await gateway.client.post("/v1/responses", json={"model": "a", "input": "x" * (6 * MIB)})
        name = made.json()["id"]
        before = gateway.resident()
        then = {"model": "a", "input": "on", "previous_response_id": name, "store": False}
        statuses = await asyncio.gather(*(_ask(gateway, then) for _ in range(10)))
        assert set(statuses) <= {0, 200, 503}
        assert gateway.resident() - before < LIMIT + 2 * BESIDE


async def test_kept_responses_that_nobody_reads(tmp_path: Path) -> None:
    async def much(turn: Turn) -> None:
        await turn.send(whole_response(3 * MIB))

    async with process(tmp_path, much) as gateway:
        made = await gateway.client.post("/v1/responses", json={"model": "a", "input": "hi"})
        assert made.status_code == 200, made.text[:300]
        name = json.loads(made.content)["id"]
        before = gateway.resident()
        async with AsyncExitStack() as stack:
            for _ in range(40):
                client = await stack.enter_async_context(raw_client(gateway.url, receive_buffer=32 * 1024))
                client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # typed as one that only writes
                await client.get(f"/v1/responses/{name}")
            grown = await standing(gateway.resident) - before
        assert grown < LIMIT + BESIDE, grown // MIB


async def test_streams_whose_events_do_not_end(tmp_path: Path) -> None:
    async def endless(turn: Turn) -> None:
        await turn.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: ")
        for _ in range(12):
            await turn.send(b"x" * MIB)
        await turn.until_lost()

    async with process(tmp_path, endless) as gateway:
        before = gateway.resident()
        async with AsyncExitStack() as stack:
            for path in ("/v1/chat/completions", "/v1/responses") * 4:
                client = await stack.enter_async_context(raw_client(gateway.url))
                body = {"model": "a", "stream": True, "input": "hi", "messages": [{"role": "user", "content": "hi"}]}
                await client.post(path, body)
            grown = await standing(gateway.resident) - before
        assert grown < LIMIT + BESIDE, grown // MIB


def test_no_path_reads_a_body_that_is_not_counted() -> None:
    """Starlette's own readers keep what comes; `body_of`, `read_form` and exchanges count it."""
    root = Path(gateway_package.__file__).parent
    readers = ("request.body()", "request.json()", "request.form(")
    assert not [path for path in root.rglob("*.py") for reader in readers if reader in path.read_text()]
