"""What an answer says to a person behind a chat page: that another model gave it, and what it waits for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.config.snapshot import Alias
from gateway.domain.endpoints import CHAT
from gateway.domain.request import parse
from gateway.proxy.notice import Notice, drop_notices, notice_of
from tests.proxy.house import END, ROLE, USAGE, event, well
from tests.raw_client import chat
from tests.routing.parts import backend, fleet, request
from tests.scripted import Script, ScriptedBackend, Turn, json_answer, scripted
from tests.support import RunningGateway, running_gateway

PATH = "/v1/chat/completions"
LINE = "\n\n*Answered by b: a failed.*"


async def fails(turn: Turn) -> None:
    await turn.send(json_answer({"error": {"message": "broken", "code": 500}}, "500 Internal Server Error"))


async def content_with_its_end(turn: Turn) -> None:
    if not turn.json.get("stream"):
        await well(turn)
        return
    await turn.stream(ROLE, event({"content": "Ye"}), event({"content": "s."}, "stop"), event(None, usage=USAGE))


@asynccontextmanager
async def pair(
    script: Script, second: str = "other", alias: str = "notice: true", keys: str = ""
) -> AsyncIterator[RunningGateway]:
    """`a` fails, `b` answers; `second`: the model of `b`."""
    a, b = ScriptedBackend((fails,), model="one", apart=True), ScriptedBackend((script,), model=second, apart=True)
    async with a.serve(), b.serve():
        routes = (
            "defaults: {health: {every: 1h}}\n"
            f"backends: {{a: {{url: '{a.url}'}}, b: {{url: '{b.url}'{keys}}}}}\n"
            f"aliases: {{chain: {{use: [a, b], {alias}}}}}\n"
        )
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a", "b")
            yield gateway


async def text_of(gateway: RunningGateway, **fields: Any) -> str:
    reply = await gateway.client.post(PATH, json=chat("chain", **fields))
    assert reply.status_code == 200, reply.text
    if not fields.get("stream"):
        return str(reply.json()["choices"][0]["message"]["content"])
    events = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    choices = [one for data in events[:-1] for one in json.loads(data)["choices"]]
    assert [one["finish_reason"] for one in choices if one["finish_reason"]] == ["stop"]
    assert choices[-1]["finish_reason"] == "stop", "nothing follows the end"
    return "".join(one["delta"].get("content") or "" for one in choices)


@pytest.mark.parametrize("script", [well, content_with_its_end])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_fallback_to_another_model_is_said_at_the_end(script: Script, stream: bool) -> None:
    async with pair(script) as gateway:
        assert await text_of(gateway, stream=stream) == "Yes." + LINE


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"choice": ["Yes.", "No."]}},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_a_program_is_told_nothing(fields: dict[str, Any], stream: bool) -> None:
    async with pair(well, keys=", tool_parser: hermes") as gateway:
        assert await text_of(gateway, stream=stream, **fields) == "Yes."


async def test_a_side_call_is_told_nothing() -> None:
    async with pair(well) as gateway:
        assert await text_of(gateway, said="### Task:\nGive it a title") == "Yes."


@pytest.mark.parametrize("keys", [{"second": "one"}, {"alias": "on_busy: wait"}], ids=["replica", "off"])
async def test_nothing_is_said_of_the_same_model_nor_where_it_is_off(keys: dict[str, str]) -> None:
    async with pair(well, **keys) as gateway:
        for stream in (False, True):
            assert await text_of(gateway, stream=stream) == "Yes."


def test_a_cloud_is_said_whatever_the_reason() -> None:
    states = fleet(backend("a"), backend("b", cloud=True), backend("c"))
    alias = Alias("x", (("a",), ("b",), ("c",)), notice=True)
    asked = request()
    told = {
        name: notice_of(alias, asked, states[name], states, ("routed", "too_long")) is not None for name in ("b", "c")
    }
    assert told == {"b": True, "c": False}


async def test_the_model_never_sees_the_lines_of_earlier_answers() -> None:
    bodies: list[Any] = []

    async def noted(turn: Turn) -> None:
        bodies.append(turn.json)
        await well(turn)

    async with pair(noted) as gateway:
        history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": await text_of(gateway)}]
        history.append({"role": "user", "content": "Why did you write '*Answered by b'?"})
        await text_of(gateway, messages=history)
    assert [one["content"] for one in bodies[-1]["messages"]] == ["Hi", "Yes.", history[2]["content"]]


def test_the_line_is_said_once_and_other_events_stay_as_they_are() -> None:
    notice = Notice("*other*")
    before = ROLE + event({"content": "Hi"}) + b": ping\n\n"
    assert notice.put_into(before) == before
    first = notice.put_into(b"".join(END))
    assert first.endswith(b"".join(END))
    assert b"*other*" in first
    assert notice.put_into(b"".join(END)) == b"".join(END)


@pytest.mark.parametrize("body", [b"[1]", b"{}", b'{"choices":[]}', b'{"choices":[{"message":null}]}', b"no json"])
def test_an_answer_of_another_form_stays_as_it_is(body: bytes) -> None:
    assert Notice("x").end(body) == body


async def test_a_wait_for_a_slot_is_said_in_thoughts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.proxy.reply.WAIT_TOLD", 0.05)
    free = asyncio.Event()

    async def waits(turn: Turn) -> None:
        await free.wait()
        await well(turn)

    async with scripted(waits) as a:
        routes = (
            "defaults: {health: {every: 1h}}\n"
            f"backends: {{a: {{url: '{a.url}', slots: 1}}}}\n"
            "aliases: {told: {use: [a], notice: true}, not: {use: [a]}}\n"
        )
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a")
            first = asyncio.create_task(gateway.client.post(PATH, json=chat("not")))
            await gateway.until(lambda: gateway.gateway.fleet["a"].inflight == 1)
            async with gateway.client.stream("POST", PATH, json=chat("told", stream=True)) as reply:
                lines = reply.aiter_lines()
                async for line in lines:
                    if "reasoning_content" in line:
                        break
                thought = json.loads(line.removeprefix("data: "))["choices"][0]["delta"]["reasoning_content"]
                assert thought.startswith("Waiting for a free slot of a")
                free.set()
                rest = [line async for line in lines]
            assert any("Yes." in line for line in rest)
            assert (await first).status_code == 200


def taken_out(text: str) -> Any:
    asked = parse(CHAT, json.dumps({"model": "m", "messages": [{"role": "assistant", "content": text}]}).encode())
    drop_notices(asked)
    return json.loads(bytes(asked.fields["messages"]))[0]["content"]


@pytest.mark.parametrize("before", ["", "Yes.", "C:\\", "C:\\n", "one\n", "one\n\n", "\\\n"])
def test_the_history_loses_the_line_and_nothing_else(before: str) -> None:
    assert taken_out(f"{before}{LINE}".lstrip("\n")).rstrip("\n") == before.rstrip("\n")


def test_a_history_of_line_ends_takes_as_long_as_it_is() -> None:
    many = "\n" * 200_000
    assert taken_out(f"{many}x{LINE}") == f"{many}x"  # for each of them, all of them would be looked at
