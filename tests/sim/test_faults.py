"""Every fault that can be switched on does on the wire what its name says."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from pathlib import Path

import pytest

from gateway.sim import SimOllama, SimVllm
from gateway.sim.faults import KINDS, Fault
from tests.sim.wire import Reply, ask, chat, connected, said

CHAT = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def sim(**options: object) -> SimVllm:
    return SimVllm("spark", served=["m"], **{"tool_parser": "hermes", "reasoning_parser": "qwen3", **options})  # type: ignore[arg-type]  # test options


def streamed(text: str = "hi", **more: object) -> dict[str, object]:
    return chat(text, stream=True, **more)


def tokens(reply: Reply) -> int:
    """Deltas with something in them; the first event is the role chunk."""
    choices = [c for e in reply.events[1:] if e != "[DONE]" for c in e.get("choices", [])]
    return sum(any(c["delta"].values()) for c in choices)


def finish(reply: Reply) -> str | None:
    reasons = [c["finish_reason"] for e in reply.events if e != "[DONE]" for c in e.get("choices", [])]
    return next((r for r in reasons if r), None)


# --- before an answer ---


async def test_refuse_closes_the_port_and_clear_opens_it() -> None:
    spark = sim()
    async with spark.serve() as url:
        spark.fault("refuse")
        with pytest.raises(ConnectionRefusedError):
            await ask(url, "/health")
        spark.clear()
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


@pytest.mark.parametrize("stream", [True, False])
async def test_hang_before_sends_nothing_and_keeps_the_slot(stream: bool) -> None:
    spark = sim(slots=1)
    spark.fault("hang_before")
    async with spark.serve() as url:
        async with connected(url) as conversation:
            await conversation.send("POST", CHAT, b'{"messages":[{"role":"user","content":"x"}]}', JSON)
            await spark.wait_for(lambda: spark.engine.running)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(conversation.reader.read(1), 0.1)
            assert len(spark.engine.running) == 1
        await spark.wait_aborted(1)
        assert not spark.engine.running


JSON = {"content-type": "application/json"}


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
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(conversation.reader.read(1), 0.1)


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


# --- inside an answer ---


async def test_hang_mid_falls_silent_after_so_many_tokens() -> None:
    spark = sim(reasoning_parser=None)
    spark.fault("hang_mid", after=3)
    async with spark.serve() as url:
        hanging = asyncio.create_task(ask(url, CHAT, streamed()))
        await spark.wait_for(lambda: spark.engine.running and spark.engine.running[0].made == 3)
        assert spark.engine.counters.generation_tokens == 3
        spark.clear()
        assert finish(await hanging) == "stop"


@pytest.mark.parametrize("after", [0, 3, 500])
async def test_die_mid_ends_the_connection_after_so_many_tokens(after: int) -> None:
    spark = sim(reasoning_parser=None)
    spark.fault("die_mid", after=after)
    async with spark.serve() as url:
        reply = await ask(url, CHAT, streamed())
    assert not reply.whole
    assert tokens(reply) == after
    assert finish(reply) is None


async def test_die_mid_without_stream_cuts_the_body() -> None:
    spark = sim()
    spark.fault("die_mid", after=3)
    async with spark.serve() as url:
        reply = await ask(url, CHAT, chat())
    assert reply.status == 200
    assert not reply.whole


async def test_error_event_is_followed_by_done() -> None:
    spark = sim(reasoning_parser=None)
    spark.fault("error_event", after=2)
    async with spark.serve() as url:
        reply = await ask(url, CHAT, streamed())
        whole = await ask(url, CHAT, chat())
    assert tokens(reply) == 2
    assert reply.events[-2]["error"]["code"] == 500
    assert reply.events[-1] == "[DONE]"
    assert whole.status == 500
    assert "EngineCore" in whole.json["error"]["message"]


async def test_end_without_finish_is_a_clean_end() -> None:
    spark = sim(reasoning_parser=None)
    spark.fault("end_without_finish", after=2)
    async with spark.serve() as url:
        reply = await ask(url, CHAT, streamed())
    assert (reply.whole, tokens(reply), finish(reply)) == (True, 2, None)
    assert "[DONE]" not in reply.events


async def test_no_done_is_whole_but_for_done() -> None:
    spark = sim()
    spark.fault("no_done")
    async with spark.serve() as url:
        reply = await ask(url, CHAT, streamed())
    assert (reply.whole, finish(reply)) == (True, "stop")
    assert "[DONE]" not in reply.events


@pytest.mark.parametrize(("kind", "reason"), [("abort", "abort"), ("error_finish", "error")])
async def test_a_bad_finish_comes_with_status_200(kind: str, reason: str) -> None:
    spark = sim(reasoning_parser=None)
    spark.fault(kind, after=2)
    async with spark.serve() as url:
        reply, whole = await ask(url, CHAT, streamed()), await ask(url, CHAT, chat())
    assert (reply.status, finish(reply), tokens(reply)) == (200, reason, 2)
    assert whole.json["choices"][0]["finish_reason"] == reason
    assert whole.json["usage"]["completion_tokens"] == 2


# --- what the model says ---


@pytest.mark.parametrize("stream", [True, False])
async def test_leak_tools_puts_the_call_into_content(stream: bool) -> None:
    spark = sim()
    spark.fault("leak_tools")
    async with spark.serve() as url:
        reply = await ask(url, CHAT, chat("the weather?", stream=stream, tools=[WEATHER]))
    text = said(reply)["content"] if stream else reply.json["choices"][0]["message"]["content"]
    assert "<tool_call>" in text
    assert '"get_weather"' in text
    assert (finish(reply) if stream else reply.json["choices"][0]["finish_reason"]) == "stop"


async def test_leak_think_puts_thoughts_into_content() -> None:
    spark = sim()
    spark.fault("leak_think")
    async with spark.serve() as url:
        message = (await ask(url, CHAT, chat())).json["choices"][0]["message"]
    assert message["content"].startswith("<think>")
    assert "</think>" in message["content"]
    assert message["reasoning"] is None


async def test_empty_turn_has_thoughts_at_most() -> None:
    spark = sim()
    spark.fault("empty_turn")
    async with spark.serve() as url:
        choice = (await ask(url, CHAT, chat("the weather?", tools=[WEATHER]))).json["choices"][0]
    assert choice["message"]["reasoning"]
    assert not (choice["message"]["content"] or "").strip()
    assert "tool_calls" not in choice["message"]


async def test_a_wrong_parser_is_an_empty_200_with_tokens() -> None:
    spark = sim(tool_parser="qwen3_xml", reasoning_parser=None)
    spark.fault("wrong_parser")
    async with spark.serve() as url:
        whole = (await ask(url, CHAT, chat("the weather?", tools=[WEATHER]))).json
        reply = await ask(url, CHAT, streamed("the weather?", tools=[WEATHER]))
    assert whole["choices"][0]["message"]["content"] is None
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["usage"]["completion_tokens"] > 10
    assert said(reply) == {}


async def test_garbage_is_exclamation_marks() -> None:
    spark = sim(reasoning_parser=None)
    spark.fault("garbage")
    async with spark.serve() as url:
        text = (await ask(url, CHAT, chat())).json["choices"][0]["message"]["content"]
    assert set(text) == {"!"}
    assert len(text) > 20


async def test_repetition_ends_with_its_own_reason() -> None:
    spark = sim(reasoning_parser=None)
    spark.fault("repetition")
    async with spark.serve() as url:
        reply = await ask(url, CHAT, streamed())
    assert finish(reply) == "repetition"
    assert set(said(reply)["content"].split()) == {"again"}


# --- how it is put on the wire ---


async def plain(url: str) -> Reply:
    return await ask(url, CHAT, streamed(), headers={"x-request-id": "same"})


def lines_of(body: bytes) -> list[bytes]:
    return [line for line in body.replace(b"\r\n", b"\n").split(b"\n") if line.startswith(b"data:")]


@pytest.mark.parametrize("kind", ["cut_chunks", "crlf", "comments", "gzip"])
async def test_a_wire_fault_changes_the_bytes_but_not_what_is_said(kind: str) -> None:
    spark = sim()
    async with spark.serve() as url:
        before = said(await plain(url))
        spark.fault(kind)
        reply = await plain(url)
    if kind == "gzip":
        assert reply.header("content-encoding") == "gzip"
        reply.body = gzip.decompress(reply.body)
    if kind == "crlf":
        assert b"\r\n\r\n" in reply.body
        assert b"\n\n" not in reply.body
        reply.body = reply.body.replace(b"\r\n", b"\n")
    if kind == "comments":
        assert reply.body.count(b": a comment\n") == reply.body.count(b"data:")
    assert said(reply) == before


async def test_cut_chunks_sends_pieces_of_the_given_sizes() -> None:
    spark = sim()
    spark.fault("cut_chunks", sizes=(2, 5))
    async with spark.serve() as url, connected(url) as conversation:
        await conversation.send("POST", CHAT, b'{"stream":true,"messages":[{"role":"user","content":"x"}]}', JSON)
        await conversation.read_until(b"\r\n\r\n")
        assert await conversation.read_until(b"2\r\nda\r\n5\r\nta: {\r\n")


async def test_gzip_is_flushed_event_by_event() -> None:
    spark = sim(reasoning_parser=None)
    spark.fault("gzip")
    spark.fault("hang_mid", after=1)
    async with spark.serve() as url, connected(url) as conversation:
        await conversation.send("POST", CHAT, b'{"stream":true,"messages":[{"role":"user","content":"x"}]}', JSON)
        await conversation.event()
        unpacked, text = zlib.decompressobj(wbits=31), b""
        async with asyncio.timeout(5):
            while text.count(b"\n\n") < 2:
                text += unpacked.decompress(bytes((await conversation.event()).data))
        assert b'"role":"assistant"' in text


async def test_multiline_breaks_an_event_over_two_data_lines() -> None:
    spark = sim()
    spark.fault("multiline")
    async with spark.serve() as url:
        body = (await plain(url)).body
    first = body.split(b"\n\n")[0].split(b"\n")
    assert len(first) == 2
    assert all(line.startswith(b"data: ") for line in first)


async def test_unasked_usage_is_a_chunk_without_choices() -> None:
    spark = sim()
    async with spark.serve() as url:
        assert all(e == "[DONE]" or e["choices"] for e in (await plain(url)).events)
        spark.fault("unasked_usage")
        assert (await plain(url)).events[-2]["choices"] == []


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
    tests = here.read_text().replace("-", "_")
    page = (here.parent.parent.parent / "docs" / "simulator.md").read_text()
    assert [k for k in KINDS if f'"{k}"' not in tests] == []
    assert [k for k in KINDS if f"`{k}`" not in page] == []
