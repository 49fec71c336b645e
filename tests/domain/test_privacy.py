"""What a request says about privacy goes with everything that the gateway makes of it."""

from __future__ import annotations

import ast
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import pytest

import gateway
from gateway.apps.batches.records import BatchRecord, FileRecord
from gateway.apps.batches.sqlite_store import SqliteBatchStore
from gateway.apps.batches.store import output_files
from gateway.domain.privacy import NO_MARKS, Privacy
from simulator import SimVllm
from tests.raw_client import chat
from tests.scripted import RawReply, raw_post
from tests.support import RunningGateway, from_clients, running_gateway

STAYS = "x-gateway-local-only: 1"
KEYED = "clients: {inside: {key: key-inside, local_only: true}, free: {key: key-free}}\n"
ALL_MARKS = Privacy(*(True for _ in fields(Privacy)))

# Where the code sends what came from a client, and the test of this file that shows that its marks go with it; or why
# it needs none.
HERE_ALONE = "asks no cloud (tests/apps/tokens/test_api_backends.py, tests/apps/dialects/test_token_counts.py)"
WAYS = {
    ("InnerExchange", "apps/batches/runner.py"): "batch",
    ("InnerExchange", "apps/ask_all/asking.py"): "ask_all",
    ("InnerExchange", "apps/describing/app.py"): "tests/apps/describing/test_app.py",
    ("InnerExchange", "apps/requests/replay.py"): "tests/apps/requests/test_capture.py",
    ("Caller", "admission/access.py"): "kept",
    ("Caller", "api/caller.py"): "the client's own request",
    ("Caller", "apps/dialects/ollama/exchange.py"): "the client's own request",
    ("Caller", "http/request_reader.py"): "the client's own request",
    ("Caller", "proxy/exchange.py"): "the client's own request",
    ("Caller", "proxy/inner_exchange.py"): "batch, ask_all",
    ("send", "proxy/attempt.py"): "retry",
    ("count_tokens", "admission/slot_acquirer.py"): "of a backend that the plan has chosen",
    ("count_tokens", "proxy/resume.py"): "of a backend that the plan has chosen",
    ("count_tokens", "apps/dialects/token_counts.py"): HERE_ALONE,
    ("TokenClient", "apps/tokens/api.py"): HERE_ALONE,
}
CALLED = {"InnerExchange", "Caller", "count_tokens", "TokenClient"}


def _calls(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "gateway.engines.registry"
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from ("InnerExchange" for base in node.bases if getattr(base, "id", "") == "InnerExchange")
        if isinstance(node, ast.Call):
            yield from {getattr(node.func, "id", "")} & CALLED
        if isinstance(node, ast.Name) and node.id == "send" and "send" in imported:
            yield "send"


def test_every_way_in_which_the_gateway_makes_a_request_is_known() -> None:
    root = Path(gateway.__file__).parent
    found = {(name, str(path.relative_to(root))) for path in root.rglob("*.py") for name in _calls(path)}
    assert found == set(WAYS), "say in WAYS how the marks of privacy go with it, and test it below"


# -- each way ---------------------------------------------------------------------------------------------------------


class Stage:
    """A backend `here` in the LAN and a cloud `far`, under the alias `chat`."""

    def __init__(self, running: RunningGateway, here: SimVllm, far: SimVllm) -> None:
        self.running, self.here, self.far = running, here, far
        self.key = ""

    async def post(self, path: str, body: Any, *lines: str) -> RawReply:
        keyed = [f"authorization: Bearer {self.key}"] if self.key else []
        return await raw_post(self.running.url, body, path, [*keyed, *lines])

    def left(self) -> bool:
        return bool(from_clients(self.far.requests))

    async def upload(self, content: bytes, *lines: str) -> str:
        form = b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        form += b'--b\r\ncontent-disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n' + content
        form += b"\r\n--b--\r\n"
        headers = dict(line.split(": ", 1) for line in lines)
        headers |= {"content-type": "multipart/form-data; boundary=b"}
        headers |= {"authorization": f"Bearer {self.key}"} if self.key else {}
        answer = await self.running.client.post("/v1/files", content=form, headers=headers)
        return str(answer.json()["id"])

    async def tried(self) -> None:
        """Some request for the alias has ended without an answer, or in the cloud."""
        await self.running.until(lambda: self.left() or self._refused())

    def _refused(self) -> bool:
        samples = self.running.gateway.metrics.registry.collect()
        return any(
            sample.labels.get("endpoint") == "chat" and sample.labels.get("code") != "200" and sample.value
            for family in samples
            for sample in family.samples
            if sample.name == "gateway_requests_total"
        )


@asynccontextmanager
async def stage(clients: str = "") -> AsyncIterator[Stage]:
    here, far = SimVllm("here", served=["m"]), SimVllm("far", served=["m"], generic=True)
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(sim.serve(port=0)) for sim in (here, far)]
        routes = (
            f"server: {{keep_responses: 1h}}\ndefaults: {{queue: {{max_wait: 100ms}}}}\n{clients}"
            f"backends:\n  here: {{url: '{urls[0]}', model: m}}\n"
            f"  far: {{url: '{urls[1]}', model: m, engine: openai, cloud: true}}\n"
            "aliases:\n  chat: [here, far]\n  both: {ask_all: [here, far]}\n"
        )
        running = await stack.enter_async_context(running_gateway(routes))
        await running.until_ready("here")
        yield Stage(running, here, far)


LINE = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": chat("chat")}


