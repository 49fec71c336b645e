"""OpenAI's batch API on the gateway's own backends, with the openai SDK."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Batch

from simulator import SimVllm
from tests.apps.batches.filed import CHAT, ended, filed, jsonl, line, results
from tests.gateway_process import GatewayProcess, gateway_process
from tests.raw_client import chat
from tests.scripted import raw_post
from tests.support import from_clients
from tests.waiting import until, until_said

ROUTES = """\
server: {{data: {data}}}
backends: {{a: {{url: "{url}", slots: {slots}, health: {{canary: none}}}}}}
aliases: {{chat: [a]}}
"""


TWO_KEYS = 'clients: {one: {key: "sk-one-0123456789"}, two: {key: "sk-two-0123456789"}}'


async def test_each_line_gets_its_answer() -> None:
    async with filed() as f:
        lines = [line(f"r{n}", f"{n + 1} words please") for n in range(9)]
        batch = await f.begin(jsonl(lines), metadata={"job": "scores"})
        assert batch.status in ("validating", "in_progress")
        done = await f.ended(batch)
        assert done.status == "completed"
        counts = done.request_counts
        assert counts is not None
        assert (counts.total, counts.completed, counts.failed) == (9, 9, 0)
        assert (done.metadata, done.error_file_id) == ({"job": "scores"}, None)
        stamps = [done.created_at, done.in_progress_at, done.finalizing_at, done.completed_at]
        assert stamps == sorted(stamp for stamp in stamps if stamp is not None)
        output, _ = await f.results(done)
        assert list(output) == [f"r{n}" for n in range(9)]  # in the order of the input
        for n in range(9):
            response = output[f"r{n}"]["response"]
            assert response["status_code"] == 200
            assert len(response["body"]["choices"][0]["message"]["content"].split()) == n + 1
        assert sorted(f.asked()) == sorted(one["body"]["messages"][0]["content"] for one in lines)
        assert f.gateway.metric("gateway_batch_lines_total", result="completed") == 9


async def test_a_line_that_cannot_be_served_fails_alone() -> None:
    async with filed() as f:
        bad: list[Any] = [
            line("nobody", model="nope"),
            {**line("elsewhere"), "url": "/v1/embeddings"},
            {**line("get"), "method": "GET"},
            {**line("no body"), "body": "text"},
            {"custom_id": "no model", "method": "POST", "url": CHAT, "body": {"messages": []}},
            line("good"),
            line("wrong", max_tokens=-1),
        ]
        content = jsonl([line("first"), *bad]) + b"no json\n\n   \n" + jsonl([line("first"), line("last")])
        done = await f.ended(await f.begin(content))
        output, errors = await f.results(done)
        assert list(output) == ["first", "good", "last"]
        assert done.request_counts is not None
        assert done.request_counts.failed == 8
        codes = {name: row["error"]["code"] for name, row in errors.items() if row["error"]}
        assert codes == {
            "elsewhere": "mismatched_url",
            "get": "invalid_method",
            "no body": "invalid_request",
            "no model": "invalid_request",
            "": "invalid_json_line",
            "first": "duplicate_custom_id",
        }
        assert errors["nobody"]["response"]["body"]["error"]["code"] == "model_not_found"
        assert errors["wrong"]["response"]["status_code"] == 400


async def test_a_file_may_begin_with_a_byte_order_mark() -> None:
    async with filed() as f:
        done = await f.ended(await f.begin(b"\xef\xbb\xbf" + jsonl([line("a"), line("b")])))
        assert list((await f.results(done))[0]) == ["a", "b"]


async def test_a_file_without_lines_is_a_failed_batch() -> None:
    async with filed() as f:
        done = await f.ended(await f.begin(b"\n \n"))
        assert done.status == "failed"
        assert done.errors is not None
        assert done.errors.data is not None
        assert done.errors.data[0].code == "empty_file"


async def test_a_line_is_asked_again_while_nobody_can_serve_it() -> None:
    async with filed() as f:
        f.sim.fault("status", status=503, count=2)
        done = await f.ended(await f.begin(jsonl([line("r")])))
        output, _ = await f.results(done)
        assert output["r"]["response"]["status_code"] == 200


async def test_lines_never_stream() -> None:
    async with filed() as f:
        done = await f.ended(await f.begin(jsonl([line("r", stream=True, stream_options={"include_usage": True})])))
        assert (await f.results(done))[0]["r"]["response"]["body"]["object"] == "chat.completion"


async def test_an_interactive_request_waits_for_one_line_at_most() -> None:
    """All lines wait for the one slot; the request that comes later is next."""
    async with filed(SimVllm("a", served=["m"], decode=60.0), slots=1) as f:
        batch = await f.begin(jsonl([line(f"r{n}", "20 words please") for n in range(12)]))
        await f.gateway.until(lambda: f.gateway.gateway.fleet["a"].inflight == 1)
        before = len(f.asked())
        reply = await raw_post(f.gateway.url, chat("chat", said="interactive: 1 word please"))
        assert reply.status == 200
        assert f.asked().index("interactive: 1 word please") <= before + 1
        await f.client.batches.cancel(batch.id)
        assert (await f.ended(batch)).status == "cancelled"


async def test_a_cancelled_batch_keeps_what_is_done() -> None:
    async with filed(SimVllm("a", served=["m"], decode=100.0), slots=2) as f:
        batch = await f.begin(jsonl([line(f"r{n}", "9 words please") for n in range(50)]))
        await f.gateway.until(lambda: f.gateway.metric("gateway_batch_lines_total", result="completed") >= 4)
        cancelled = await f.client.batches.cancel(batch.id)
        assert cancelled.status == "cancelling"
        done = await f.ended(batch)
        assert done.status == "cancelled"
        output, _ = await f.results(done)
        assert done.request_counts is not None
        assert 4 <= len(output) == done.request_counts.completed < 50
        await f.gateway.until(f.gateway.idle)
        assert f.gateway.gateway.memory.used == 0
        with pytest.raises(openai.BadRequestError):
            await f.client.batches.cancel(batch.id)


async def test_a_line_that_an_admin_ends_alone_is_no_failure() -> None:
    async with filed() as f:
        f.sim.fault("hang_before", count=1)
        batch = await f.begin(jsonl([line(f"r{n}") for n in range(3)]))
        await f.gateway.until(lambda: f.gateway.metric("gateway_batch_lines_total", result="completed") >= 2)
        (running,) = (await f.gateway.client.get("/admin/requests")).json()["running"]
        await f.gateway.client.delete(f"/admin/requests/{running['id']}")
        done = await f.ended(batch)
        _, errors = await f.results(done)
        assert done.status == "completed"
        assert done.request_counts is not None
        assert (done.request_counts.completed, done.request_counts.failed) == (2, 0)
        (row,) = errors.values()
        assert row["response"]["body"]["error"]["code"] == "request_cancelled"
        assert f.gateway.metric("gateway_batch_lines_total", result="cancelled") == 1
        (told,) = (await f.gateway.client.get("/status")).json()["batches"]
        assert (told["completed"], told["failed"], told["cancelled"]) == (2, 0, 1)


async def test_a_batch_that_takes_too_long_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.apps.batches.batches.WINDOWS", {"24h": 1})
    async with filed(slots=1) as f:
        f.sim.fault("hang_before")
        done = await f.ended(await f.begin(jsonl([line("r0"), line("r1")])))
        assert done.status == "expired"
        _, errors = await f.results(done)
        assert {row["error"]["code"] for row in errors.values()} == {"batch_expired"}
        assert list(errors) == ["r0", "r1"]


async def test_a_client_sees_its_own_files_and_batches_only() -> None:
    async with filed(key="sk-one-0123456789", top=TWO_KEYS) as f:
        batch = await f.begin(jsonl([line("r")]))
        done = await f.ended(batch)
        other = f.as_client("sk-two-0123456789")
        assert [one.id async for one in other.files.list()] == []
        assert [one.id async for one in other.batches.list()] == []
        assert done.output_file_id is not None
        for asked in (
            lambda: other.batches.retrieve(batch.id),
            lambda: other.batches.cancel(batch.id),
            lambda: other.files.retrieve(batch.input_file_id),
            lambda: other.files.content(str(done.output_file_id)),
            lambda: other.files.delete(batch.input_file_id),
            lambda: other.batches.create(
                input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
            ),
        ):
            with pytest.raises(openai.NotFoundError):
                await asked()
        with pytest.raises(openai.AuthenticationError):
            await f.as_client("sk-none").files.list()
        seen = await f.gateway.client.get("/status", headers={"authorization": "Bearer sk-two-0123456789"})
        assert seen.json()["batches"] == []
        mine = await f.gateway.client.get("/status", headers={"authorization": "Bearer sk-one-0123456789"})
        assert [one["id"] for one in mine.json()["batches"]] == [batch.id]


async def test_many_batches_of_others_hide_none_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.apps.batches.batches.SHOWN_MOST", 1)
    async with filed(key="sk-one-0123456789", top=TWO_KEYS) as f:
        f.sim.fault("hang_before")
        mine = await f.begin(jsonl([line("r")]))
        await f.begin(jsonl([line("r")]), f.as_client("sk-two-0123456789"))
        seen = await f.gateway.client.get("/status", headers={"authorization": "Bearer sk-one-0123456789"})
        assert [one["id"] for one in seen.json()["batches"]] == [mine.id]


async def test_lines_have_the_rights_of_their_client() -> None:
    top = 'clients: {one: {key: "sk-one-0123456789", aliases: [other]}}'
    async with filed(key="sk-one-0123456789", top=top) as f:
        done = await f.ended(await f.begin(jsonl([line("r")])))
        _, errors = await f.results(done)
        assert errors["r"]["response"]["body"]["error"]["code"] == "model_not_allowed"


async def test_after_kill_9_no_line_is_lost_and_none_is_done_twice(tmp_path: Path) -> None:
    sim = SimVllm("a", served=["m"], decode=200.0)
    async with sim.serve() as url:
        routes = ROUTES.format(data=f"{tmp_path}/state", url=url, slots=3)
        names = [f"r{n}" for n in range(60)]
        async with gateway_process(tmp_path, routes) as gateway, sdk(gateway.url) as client:
            batch = await begin(client, [line(name, f"{name}: 3 words please") for name in names])
            await until(lambda: len(asked(sim)) > 20)
            os.kill(gateway.pid, signal.SIGKILL)
        before = asked(sim)
        async with gateway_process(tmp_path, routes) as gateway, sdk(gateway.url) as client:
            done = await ended(client, batch.id)
            output, errors = await results(client, done)
        assert done.status == "completed"
        assert (list(output), errors) == (names, {})
        twice = len(asked(sim)) - len(names)
        assert len(before) > 20
        assert twice <= 3 + 1  # those that were under way, and one whose answer had just come


def asked(sim: SimVllm) -> list[str]:
    return [r.json["messages"][0]["content"] for r in from_clients(sim.requests) if r.path == CHAT]


def sdk(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


async def test_a_stop_keeps_the_batch_for_the_next_start(tmp_path: Path) -> None:
    sim = SimVllm("a", served=["m"])
    async with sim.serve() as url:
        routes = ROUTES.format(data=f"{tmp_path}/state, shutdown: 1s", url=url, slots=1)
        async with gateway_process(tmp_path, routes) as gateway, sdk(gateway.url) as client:
            await until_said(lambda: is_ready(gateway))
            sim.fault("hang_before")
            batch = await begin(client, [line("r")])
            await until(lambda: len(asked(sim)) == 1)
            os.kill(gateway.pid, signal.SIGTERM)
            await until(lambda: not alive(gateway.pid))
        sim.clear()
        async with gateway_process(tmp_path, routes) as gateway, sdk(gateway.url) as client:
            done = await ended(client, batch.id)
            assert (await results(client, done))[0]["r"]["response"]["status_code"] == 200


async def begin(client: openai.AsyncOpenAI, lines: list[dict[str, Any]]) -> Batch:
    file = await client.files.create(file=("in.jsonl", jsonl(lines)), purpose="batch")
    return await client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")


async def is_ready(gateway: GatewayProcess) -> bool:
    return (await gateway.client.get("/ready")).status_code == 200


def alive(pid: int) -> bool:
    """Does it run? (A child that has ended stays a zombie until it is waited for.)"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_disk_that_does_not_take_it_is_said_clearly(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with filed(top=f"server: {{data: {tmp_path}/file/below}}") as f:
        answer = await f.gateway.client.get("/v1/files")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "resources_exhausted")
        assert "server.data" in answer.json()["error"]["message"]


async def test_many_clients_at_once_upload_and_ask() -> None:
    async with filed(slots=8) as f:
        batches = await asyncio.gather(*(f.begin(jsonl([line(f"{n}-{i}") for i in range(5)])) for n in range(8)))
        done = await asyncio.gather(*(f.ended(batch) for batch in batches))
        assert {one.status for one in done} == {"completed"}
        assert len({(await f.client.files.retrieve(one.input_file_id)).id for one in done}) == 8
