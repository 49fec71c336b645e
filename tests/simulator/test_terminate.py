"""What SIGTERM does to requests in flight: each way in which the race inside vLLM ends can be had for the asking."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from simulator import SimOllama, SimVllm
from simulator.base import Ending
from simulator.control import Control
from simulator.server import SimServer
from simulator.validation import ENGINE_DEAD
from tests.simulator.wire import Conversation, Reply, ask, chat, connected, said

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
DEAD = {"error": {"message": ENGINE_DEAD, "type": "InternalServerError", "param": None, "code": 500}}
QUIET = 0.1  # seconds without a byte: five times the pause between the comments of a queued stream


@dataclass
class Busy:
    """A backend with two slots: `stream` and `whole` have begun, `queued` is a stream that waits."""

    sim: SimVllm
    stream: Conversation
    whole: Conversation
    queued: Conversation


@asynccontextmanager
async def busy() -> AsyncIterator[Busy]:
    sim = SimVllm(slots=2, decode=50, tool_parser=None, keep_alive=0.02)
    async with sim.serve() as url, connected(url) as stream, connected(url) as whole, connected(url) as queued:
        for count, conversation in enumerate((stream, whole, queued), 1):
            body = json.dumps(chat("write 5000 words", stream=conversation is not whole)).encode()
            await conversation.send("POST", CHAT, body, JSON)
            await sim.wait_inflight(count)
        await sim.wait_for(lambda: sum(s.made > 1 for s in sim.engine.running) == 2 and sim.engine.waiting)
        yield Busy(sim, stream, whole, queued)


async def rest(conversation: Conversation) -> bytes:
    """Every byte until nothing comes for a while. Raises ConnectionResetError, EOFError at a clean end, TimeoutError
    when it does not fall silent."""
    data = b""
    async with asyncio.timeout(20 * QUIET):
        while True:
            try:
                more = await asyncio.wait_for(conversation.reader.read(65536), QUIET)
            except TimeoutError:
                return data
            if not more:
                raise EOFError
            data += more


async def refuses(url: str) -> bool:
    try:
        await ask(url, "/health")
    except ConnectionRefusedError:
        return True
    return False


def assert_cut_by_an_error(reply: Reply) -> None:
    assert (reply.status, reply.whole) == (200, True)
    assert reply.events[-2:] == [DEAD, "[DONE]"]
    assert b'"finish_reason":"' not in reply.body


async def test_error_ends_streams_with_an_event_and_whole_answers_with_a_500() -> None:
    async with busy() as now:
        await now.sim.terminate(how="error")
        stream = await now.stream.reply()
        assert_cut_by_an_error(stream)
        assert said(Reply(200, "OK", [], stream.body.rpartition(b'data: {"error')[0]))["content"].startswith("and the")
        whole = await now.whole.reply()
        assert (whole.status, whole.json) == (500, DEAD)
        queued = await now.queued.reply()
        assert_cut_by_an_error(queued)
        assert len(queued.events) == 2
        assert await refuses(now.sim.url)
        assert (now.sim.inflight, now.sim.aborted) == (0, 0)


@pytest.mark.parametrize("fault", [None, "hang_before"])
async def test_error_ends_a_text_completion_too(fault: str | None) -> None:
    sim = SimVllm(decode=50)
    if fault:
        sim.fault(fault)
    async with sim.serve() as url:
        body = {"prompt": "hi", "max_tokens": 5000, "ignore_eos": True, "stream": True}
        asking = asyncio.create_task(ask(url, "/v1/completions", body))
        await sim.wait_for(lambda: sim.engine.running and (fault or sim.engine.running[0].made))
        await sim.terminate(how="error")
        reply = await asking
    if fault:
        assert (reply.status, reply.json) == (500, DEAD)
    else:
        assert_cut_by_an_error(reply)


async def test_error_ends_an_ollama_in_its_own_words() -> None:
    sim = SimOllama(slots=3, decode=50)
    messages = {"model": "qwen3:8b", "messages": [{"role": "user", "content": "write 5000 words"}]}
    asks: list[tuple[str, dict[str, Any]]] = [("/api/chat", {}), ("/api/chat", {"stream": False}), (CHAT, {})]
    async with sim.serve() as url:
        asking = [asyncio.create_task(ask(url, path, {**messages, **more})) for path, more in asks]
        await sim.wait_for(lambda: sum(s.made > 1 for s in sim.engine.running) == 3)
        await sim.terminate(how="error")
        stream, whole, lossy = [await task for task in asking]
    died = "an error was encountered while running the model"
    assert stream.whole
    assert [json.loads(line) for line in stream.body.splitlines()][-1] == {"error": died}
    assert (whole.status, whole.json) == (500, {"error": died})
    assert (lossy.status, lossy.json["error"]["message"]) == (500, died)


async def test_silent_keeps_the_connections_open_without_a_byte_until_the_kill() -> None:
    async with busy() as now:
        await now.sim.terminate(how="silent")
        assert await refuses(now.sim.url)
        conversations = (now.stream, now.whole, now.queued)
        texts = [await rest(c) for c in conversations]
        assert b'"content":"and' in texts[0]
        assert texts[1] == b""
        assert not any(b'finish_reason":"' in t or b"DONE" in t for t in texts)
        assert [await rest(c) for c in conversations] == [b"", b"", b""]
        assert now.sim.inflight == 3
        await now.sim.kill()
        for conversation in conversations:
            with pytest.raises(ConnectionResetError):
                await rest(conversation)
        assert (now.sim.inflight, now.sim.aborted) == (0, 0)


async def test_a_client_that_leaves_a_silent_backend_is_noticed() -> None:
    async with busy() as now:
        await now.sim.terminate(how="silent")
        now.whole.writer.close()
        await now.sim.wait_aborted(1)


@pytest.mark.parametrize("then", ["revive", "stop"])
async def test_what_hangs_at_a_silent_backend_is_reset_when_its_process_goes(then: str) -> None:
    async with busy() as now:
        await now.sim.terminate(how="silent")
        await rest(now.stream)
        await (now.sim.revive() if then == "revive" else now.sim.stop())
        with pytest.raises(ConnectionResetError):
            await rest(now.stream)
        if then == "revive":
            assert (await ask(now.sim.url, CHAT, chat(max_tokens=1))).status == 200


async def test_a_backend_whose_engine_died_can_be_started_again() -> None:
    async with busy() as now:
        await now.sim.terminate(how="error")
        await now.sim.revive()
        assert (await ask(now.sim.url, CHAT, chat(max_tokens=1))).status == 200


async def test_another_way_to_end_is_refused_and_nothing_ends() -> None:
    unknown: Any = "softly"
    sim = SimVllm()
    async with sim.serve() as url, SimServer(Control({"spark": sim})) as control:
        with pytest.raises(ValueError, match="'softly'; known: abort, error, silent"):
            await sim.terminate(how=unknown)
        for body in ({"how": "softly"}, {"how": ["abort"]}, {"ending": "silent"}, b"[]", b"silent"):
            reply = await ask(control.url, "/_sim/spark/terminate", body)
            assert (reply.status, list(reply.json)) == (400, ["error"])
        assert (await ask(url, "/health")).status == 200


@pytest.mark.parametrize("action", ["terminate", "stop"])
@pytest.mark.parametrize("how", [None, "abort", "error", "silent"])
async def test_the_control_port_says_how(action: str, how: Ending | None) -> None:
    async with busy() as now, SimServer(Control({"spark": now.sim})) as control:
        told = await ask(control.url, f"/_sim/spark/{action}", {"how": how} if how else b"", "POST")
        assert (told.status, told.json["alive"]) == (200, False)
        assert told.json["inflight"] == (3 if how == "silent" else 0)
        if how != "silent":
            last = (await now.stream.reply()).events[-2]
            assert last == DEAD if how == "error" else last["choices"][0]["finish_reason"] == "abort"


async def test_a_backend_can_be_told_itself_to_fall_silent() -> None:
    async with busy() as now:
        assert (await ask(now.sim.url, "/_sim/terminate", {"how": "silent"})).json["inflight"] == 3
        assert await refuses(now.sim.url)
