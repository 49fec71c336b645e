"""Every fault that can be switched on does on the wire what its name says: before an answer, and the switches."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from simulator import SimOllama
from simulator.faults import KINDS, Fault
from tests.simulator.steered import CHAT, JSON, sim, streamed
from tests.simulator.wire import Conversation, ask, chat, connected

# --- before an answer ---


async def test_refuse_closes_the_port_and_clear_opens_it() -> None:
    spark = sim()
    async with spark.serve() as url:
        spark.fault("refuse")
        with pytest.raises(ConnectionRefusedError):
            await ask(url, "/health")
        spark.clear()
        assert (await ask(url, "/health")).status == 200


async def test_die_loading_ends_a_start_in_the_place_of_serving() -> None:
    spark = sim(cold_start=20.0, speedup=1000.0)
    spark.fault("die_loading")
    async with spark.serve() as url:
        await spark.wait_for(lambda: not spark.alive)
        assert (spark.state()["exit_code"], spark.listening) == (1, False)
        assert spark.output.startswith("RuntimeError: Engine core initialization failed.")
        spark.clear()
        await spark.revive()
        await spark.wait_for(lambda: spark.listening)
        assert (await ask(url, "/health")).status == 200


async def test_loading_refuses_until_the_cold_start_is_over() -> None:
    spark = sim(cold_start=100.0, speedup=1000.0)
    async with spark.serve() as url:
        with pytest.raises(ConnectionRefusedError):
            await ask(url, "/health")
        await spark.wait_for(lambda: spark.state()["listening"])
        assert (await ask(url, "/health")).status == 200
        spark.fault("loading")
        with pytest.raises(ConnectionRefusedError):
            await ask(url, "/health")
        await spark.wait_for(lambda: spark.state()["listening"])


async def says_nothing(conversation: Conversation, url: str) -> None:
    """Not before another question, asked later, is answered."""
    reading = asyncio.create_task(conversation.reader.read(1))
    assert (await ask(url, "/health")).status == 200
    assert not reading.done()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


@pytest.mark.parametrize("stream", [True, False])
async def test_hang_before_sends_nothing_and_keeps_the_slot(stream: bool) -> None:
    spark = sim(slots=1)
    spark.fault("hang_before")
    async with spark.serve() as url:
        async with connected(url) as conversation:
            await conversation.send("POST", CHAT, json.dumps(chat("x", stream=stream)).encode(), JSON)
            await spark.wait_for(lambda: spark.engine.running and spark.engine.running[0].frozen)
            await says_nothing(conversation, url)
            assert len(spark.engine.running) == 1
        await spark.wait_aborted(1)
        assert not spark.engine.running


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_what_hangs_before_goes_on_when_the_fault_is_cleared(path: str) -> None:
    spark = sim()
    spark.fault("hang_before")
    async with spark.serve() as url:
        hanging = asyncio.create_task(ask(url, path, streamed(prompt="x")))
        await spark.wait_for(lambda: spark.engine.running and spark.engine.running[0].frozen)
        assert not hanging.done()
        spark.clear()
        assert (await hanging).events[-1] == "[DONE]"


async def test_hang_before_content_sends_the_role_chunk_and_then_nothing() -> None:
    spark = sim()
    spark.fault("hang_before_content")
    async with spark.serve() as url, connected(url) as conversation:
        await conversation.send("POST", CHAT, b'{"stream":true,"messages":[{"role":"user","content":"x"}]}', JSON)
        head = await conversation.read_until(b"}\n\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b'"role":"assistant"' in head
        await spark.wait_for(lambda: spark.engine.running and spark.engine.running[0].frozen)
        await says_nothing(conversation, url)


async def test_a_hung_engine_answers_health_while_its_counters_stand_still() -> None:
    spark = sim()
    async with spark.serve() as url:
        spark.fault("hang_engine")
        hanging = asyncio.create_task(ask(url, CHAT, chat()))
        await spark.wait_for(lambda: spark.engine.waiting)
        assert (await ask(url, "/health")).status == 200
        assert b'vllm:generation_tokens_total{engine="0",model_name="m"} 0.0' in (await ask(url, "/metrics")).body
        spark.clear()
        assert (await hanging).status == 200


async def test_hang_health_hangs_health_alone() -> None:
    spark = sim()
    spark.fault("hang_health")
    async with spark.serve() as url:
        probe = asyncio.create_task(ask(url, "/health"))
        assert (await ask(url, CHAT, chat())).status == 200
        assert not probe.done()
        spark.clear()
        assert (await probe).status == 200


async def test_unhealthy_is_a_503_on_health_alone() -> None:
    spark = sim()
    spark.fault("unhealthy")
    async with spark.serve() as url:
        assert (await ask(url, "/health")).status == 503
        assert (await ask(url, CHAT, chat())).status == 200


@pytest.mark.parametrize("reset", [True, False])
async def test_die_before_closes_the_connection_before_a_byte(reset: bool) -> None:
    spark = sim()
    spark.fault("die_before", count=1, reset=reset)
    async with spark.serve() as url:
        with pytest.raises(ConnectionResetError):
            await ask(url, CHAT, chat())
        assert (await ask(url, CHAT, chat())).status == 200, "count=1 hits one request"
        assert spark.aborted == 0, "the client did not leave"


@pytest.mark.parametrize(
    ("options", "status", "content_type", "part"),
    [
        ({}, 500, "application/json", b"EngineCore"),
        ({"status": 503}, 503, "application/json", b"currently busy"),
        ({"status": 502}, 502, "text/html", b"Bad Gateway"),
        ({"status": 404}, 404, "application/json", b'{"detail":"Not Found"}'),
        ({"status": 401}, 401, "application/json", b'{"error":"Unauthorized"}'),
        ({"body": "not_json"}, 200, "application/json", b"not JSON"),
        ({"status": 418, "body": {"a": 1}}, 418, "application/json", b'{"a":1}'),
    ],
)
async def test_status_answers_with_the_preset_of_its_status_or_with_its_body(
    options: dict[str, object], status: int, content_type: str, part: bytes
) -> None:
    spark = sim()
    spark.fault("status", **options)
    async with spark.serve() as url:
        reply = await ask(url, CHAT, chat())
    assert (reply.status, reply.header("content-type")) == (status, content_type)
    assert part in reply.body


async def test_status_429_says_when_to_come_back() -> None:
    spark = sim()
    spark.fault("status", status=429, headers={"Retry-After": 7})
    async with spark.serve() as url:
        assert (await ask(url, CHAT, chat())).header("retry-after") == "7"
        spark.clear()
        spark.fault("status", status=429)
        assert (await ask(url, CHAT, chat())).header("retry-after") == "1"


async def test_slow_waits_before_it_answers() -> None:
    spark = sim(speedup=10.0)
    spark.fault("slow", delay=1.0)
    loop = asyncio.get_running_loop()
    async with spark.serve() as url:
        started = loop.time()
        await ask(url, CHAT, chat())
        assert loop.time() - started >= 0.09


async def test_wrong_model_is_a_404_in_vllms_words() -> None:
    spark = sim()
    spark.fault("wrong_model")
    async with spark.serve() as url:
        reply = await ask(url, CHAT, chat(model="m"))
    assert reply.status == 404
    assert reply.json["error"]["message"].startswith("The model `m` does not exist.")


async def test_no_models_lists_nothing() -> None:
    spark = sim()
    spark.fault("no_models")
    async with spark.serve() as url:
        assert (await ask(url, "/v1/models")).json["data"] == []


# --- the switches ---


async def test_faults_are_switched_over_http() -> None:
    spark = sim()
    async with spark.serve() as url:
        assert (await ask(url, "/_sim/fault", {"kind": "status", "status": 503, "count": 1})).status == 200
        assert (await ask(url, CHAT, chat())).status == 503
        assert (await ask(url, CHAT, chat())).status == 200
        await ask(url, "/_sim/fault", {"kind": "status"})
        await ask(url, "/_sim/fault", method="DELETE")
        assert (await ask(url, CHAT, chat())).status == 200
        state = (await ask(url, "/_sim")).json
    assert state["requests"] == 3
    assert state["last"]["path"] == CHAT


@pytest.mark.parametrize("body", [{"kind": "no_such"}, {"kind": "slow", "speed": 3}, {}, b"nonsense", b"[]"])
async def test_a_fault_that_is_none_is_refused_with_the_known_kinds(body: object) -> None:
    async with sim().serve() as url:
        reply = await ask(url, "/_sim/fault", body)
    assert reply.status == 400
    assert "die_mid" in reply.json["error"]


def test_an_unknown_kind_is_an_error_in_python_too() -> None:
    with pytest.raises(ValueError, match="unknown fault 'nope'"):
        Fault("nope")


@pytest.mark.parametrize("kind", ["die_before", "die_mid", "hang_before", "error_event", "status"])
async def test_ollama_has_the_same_faults(kind: str) -> None:
    ollama = SimOllama()
    ollama.fault(kind, after=2, count=1)
    body = {"model": "qwen3:8b", "messages": [{"role": "user", "content": "hi"}]}
    async with ollama.serve() as url:
        if kind == "die_before":
            with pytest.raises(ConnectionResetError):
                await ask(url, "/api/chat", body)
        elif kind == "hang_before":
            hanging = asyncio.create_task(ask(url, "/api/chat", body))
            await ollama.wait_for(lambda: ollama.engine.running)
            hanging.cancel()
            await ollama.wait_aborted(1)
        else:
            reply = await ask(url, "/api/chat", body)
            assert reply.whole == (kind != "die_mid")
            assert (reply.status == 500) == (kind == "status")
            assert (b'"error"' in reply.body) == (kind in ("status", "error_event"))


def test_every_kind_has_a_test_and_a_line_in_the_docs() -> None:
    here = Path(__file__)
    tests = "".join(file.read_text() for file in here.parent.glob("test_faults*.py")).replace("-", "_")
    page = (here.parent.parent.parent / "docs" / "simulator.md").read_text()
    assert [k for k in KINDS if f'"{k}"' not in tests] == []
    assert [k for k in KINDS if f"`{k}`" not in page] == []
