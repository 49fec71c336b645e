"""A large request or answer keeps nobody waiting but its own client, and what is too much for one body is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from pkgutil import resolve_name
from typing import Any

import pytest
from prometheus_client.exposition import choose_encoder

from gateway.domain.request_timer import Pulse, ReaderStalled, RequestTimer
from gateway.domain.upstream import SilenceFailure
from gateway.large_bodies import LARGE, SEARCHED, THREADS, Paced, SharedThreads, apart
from tests.failing_fleet import CHOICE, CHUNK, WHOLE, fleet, good
from tests.scripted import Turn, json_answer, raw_post
from tests.waiting import PATIENCE, until

SAYS = [{"role": "user", "content": "word " * (LARGE // 5)}]
SHOWS = [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "A" * SEARCHED}}]}]
Body = dict[str, Any]
WORK: dict[str, tuple[str, str, Body]] = {
    "a message": ("gateway.apps.dialects.anthropic.stream.chat_of", "/v1/messages", {"messages": SAYS}),
    "a response": ("gateway.apps.dialects.responses.relayed.chat_request_of", "/v1/responses", {"input": SAYS}),
    "a count": ("gateway.apps.dialects.token_counts.to_chat", "/v1/messages/count_tokens", {"messages": SAYS}),
    "a chat": ("gateway.domain.request.read_fields", "/v1/chat/completions", {"messages": SHOWS}),
    "its form": ("gateway.proxy.attempt.messages_in_form", "/v1/chat/completions", {"messages": SHOWS}),
    "tokens": ("gateway.apps.tokens.api.read_fields", "/tokenize", {"prompt": "word " * (SEARCHED // 5)}),
    "media": ("gateway.domain.request.find_media", "/v1/chat/completions", {"messages": SHOWS}),
}


async def counts(turn: Turn) -> None:
    tokens = {"count": 1, "max_model_len": 1, "tokens": [1]}
    await turn.send(json_answer(tokens if turn.path == "/tokenize" else WHOLE))


class Held:
    """Work that goes on when it is told to."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self.work = work
        self.begun, self.told = threading.Event(), threading.Event()

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.begun.set()
        assert self.told.wait(PATIENCE), "the event loop does this work itself"
        return self.work(*args, **options)


@pytest.mark.parametrize("name", WORK)
async def test_others_are_served_while_a_large_body_is_worked_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, path, body = WORK[name]
    held = Held(resolve_name(place))
    async with fleet(counts) as f:
        monkeypatch.setattr(place, held)
        large = asyncio.create_task(raw_post(f.gateway.url, {"model": "chat", "max_tokens": 5, **body}, path))
        await f.gateway.until(held.begun.is_set)
        assert (await f.ask("hello")).status == 200
        assert not large.done()
        held.told.set()
        assert (await large).status == 200


