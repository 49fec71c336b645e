"""Bodies are captured where an admin wants it, for a time and in bounds; a captured request is sent again."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from gateway.accounting.record import RequestLine
from gateway.apps.requests import capture as module
from gateway.apps.requests.capture import CapturedExchange
from gateway.apps.requests.store import CAPTURED as NAME
from gateway.apps.requests.store import CAPTURED_KEPT as KEPT
from gateway.apps.requests.store import CapturedRequest
from gateway.cli.main import cli
from gateway.domain import endpoints
from gateway.proxy.exchange import Exchange
from simulator import SimVllm
from tests.raw_client import chat
from tests.support import RunningGateway, running_gateway
from tests.two_backends import CHAT

PATH, CAPTURE = "/admin/requests", "/admin/capture"
ALIASES = "aliases: {one: [a]}\n"
KEYS = ALIASES + "clients: {ops: {key: ops-key, admin: true}, hermes: {key: hermes-key}}\n"


@asynccontextmanager
async def pair(more: str = "", cloud: bool = False) -> AsyncIterator[RunningGateway]:
    """Backends `a`, which alias `one` has, and `b`, which no alias has."""
    async with SimVllm("a").serve() as a, SimVllm("b").serve() as b:
        outside = ", engine: openai, cloud: true, model: m" if cloud else ""
        routes = f"backends: {{a: {{url: '{a}'}}, b: {{url: '{b}'{outside}}}}}\n{more or ALIASES}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a", *([] if cloud else ["b"]))
            yield gateway


async def post(gateway: RunningGateway, path: str, body: Any, key: str = "") -> Any:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return await gateway.client.post(path, json=body, headers=headers)


async def ask(gateway: RunningGateway, id: str, key: str = "", path: str = CHAT, **more: Any) -> Any:
    headers = {"x-request-id": id} | ({"authorization": f"Bearer {key}"} if key else {})
    answer = await gateway.client.post(path, json=chat("one", **more), headers=headers)
    await gateway.until(gateway.idle)
    return answer


def store(gateway: RunningGateway) -> Any:
    return gateway.gateway.apps.requests.captured


async def kept(gateway: RunningGateway, id: str) -> Any:
    await gateway.until(lambda: not gateway.gateway.apps.requests._keeping)
    return await asyncio.to_thread(store(gateway).get, id, 0.0)


@pytest.mark.decided_both_ways
@pytest.mark.parametrize("stream", [False, True])
async def test_bodies_are_kept_while_a_capture_runs_and_at_no_other_time(stream: bool) -> None:
    async with pair() as gateway:
        await ask(gateway, "before", stream=stream)
        begun = await post(gateway, CAPTURE, {"for": "15m"})
        answer = await ask(gateway, "during", stream=stream)
        running = (await gateway.client.get(PATH)).json()["capture"]
        ended = await post(gateway, CAPTURE, {"for": "0s"})
        await ask(gateway, "after", stream=stream)
        found = {id: await kept(gateway, id) for id in ("before", "during", "after")}
        file = Path(gateway.gateway.snapshot.server.data) / NAME
        mode = stat.S_IMODE(file.stat().st_mode)
        told = (await gateway.client.get(f"{PATH}/during")).json()
    assert begun.json()["capture"]["requests"] == 0
    assert running["requests"] == 1
    assert running["bytes"] == len(answer.request.content) + len(answer.content)
    assert ended.json() == {"capture": None}
    assert (found["before"], found["after"]) == (None, None)
    assert found["during"].request == answer.request.content
    assert found["during"].answer == answer.content
    assert mode == 0o600
    assert told["captured"]


async def test_a_capture_ends_by_itself() -> None:
    async with pair() as gateway:
        await post(gateway, CAPTURE, {"for": "50ms"})
        await gateway.until(lambda: gateway.gateway.apps.tap is None)
        await ask(gateway, "after")
        assert (await gateway.client.get(PATH)).json()["capture"] is None
        assert await kept(gateway, "after") is None


async def test_its_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOTAL_MOST", 500)
    monkeypatch.setattr(module, "BODY_MOST", 300)
    async with pair() as gateway:
        await post(gateway, CAPTURE, {"for": "15m"})
        long = await ask(gateway, "long", user="x" * 1000)
        assert long.status_code == 200
        await ask(gateway, "last")
        assert gateway.gateway.apps.tap is None
        found = await kept(gateway, "long")
        refused = await post(gateway, f"{PATH}/long/replay", {})
    assert (len(found.request), found.whole) == (300, False)
    assert len(found.answer) == 200
    assert refused.status_code == 409


async def test_only_an_admin_captures_and_only_of_whom_it_names() -> None:
    async with pair(KEYS) as gateway:
        assert (await post(gateway, CAPTURE, {"for": "1m"}, "hermes-key")).status_code == 403
        assert (await post(gateway, CAPTURE, {"for": "1m", "client": "nobody"}, "ops-key")).status_code == 404
        for wrong in ({"for": "soon"}, {"for": "25h"}, {}, {"for": 5}):
            assert (await post(gateway, CAPTURE, wrong, "ops-key")).status_code == 400
        assert (await post(gateway, CAPTURE, {"for": "1m", "client": "hermes"}, "ops-key")).status_code == 200
        await ask(gateway, "of-ops", "ops-key")
        await ask(gateway, "of-hermes", "hermes-key")
        await ask(gateway, "of-nobody", "wrong-key")
        assert await kept(gateway, "of-ops") is None
        assert (await kept(gateway, "of-hermes")).client == "hermes"
        assert (await post(gateway, f"{PATH}/of-hermes/replay", {}, "hermes-key")).status_code == 403


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/responses", "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_captured_request_is_sent_again(path: str, stream: bool) -> None:
    asked: dict[str, dict[str, Any]] = {"/v1/responses": {"input": "Hello"}, "/v1/completions": {"prompt": "Hello"}}
    more = asked.get(path, {**chat("one"), "max_tokens": 20})
    async with pair() as gateway:
        await post(gateway, CAPTURE, {"for": "15m"})
        headers = {"x-request-id": "first"}
        body = {**more, "model": "one", "stream": stream}
        answer = await gateway.client.post(path, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        await gateway.until(gateway.idle)
        await kept(gateway, "first")
        found = (await post(gateway, f"{PATH}/first/replay", {})).json()
        other = (await post(gateway, f"{PATH}/first/replay", {"on": "b"})).json()
        told = (await gateway.client.get(f"{PATH}/{other['id']}")).json()
    assert (found["status"], found["backend"], other["backend"]) == (200, "a", "b")
    assert found["then"]["text"]
    assert found["then"]["text"] == found["now"]["text"]
    assert found["then"]["end"] == found["now"]["end"]
    assert (told["request"]["alias"], told["request"]["backend"]) == ("one", "b")


async def test_what_may_not_leave_the_lan_does_not_leave_it_when_it_is_sent_again() -> None:
    async with pair("aliases: {one: [a], both: [a, b]}", cloud=True) as gateway:
        await post(gateway, CAPTURE, {"for": "15m"})
        headers = {"x-request-id": "local", "x-gateway-local-only": "1"}
        await gateway.client.post(CHAT, json=chat("both"), headers=headers)
        await ask(gateway, "free")
        assert (await kept(gateway, "local")).local_only
        marked = (await post(gateway, f"{PATH}/local/replay", {"on": "b"})).json()
        unnamed = await post(gateway, f"{PATH}/free/replay", {"on": "b"})
    assert marked["status"] != 200
    assert "LAN" in marked["now"]["error"]
    assert unnamed.status_code == 409


async def test_what_cannot_be_sent_again_says_why() -> None:
    async with pair() as gateway:
        await post(gateway, CAPTURE, {"for": "15m"})
        await ask(gateway, "first")
        await kept(gateway, "first")
        unknown = await post(gateway, f"{PATH}/nothing/replay", {})
        nowhere = await post(gateway, f"{PATH}/first/replay", {"on": "nowhere"})
    assert (unknown.status_code, nowhere.status_code) == (404, 404)
    assert "was not captured" in unknown.json()["error"]["message"]


async def test_captured_bodies_are_dropped_after_a_day() -> None:
    async with pair() as gateway:
        await post(gateway, CAPTURE, {"for": "15m"})
        await ask(gateway, "first")
        one = await kept(gateway, "first")
        captured = store(gateway)
        assert await asyncio.to_thread(captured.get, "first", one.at + KEPT + 1) is None
        await asyncio.to_thread(captured.drop_old, one.at + KEPT + 1)
        assert await asyncio.to_thread(captured.get, "first", one.at) is None


async def test_the_command_shows_both_answers() -> None:
    async with pair() as gateway:
        here = ("--gateway", gateway.url)

        async def run(*arguments: str) -> Any:
            return await asyncio.to_thread(CliRunner().invoke, cli, [*arguments, *here])

        begun = await run("requests", "--capture", "15m")
        await ask(gateway, "first")
        await kept(gateway, "first")
        both, listed = await run("replay", "first", "--on", "b"), await run("requests")
        missing = await run("replay", "nothing")
    assert "Bodies are captured until" in begun.output
    assert both.exit_code == 0
    assert "then: first" in both.output
    assert "now: b" in both.output
    assert "all clients: 2 so far" in listed.output
    assert missing.exit_code == 1


async def test_two_clients_with_one_id_get_their_own_bodies_kept() -> None:
    """Else a client could have what another keeps in the LAN kept, and sent again, as a request of its own."""
    async with pair(KEYS) as gateway:
        await post(gateway, CAPTURE, {"for": "15m"}, "ops-key")
        capture = gateway.gateway.apps.requests.capture
        kept_ones: list[CapturedRequest] = []
        capture._keep = kept_ones.append
        for client, local in (("hermes", False), ("ops", True), ("hermes", True)):
            exchange = CapturedExchange(cast(Exchange, None), endpoints.CHAT, capture, client, local_only=local)
            exchange.request += client.encode()
            capture.begun(exchange, "same")
        for client in ("ops", "hermes", "hermes"):
            capture._ended(cast(RequestLine, SimpleNamespace(id="same", at=1.0, client=client, local_only=False)))
    assert [(one.client, one.request, one.local_only) for one in kept_ones] == [
        ("ops", b"ops", True),
        ("hermes", b"hermes", True),  # one of two that cannot be told apart, as private as both
    ]