async def _begin(s: Stage, file: str, *lines: str) -> None:
    body = {"input_file_id": file, "endpoint": LINE["url"], "completion_window": "24h"}
    begun = await s.post("/v1/batches", body, *lines)
    assert begun.status == 200, begun.text
    await s.tried()
    await s.post(f"/v1/batches/{begun.json['id']}/cancel", {})
    await s.running.until(s.running.idle)


async def retry(s: Stage, mark: Sequence[str]) -> None:
    s.here.fault("status", status=500)
    for stream in (False, True):
        await s.post("/v1/chat/completions", chat("chat", stream=stream), *mark)


async def retry_of_what_was_decided_ahead(s: Stage, mark: Sequence[str]) -> None:
    headers = dict(line.split(": ", 1) for line in mark)
    headers |= {"authorization": f"Bearer {s.key}"} if s.key else {}
    s.here.fault("status", status=500)
    await s.running.client.post("/v1/chat/completions", json=chat("chat"), headers=headers)


async def batch(s: Stage, mark: Sequence[str]) -> None:
    file = await s.upload(json.dumps(LINE).encode())
    await s.here.kill()
    await _begin(s, file, *mark)


async def uploaded(s: Stage, mark: Sequence[str]) -> None:
    file = await s.upload(json.dumps(LINE).encode(), *mark)
    await s.here.kill()
    await _begin(s, file)


async def ask_all(s: Stage, mark: Sequence[str]) -> None:
    await s.post("/v1/chat/completions", chat("both"), *mark)


async def kept(s: Stage, mark: Sequence[str]) -> None:
    first = (await s.post("/v1/responses", {"model": "chat", "input": "hi"}, *mark)).json["id"]
    then = {"model": "chat", "input": "and then?", "previous_response_id": first}
    second = (await s.post("/v1/responses", then)).json["id"]
    await s.here.kill()
    await s.post("/v1/responses", {**then, "previous_response_id": second})


async def kept_then_counted(s: Stage, mark: Sequence[str]) -> None:
    first = (await s.post("/v1/responses", {"model": "chat", "input": "hi"}, *mark)).json["id"]
    await s.here.kill()
    await s.post("/v1/responses/input_tokens", {"model": "chat", "input": "on", "previous_response_id": first})
    await s.post("/v1/responses", {"model": "chat", "input": "on", "previous_response_id": first})


EACH: list[Callable[[Stage, Sequence[str]], Awaitable[None]]] = [
    retry,
    retry_of_what_was_decided_ahead,
    batch,
    uploaded,
    ask_all,
    kept,
    kept_then_counted,
]


@pytest.mark.parametrize("way", EACH, ids=lambda way: way.__name__)
async def test_what_is_made_of_a_request_that_stays_in_the_lan_stays_there(
    way: Callable[[Stage, Sequence[str]], Awaitable[None]],
) -> None:
    async with stage() as s:
        await way(s, [STAYS])
        assert not s.left()


@pytest.mark.parametrize("way", EACH, ids=lambda way: way.__name__)
async def test_without_a_mark_it_may_leave(way: Callable[[Stage, Sequence[str]], Awaitable[None]]) -> None:
    async with stage() as s:
        await way(s, [])
        assert s.left()


@pytest.mark.parametrize("way", EACH, ids=lambda way: way.__name__)
async def test_what_is_made_of_a_request_of_a_client_that_stays_in_the_lan_stays_there(
    way: Callable[[Stage, Sequence[str]], Awaitable[None]],
) -> None:
    async with stage(KEYED) as s:
        s.key = "key-inside"
        await way(s, [])
        assert not s.left()


# -- what is kept -----------------------------------------------------------------------------------------------------


def test_every_mark_that_one_of_two_has_is_had_by_both() -> None:
    assert NO_MARKS | ALL_MARKS == ALL_MARKS | NO_MARKS == ALL_MARKS != NO_MARKS
    assert NO_MARKS | NO_MARKS == NO_MARKS
    assert ALL_MARKS.headers() == {b"x-gateway-local-only": b"1"}
    assert NO_MARKS.headers() == {}


def test_stores_keep_every_mark(tmp_path: Path) -> None:
    file = FileRecord("file-1", "open", "batch", "in.jsonl", 4, 1, None, ALL_MARKS)
    record = BatchRecord("batch_1", "open", "/v1/embeddings", "file-1", "24h", "validating", 1, 2, privacy=ALL_MARKS)
    for begun in (True, False):  # written, then read after a restart
        store = SqliteBatchStore(tmp_path)
        store.open()
        if begun:
            store.add_file(file)
            store.save(record)
        assert store.file("file-1") == file
        assert store.files("open") == [file]
        found = store.batch("batch_1")
        assert found is not None
        assert found.privacy == ALL_MARKS
        assert all(one.privacy == ALL_MARKS for _, one in output_files(found, 1))
        store.close()
    for kept in (file, record):  # as Redis has them
        assert msgspec.json.decode(msgspec.json.encode(kept), type=type(kept)) == kept


def test_a_store_from_before_has_files_without_marks(tmp_path: Path) -> None:
    store = SqliteBatchStore(tmp_path)
    store.open()
    store.add_file(FileRecord("file-1", "open", "batch", "in.jsonl", 4, 1))
    store._db.execute("DROP TABLE file_marks")
    store.close()
    again = SqliteBatchStore(tmp_path)
    again.open()
    found = again.file("file-1")
    assert found is not None
    assert found.privacy == NO_MARKS
    again.close()