async def long_answer(turn: Turn) -> None:
    text = "word " * (LARGE * 8 // 5)  # in many reads
    if turn.json.get("stream"):
        await turn.stream(CHUNK.replace(b"hi", text.encode()), b"data: [DONE]\n\n")
    else:
        await turn.send(json_answer({**WHOLE, "choices": [{**CHOICE, "message": {"content": text}}]}))


ANSWERS = {
    "whole": ("gateway.proxy.attempt.read_whole", "/v1/chat/completions", False),
    "an event": ("gateway.inspection.stream_track.StreamTrack.feed", "/v1/chat/completions", True),
    "a whole message": ("gateway.apps.dialects.anthropic.stream.to_message", "/v1/messages", False),
    "events of a message": ("gateway.apps.dialects.anthropic.stream.MessageStream.translate", "/v1/messages", True),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_others_are_served_while_a_large_answer_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, path, stream = ANSWERS[name]
    held = Held(resolve_name(place))

    def work(*args: Any) -> Any:
        large = any(len(one) > LARGE for arg in args for one in ([arg] if isinstance(arg, bytes) else [*_events(arg)]))
        return held(*args) if large else held.work(*args)

    async with fleet(long_answer, keys=", timeouts: {first_byte: 2s, idle: 2s}") as f:
        monkeypatch.setattr(place, work)
        body = {"model": "chat", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], "stream": stream}
        large = asyncio.create_task(raw_post(f.gateway.url, body, path))
        await f.gateway.until(held.begun.is_set)
        assert (await f.gateway.client.get("/health")).status_code == 200
        (request,) = f.gateway.requests()
        request.timer.check(request.timer.now() + 100)
        assert not large.done()
        held.told.set()
        reply = await large
        assert reply.status == 200
        assert len(reply.body) > LARGE


async def test_the_large_bodies_of_one_sender_keep_no_other_sender_waiting() -> None:
    threads, ran = SharedThreads(THREADS), list[str]()
    held = Held(lambda: ran.append("a1"))
    first = threads.submit("a", held)
    await until(held.begun.is_set)
    more = [threads.submit("a", partial(ran.append, name)) for name in ("a2", "a3", "a4")]
    for sender in "bc":
        await asyncio.wrap_future(threads.submit(sender, partial(ran.append, sender)))
    assert ran == ["b", "c"]
    assert more[1].cancel()
    fails = threads.submit("a", partial(int, "x"))
    held.told.set()
    with pytest.raises(ValueError, match="invalid literal"):
        await asyncio.wrap_future(fails)
    assert ran == ["b", "c", "a1", "a2", "a4"]
    assert first.done()


async def test_senders_take_turns() -> None:
    threads, ran = SharedThreads(1), list[str]()
    held = Held(lambda: None)
    threads.submit("x", held)
    await until(held.begun.is_set)
    names = ("a1", "a2", "a3", "b1", "c1", "b2")
    all_of_it = [asyncio.wrap_future(threads.submit(name[0], partial(ran.append, name))) for name in names]
    held.told.set()
    await asyncio.gather(*all_of_it)
    assert ran == ["a1", "b1", "c1", "a2", "b2", "a3"]


async def test_a_client_whose_large_body_is_worked_on_keeps_no_other_client_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place, path, body = WORK["a message"]
    held = Held(resolve_name(place))
    async with fleet(good, more="clients: {a: {key: key-a}, b: {key: key-b}}") as f:
        asked = {"model": "chat", "max_tokens": 5, **body}
        monkeypatch.setattr(place, held)
        url = f.gateway.url
        held_up = [asyncio.create_task(raw_post(url, asked, path, ["x-api-key: key-a"])) for _ in range(THREADS + 1)]
        await f.gateway.until(lambda: held.begun.is_set() and len(f.gateway.requests()) == len(held_up))
        monkeypatch.setattr(place, held.work)
        assert (await raw_post(url, asked, path, ["x-api-key: key-b"])).status == 200
        assert not any(task.done() for task in held_up)
        held.told.set()
        assert {reply.status for reply in await asyncio.gather(*held_up)} == {200}


@pytest.mark.parametrize("kind", [SilenceFailure, ReaderStalled])
async def test_while_the_gateway_works_on_a_body_nobody_else_is_late(kind: type[Exception]) -> None:
    held = Held(lambda: None)
    working = asyncio.create_task(apart("a", held))
    await until(held.begun.is_set)
    timer = RequestTimer(Pulse(), working, lambda: None)
    timer.expect(5)
    timer.writing = timer.now() if kind is ReaderStalled else 0.0
    end = timer.now() + 100
    timer.check(end)
    held.told.set()
    await working
    timer.check(end + 4)
    assert timer.reason is None
    timer.check(end + 5)
    assert isinstance(timer.reason, kind)
    timer.close()


def _events(arg: object) -> list[bytes]:
    return [one for one in arg if isinstance(one, bytes)] if isinstance(arg, list) else []


async def test_others_are_served_while_a_page_of_metrics_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    encode, kind = choose_encoder("")
    held = Held(encode)
    async with fleet(good) as f:
        monkeypatch.setattr("gateway.api.ops.choose_encoder", lambda accept: (held, kind))
        page = asyncio.create_task(f.gateway.client.get("/metrics"))
        await f.gateway.until(held.begun.is_set)
        assert (await f.ask("hello")).status == 200
        assert not page.done()
        held.told.set()
        assert 'gateway_backend_up{backend="a"}' in (await page).text


@pytest.mark.parametrize("name", ["a message", "a response"])
async def test_what_is_wrong_with_a_large_body_is_told(name: str) -> None:
    _, path, body = WORK[name]
    async with fleet(good) as f:
        body = {"model": "chat", "max_tokens": 5, **{key: [*said, 1] for key, said in body.items()}}
        reply = await raw_post(f.gateway.url, body, path)
        assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error")


async def test_large_work_has_a_rest_of_its_own_time_behind_it() -> None:
    now, slept = 100.0, []

    async def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    paced = Paced(SEARCHED, lambda: now)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.large_bodies.asyncio.sleep", sleep)
        for size, took in ((20, 5.0), (5, 7.0), (0.5, 9.0), (5, 1.0)):
            async with paced.turn(int(size * SEARCHED)):
                now += took
    assert slept == pytest.approx([20.0])
