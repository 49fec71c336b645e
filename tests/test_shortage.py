"""The gateway itself runs out of files, memory, ports or threads: that is no backend's fault, and no file's."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.apps.alerts.alert import FleetPicture
from gateway.apps.alerts.alerts import AlertState
from gateway.config.load import load
from gateway.config.problems import NotRead
from gateway.domain.health_state import State
from gateway.domain.upstream import ConnectFailure, OwnFailure
from gateway.health.canary_schedule import outcome_of
from gateway.health.checks import CheckReply
from gateway.health.probes import probe
from gateway.shortage import KINDS, WORDS, OwnShortage, shortage_of
from gateway.transport.h1 import open_client
from simulator import SimVllm
from tests.gateway_process import GatewayProcess, gateway_process
from tests.raw_client import chat, raw_client
from tests.support import running_gateway
from tests.waiting import until_said

linux = pytest.mark.skipif(sys.platform != "linux", reason="lowers the limit of another process")
CHAT = "/v1/chat/completions"
OURS = {
    errno.EMFILE: "files", errno.ENFILE: "files", errno.ENOMEM: "memory", errno.ENOBUFS: "memory",
    errno.EADDRNOTAVAIL: "ports",
}  # fmt: skip
LOOKS = "health: {every: 50ms, fail_after: 1}"


# -- which errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "kind"), OURS.items())
def test_an_error_of_ours_is_known_by_its_number_however_deep_it_lies(number: int, kind: str) -> None:
    error = OSError(number, os.strerror(number))
    assert shortage_of(error) == kind
    assert shortage_of(OSError(f"Multiple exceptions: [Errno {number}] a, [Errno 111] b")) == kind
    assert shortage_of(ExceptionGroup("all failed", [ConnectionRefusedError(111, "no"), error])) == kind
    for outer in (httpx.ConnectError("no"), ValueError("no")):
        outer.__cause__ = error
        assert shortage_of(outer) == kind


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(errno.ECONNREFUSED, "no"), TimeoutError(), OSError(errno.EHOSTUNREACH, "no"),
        ConnectionResetError(errno.ECONNRESET, "no"), OSError("what"), ValueError("[Errno 24]"), RuntimeError("no"),
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
    ],
    ids=repr,
)  # fmt: skip
def test_an_error_of_others_is_not_ours(error: Exception) -> None:
    assert shortage_of(error) is None


def test_memory_and_threads_are_ours_too() -> None:
    assert shortage_of(MemoryError()) == "memory"
    assert shortage_of(RuntimeError("can't start new thread")) == "threads"
    assert shortage_of(OwnShortage("ports")) == "ports"


def test_an_exception_that_is_its_own_cause_ends() -> None:
    error = ValueError("a")
    error.__cause__ = other = ValueError("b")
    other.__cause__ = error
    assert shortage_of(error) is None


@pytest.mark.parametrize("number", [number for number, kind in OURS.items() if kind != "ports"])
def test_a_name_that_could_not_be_resolved_for_want_of_files_is_ours(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    with lacking(monkeypatch, number):
        assert shortage_of(error) == OURS[number]
    assert shortage_of(error) is None


def test_an_address_without_a_way_is_not_a_want_of_ports() -> None:
    error = OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
    assert shortage_of(error, address=("127.0.0.1", 80)) == "ports"
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("2001:db8::1", 80))
        except OSError as unreachable:
            if unreachable.errno == errno.EADDRNOTAVAIL:
                assert shortage_of(error, address=("2001:db8::1", 80)) is None


@contextmanager
def lacking(monkeypatch: pytest.MonkeyPatch, number: int) -> Iterator[None]:
    """Every new socket of this process fails so."""

    class Lacking(socket.socket):
        def __init__(self, *_: Any, **__: Any) -> None:
            raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", Lacking)
        yield


# -- a gateway without files ------------------------------------------------------------------------------------------


@contextmanager
def without_files(gateway: GatewayProcess) -> Iterator[None]:
    """It may open nothing more. What is open stays."""
    before = resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, before)


@asynccontextmanager
async def near_and_far(
    folder: Path, host: str = "127.0.0.1", more: str = ""
) -> AsyncIterator[tuple[GatewayProcess, SimVllm, SimVllm]]:
    """A gateway before a local backend and a cloud."""
    near, far = SimVllm(), SimVllm()
    async with near.serve() as url, far.serve() as other:
        routes = (
            f"defaults: {{health: {{every: 100ms, fail_after: 1, canary: none}}}}\nbackends:\n"
            f"  near: {{url: '{url.replace('127.0.0.1', host)}'{more}}}\n"
            f"  far: {{url: '{other}', cloud: true, model: served/model}}\n"
            "aliases: {a: {use: [near, far], cloud_when: [down, busy]}}\n"
        )
        async with gateway_process(folder, routes) as gateway:
            await until_said(lambda: is_ready(gateway))
            yield gateway, near, far


async def is_ready(gateway: GatewayProcess) -> bool:
    told = (await gateway.client.get("/status")).json()
    return bool(told["backends"]["near"]["state"] == "ready")


def asked_of(sim: SimVllm) -> int:
    return sum(request.path.endswith("/chat/completions") for request in sim.requests)


async def shortages(gateway: GatewayProcess, kind: str, more_than: float = 0.0) -> float:
    """How often it lacked this; 0 until that is more than so often."""
    found = await gateway.metric(f'gateway_shortages_total{{kind="{kind}"}}')
    return found if found > more_than else 0.0


async def lacked(gateway: GatewayProcess, kind: str) -> bool:
    return await shortages(gateway, kind) > 0


async def waits(gateway: GatewayProcess) -> bool:
    """Whether a request is under way in it."""
    return bool((await gateway.client.get("/status")).json()["memory"]["used"])


async def logged(gateway: GatewayProcess, text: str) -> bool:
    return text in gateway.log.read_text()


@linux
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_without_files_no_backend_is_blamed_and_no_prompt_goes_to_the_cloud(host: str, tmp_path: Path) -> None:
    async with near_and_far(tmp_path, host) as (gateway, near, far), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(raw_client(gateway.url)) for _ in range(3)]
        for client in clients:
            await client.get("/health")
            await client.answer()
        with without_files(gateway):
            await until_said(lambda: lacked(gateway, "files"))
            looked = near.seen["/health"]
            for client in clients:
                await client.post(CHAT, chat())
            answers = [await client.answer() for client in clients]
            for status, body in answers:
                error = json.loads(body)["error"]
                assert (status, error["code"]) == (503, "resources_exhausted")
                assert "near" not in error["message"]
            assert all(b"retry-after: 2" in client.seen.lower() for client in clients)
            told = (await gateway.client.get("/status")).json()
            assert told["short"] == ["files"]
        assert asked_of(far) == asked_of(near) == 0
        assert told["backends"]["near"]["state"] == "ready"
        assert not [event for event in told["events"] if event.get("after") in ("suspect", "down", "warming")]
        assert (await gateway.client.post(CHAT, json=chat())).headers["x-gateway-backend"] == "near"
        await until_said(lambda: _looked(near, looked))


async def _looked(sim: SimVllm, before: int) -> bool:
    return sim.seen["/health"] > before


@linux
async def test_a_request_waits_shortly_until_there_are_files_again(tmp_path: Path) -> None:
    async with near_and_far(tmp_path) as (gateway, near, far), raw_client(gateway.url) as client:
        await client.get("/health")
        await client.answer()
        with without_files(gateway):
            await until_said(lambda: lacked(gateway, "files"))
            await client.post(CHAT, chat())
            await until_said(lambda: waits(gateway))
            before = await shortages(gateway, "files")
            await until_said(lambda: shortages(gateway, "files", more_than=before))
        assert (await client.answer())[0] == 200
        assert (asked_of(near), asked_of(far)) == (1, 0)


@linux
async def test_an_edit_that_cannot_be_read_for_want_of_files_is_no_invalid_one(tmp_path: Path) -> None:
    async with near_and_far(tmp_path) as (gateway, _, _):
        path = tmp_path / "routes.yaml"
        with without_files(gateway):
            path.write_text(path.read_text().replace("aliases: {a:", "aliases: {b:"))
            await until_said(lambda: logged(gateway, "could not be read and is tried again"))
            asked = await gateway.client.post("/admin/reload")
            assert (asked.status_code, asked.json()["error"]["code"]) == (503, "resources_exhausted")
            told = (await gateway.client.get("/status")).json()
            assert told["config"]["error"] is None
            assert "a" in told["aliases"]

        async def in_force() -> bool:
            return "b" in (await gateway.client.get("/status")).json()["aliases"]

        await until_said(in_force)
        assert await gateway.metric('gateway_config_reloads_total{result="refused"}') == 0
        assert "not valid" not in gateway.log.read_text()


@linux
async def test_what_was_used_is_written_when_there_are_files_again(tmp_path: Path) -> None:
    async with near_and_far(tmp_path, more=", price: {input: 1, output: 1}") as (gateway, _, _):
        (await gateway.client.post(CHAT, json=chat())).raise_for_status()
        (tmp_path / "state" / "usage.db").unlink(missing_ok=True)  # it is opened anew for the next entry
        with without_files(gateway):
            await gateway.client.post(CHAT, json=chat())
            await until_said(lambda: logged(gateway, "cannot be written"))
        (await gateway.client.post(CHAT, json=chat())).raise_for_status()

        async def written() -> bool:
            return (tmp_path / "state" / "usage.db").exists()

        await until_said(written)
        assert await gateway.metric('gateway_records_lost_total{kind="ledger"}') == 0


# -- the parts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL])
async def test_a_client_of_a_backend_says_what_was_missing(
    scheme: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = open_client((scheme, "127.0.0.1", 1), connect_timeout=1.0)
    loop = asyncio.get_running_loop()

    async def fails(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(loop, "create_connection" if scheme == "http" else "sock_connect", fails, raising=False)
    try:
        with pytest.raises(OwnFailure) as raised:
            await client.send("POST", "/", [], b"{}")
        assert (raised.value.shortage, raised.value.unsent) == (OURS[number], True)
    finally:
        await client.close()


async def test_a_refused_connection_stays_the_backends() -> None:
    client = open_client(("http", "127.0.0.1", 1), connect_timeout=1.0)
    with pytest.raises(ConnectFailure):
        await client.send("POST", "/", [], b"{}")
    await client.close()


async def test_a_canary_that_could_not_be_asked_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = SimVllm()
    async with sim.serve() as url, running_gateway(f"backends: {{a: {{url: '{url}', {LOOKS}}}}}") as gateway:
        await gateway.until_ready("a")
        state = gateway.gateway.fleet["a"]
        assert state.client is not None

        async def lacks(*_: Any, **__: Any) -> Any:
            raise OwnFailure("files", unsent=True)

        monkeypatch.setattr(state.client, "send", lacks)
        replies: dict[bytes, CheckReply] = {}
        found = await probe(state, ("plain", "arithmetic"), now=True, replies=replies)
        assert outcome_of(found, replies.values()).kind == "unasked"
        assert not state.facts.observed
        assert state.health.state is State.READY


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.EMFILE, "no"), RuntimeError("can't start new thread")])
async def test_a_shortage_in_the_middle_of_a_request_is_no_defect(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = SimVllm()
    async with (
        sim.serve() as url,
        running_gateway(f"backends: {{a: {{url: '{url}', {LOOKS}}}}}", decides_ahead="never") as gateway,
    ):

        def lacks(*_: Any) -> Any:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr("gateway.proxy.attempt.outgoing_fields", lacks)
            answer = await gateway.client.post(CHAT, json=chat())
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "resources_exhausted")
        assert gateway.metric("gateway_shortages_total", kind=shortage_of(error) or "") == 1
        assert gateway.gateway.fleet["a"].health.fails == 0


async def test_what_was_never_sent_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.engines.registry.PAUSES", (0.01,))
    sim = SimVllm()
    routes = (
        "backends: {{a: {{url: '{}', model: served/model, price: {{input: 1, output: 1}}, cloud: true}}}}\n"
        "aliases: {{b: [a]}}"
    )
    async with sim.serve() as url, running_gateway(routes.format(url)) as gateway:
        state = gateway.gateway.fleet["a"]
        assert state.client is not None

        async def lacks(*_: Any, **__: Any) -> Any:
            raise OwnFailure("files", unsent=True)

        monkeypatch.setattr(state.client, "send", lacks)
        answer = await gateway.client.post(CHAT, json=chat("b"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "resources_exhausted")
        await gateway.until(gateway.idle)
        assert gateway.metric("gateway_cloud_usd_total", backend="a", client="open") == 0
        assert gateway.metric("gateway_shortages_total", kind="files") == 2


def test_a_file_that_cannot_be_read_for_want_of_files_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    secret = tmp_path / "secret"
    secret.write_text("a-secret")
    (tmp_path / ".env").write_text("A=b\n")
    path.write_text("backends: {a: {url: 'http://127.0.0.1:1', api_key: '${file:secret}'}}\n")
    opened, descriptor = Path.open, os.open
    for lacking_at in (path, secret, tmp_path / ".env"):

        def lacks(self: Path, *args: Any, at: Path = lacking_at, **further: Any) -> Any:
            if self == at:
                raise OSError(errno.EMFILE, "Too many open files")
            return opened(self, *args, **further)

        def lacks_too(path: Any, *args: Any, at: Path = lacking_at, **further: Any) -> int:
            if Path(path) == at:
                raise OSError(errno.EMFILE, "Too many open files")
            return descriptor(path, *args, **further)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "open", lacks)
            patch.setattr(os, "open", lacks_too)
            with pytest.raises(NotRead) as raised:
                load(path, {})
        assert raised.value.kind == "files"
    assert load(path, {}).snapshot.backends["a"].api_key is not None


def test_a_shortage_is_told_once_and_when_it_is_over() -> None:
    state = AlertState()
    assert [a.kind for a in state.step(0.0, FleetPicture())] == []
    (told,) = state.step(1.0, FleetPicture(short=("files",)))
    assert (told.kind, told.name, told.good) == ("shortage", "files", False)
    assert "ulimit" in told.text
    assert state.step(2.0, FleetPicture(short=("files",))) == []
    more, over = state.step(3.0, FleetPicture(short=("memory",)))
    assert (more.kind, more.name, over.kind, over.name, over.good) == (
        "shortage",
        "memory",
        "shortage_over",
        "files",
        True,
    )


def test_every_kind_has_words() -> None:
    assert set(WORDS) == set(KINDS)
