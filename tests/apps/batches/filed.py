"""Batches through the API, with the openai SDK."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import openai
from openai.types import Batch

from gateway.apps.batches.records import BatchRecord
from simulator import SimVllm
from tests.support import RunningGateway, from_clients, running_gateway
from tests.waiting import until_said

CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def line(name: str, said: str = "3 words please", model: str = "chat", **body: Any) -> dict[str, Any]:
    """One line of an input file."""
    messages = [{"role": "user", "content": said}]
    return {"custom_id": name, "method": "POST", "url": CHAT, "body": {"model": model, "messages": messages, **body}}


def jsonl(lines: Sequence[Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


def last(steps: Iterator[BatchRecord | None]) -> BatchRecord:
    """What the last step of a store's work gives."""
    *_, record = steps
    assert record is not None
    return record


def rows(text: str) -> dict[str, Any]:
    """The rows of an output file by their custom_id."""
    found = [json.loads(one) for one in text.splitlines()]
    assert len(found) == len({row["custom_id"] for row in found})
    return {row["custom_id"]: row for row in found}


@dataclass
class Filed:
    """A gateway with the alias `chat`, and a client of it."""

    sim: SimVllm
    gateway: RunningGateway
    client: openai.AsyncOpenAI

    def as_client(self, key: str) -> openai.AsyncOpenAI:
        return self.client.with_options(api_key=key)

    async def begin(self, content: bytes, client: openai.AsyncOpenAI | None = None, **more: Any) -> Batch:
        asking = client or self.client
        file = await asking.files.create(file=("in.jsonl", content), purpose="batch")
        settings: dict[str, Any] = {"endpoint": CHAT, "completion_window": "24h", **more}
        return await asking.batches.create(input_file_id=file.id, **settings)

    async def ended(self, batch: Batch, client: openai.AsyncOpenAI | None = None) -> Batch:
        """The batch when it has ended."""
        return await ended(client or self.client, batch.id)

    async def results(self, batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
        """(the rows of the output file, those of the error file) by custom_id."""
        return await results(self.client, batch)

    def asked(self) -> list[str]:
        """What the clients' requests said that reached the backend."""
        return [r.json["messages"][0]["content"] for r in from_clients(self.sim.requests) if r.path == CHAT]


async def ended(client: openai.AsyncOpenAI, name: str) -> Batch:
    async def over() -> Batch | None:
        found = await client.batches.retrieve(name)
        return found if found.status in ENDED else None

    return await until_said(over, within=30)


async def results(client: openai.AsyncOpenAI, batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
    files = [batch.output_file_id, batch.error_file_id]
    texts = [(await client.files.content(name)).text if name else "" for name in files]
    return rows(texts[0]), rows(texts[1])


@asynccontextmanager
async def filed(
    sim: SimVllm | None = None, *, key: str = "none", slots: int = 4, alias: str = "", top: str = ""
) -> AsyncIterator[Filed]:
    sim = sim or SimVllm("a", served=["m"])
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(sim.serve())
        routes = [f'backends: {{a: {{url: "{url}", slots: {slots}}}}}', f"aliases: {{chat: {{use: [a]{alias}}}}}", top]
        gateway = await stack.enter_async_context(running_gateway("\n".join(routes)))
        await gateway.until_ready("a")
        base = f"{gateway.url}/v1"
        client = await stack.enter_async_context(openai.AsyncOpenAI(base_url=base, api_key=key, max_retries=0))
        yield Filed(sim, gateway, client)
        sim.clear()
