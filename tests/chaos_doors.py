"""The doors beside chats, for the storm (test_chaos.py) and the long run (test_process_flat.py): files, batches,
speech, responses, lists. A tenth of those who knock leave at a random byte."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Any

from tests.chaos_answers import CHAT, REFUSED, Answer, Asked, check_whole, read_answer
from tests.raw_client import RawClient, post_bytes, raw_client
from tests.waiting import pace

BACKEND = '  ears: {{url: "{ears}", engine: http, serves: [transcriptions, speech]}}\n'
WITHIN = 30.0  # seconds for an answer, and for a batch, which is cancelled then
ENDED = ("completed", "failed", "expired", "cancelled")
ENDS: tuple[Callable[[RawClient], None], ...] = (RawClient.close, RawClient.reset, RawClient.half_close)


def form(path: str, fields: Mapping[str, str], file: bytes) -> bytes:
    parts = [
        f'--b\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()
    ]
    head = "".join(parts) + '--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
    body = head.encode() + file + b"\r\n--b--\r\n"
    kind = "content-type: multipart/form-data; boundary=b"
    return f"POST {path} HTTP/1.1\r\nhost: gateway\r\n{kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def upload(content: bytes) -> bytes:
    return form("/v1/files", {"purpose": "batch"}, content)


def plain(method: str, path: str) -> bytes:
    return f"{method} {path} HTTP/1.1\r\nhost: gateway\r\n\r\n".encode()


def knock_bytes(random: Random) -> bytes:
    """One request, at any door, that leaves nothing behind."""
    name = f"{random.getrandbits(96):024x}"
    doors: list[Callable[[], bytes]] = [
        lambda: form("/v1/audio/transcriptions", {"model": "ears"}, bytes(random.choice([0, 100, 70_000, 400_000]))),
        lambda: post_bytes("/v1/audio/speech", {"model": "ears", "input": "hello", "voice": "alloy"}),
        lambda: post_bytes("/v1/responses", {"model": "turns", "input": "hi", "stream": random.random() < 0.5}),
        lambda: post_bytes("/v1/batches", {"input_file_id": f"file-{name}", "endpoint": CHAT}),
        lambda: form("/v1/files", {"purpose": "nothing"}, bytes(random.choice([0, 100_000]))),
        lambda: plain("GET", random.choice(["/v1/files?limit=3", "/v1/batches?limit=1", "/v1/models", "/status"])),
        lambda: plain(random.choice(["GET", "DELETE"]), f"/v1/files/file-{name}"),
        lambda: post_bytes("/admin/backends/none/drain", {}),
    ]
    return random.choice(doors)()


async def knock(url: str, random: Random) -> str:
    """One request; returns `left`, or the first digit of the status."""
    sent = knock_bytes(random)
    async with raw_client(url) as client:
        if random.random() < 0.1:
            with suppress(ConnectionError):
                await client.send(sent[: random.randrange(len(sent) + 1)])
            await pace(random.random() * 0.05)
            random.choice(ENDS)(client)
            return "left"
        answer = await _sent(client, sent)
    assert b"internal_error" not in answer.body, answer.body[:500]
    assert answer.status in {200, 403, 404, 422, *REFUSED}, answer
    return f"{answer.status // 100}xx"


async def run_batch(url: str, random: Random) -> str:
    """A batch from its upload to its rows, which are deleted; returns its status."""
    asked = {f"r{n}": one for n, one in enumerate(Asked(random) for _ in range(8)) if not one.message}
    lines = [{"custom_id": name, "method": "POST", "url": CHAT, "body": one.body} for name, one in asked.items()]
    for one in asked.values():
        one.stream = False  # a batch leaves that out
    content = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    file = await _object(url, upload(content))
    if file is None:
        return "refused"
    names = [file["id"]]
    try:
        batch = await _object(url, post_bytes("/v1/batches", {"input_file_id": file["id"], "endpoint": CHAT}))
        if batch is None:
            return "refused"
        batch = await _ended(url, batch["id"], cancelled=random.random() < 0.3)
        for key in ("output_file_id", "error_file_id"):
            if batch[key] is not None:
                names.append(batch[key])
                _check_rows(asked, (await _answer(url, plain("GET", f"/v1/files/{batch[key]}/content"))).body)
        return str(batch["status"])
    finally:
        for name in names:
            await _answer(url, plain("DELETE", f"/v1/files/{name}"))


async def _ended(url: str, name: str, *, cancelled: bool) -> Any:
    end = time.monotonic() + WITHIN
    while True:
        batch = await _object(url, plain("GET", f"/v1/batches/{name}"))
        if batch is not None and batch["status"] in ENDED:
            return batch
        if cancelled or time.monotonic() > end:
            cancelled = False
            end = time.monotonic() + WITHIN
            await _answer(url, plain("POST", f"/v1/batches/{name}/cancel"))
        await pace(0.05)


def _check_rows(asked: Mapping[str, Asked], content: bytes) -> None:
    rows = [json.loads(line) for line in content.splitlines()]
    assert len({row["custom_id"] for row in rows}) == len(rows)
    for row in rows:
        if row["response"] is None or row["response"]["status_code"] != 200:
            assert b"internal_error" not in json.dumps(row).encode(), row
        else:
            check_whole(asked[row["custom_id"]], row["response"]["body"])


async def _object(url: str, sent: bytes) -> Any:
    """The object of an answer with status 200; None of a refusal."""
    answer = await _answer(url, sent)
    assert answer.status in {200, *REFUSED}, answer
    return json.loads(answer.body) if answer.status == 200 else None


async def _answer(url: str, sent: bytes) -> Answer:
    async with raw_client(url) as client:
        return await _sent(client, sent)


async def _sent(client: RawClient, sent: bytes) -> Answer:
    async with asyncio.timeout(WITHIN):
        with suppress(ConnectionError):  # refused before its end
            await client.send(sent)
        return await read_answer(client)
