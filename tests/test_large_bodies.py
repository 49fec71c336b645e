"""A large body keeps nobody waiting but its own client, and what is too much for one body is refused."""

from __future__ import annotations

import asyncio
import importlib
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from gateway.domain.request import STRINGS_MOST, read_fields
from gateway.errors import GatewayError
from gateway.large_bodies import LARGE, SEARCHED
from tests.failing_fleet import fleet, good
from tests.scripted import raw_post
from tests.waiting import PATIENCE

SAYS = [{"role": "user", "content": "word " * (LARGE // 5)}]
SHOWS = [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "A" * SEARCHED}}]}]
Body = dict[str, Any]
WORK: dict[str, tuple[str, str, Body]] = {
    "a message": ("gateway.dialects.anthropic.exchange.to_chat", "/v1/messages", {"messages": SAYS}),
    "a response": ("gateway.dialects.responses.exchange.read", "/v1/responses", {"input": SAYS}),
    "a count": ("gateway.api.messages.to_chat", "/v1/messages/count_tokens", {"messages": SAYS}),
    "media": ("gateway.domain.request.find_media", "/v1/chat/completions", {"messages": SHOWS}),
}


class Held:
    """Work that goes on when it is told to."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self.work = work
        self.begun, self.told = threading.Event(), threading.Event()

    def __call__(self, *args: Any) -> Any:
        self.begun.set()
        assert self.told.wait(PATIENCE), "the event loop does this work itself"
        return self.work(*args)


@pytest.mark.parametrize("name", WORK)
async def test_others_are_served_while_a_large_body_is_worked_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, path, body = WORK[name]
    module, _, function = place.rpartition(".")
    held = Held(getattr(importlib.import_module(module), function))
    async with fleet(good) as f:
        monkeypatch.setattr(place, held)
        large = asyncio.create_task(raw_post(f.gateway.url, {"model": "chat", "max_tokens": 5, **body}, path))
        await f.gateway.until(held.begun.is_set)
        assert (await f.ask("hello")).status == 200
        assert not large.done()
        held.told.set()
        assert (await large).status == 200


@pytest.mark.parametrize("name", ["a message", "a response"])
async def test_what_is_wrong_with_a_large_body_is_told(name: str) -> None:
    _, path, body = WORK[name]
    async with fleet(good) as f:
        body = {"model": "chat", "max_tokens": 5, **{key: [*said, 1] for key, said in body.items()}}
        reply = await raw_post(f.gateway.url, body, path)
        assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(("strings", "refused"), [(STRINGS_MOST, False), (STRINGS_MOST + 1, True)])
def test_a_body_holds_so_many_strings_and_no_more(strings: int, refused: bool) -> None:
    body = b'{"a":[' + b",".join([b'"a"'] * (strings - 1)) + b"]}"
    if not refused:
        assert len(read_fields(body)["a"]) == len(body) - len(b'{"a":}')
        return
    with pytest.raises(GatewayError) as error:
        read_fields(body)
    assert error.value.code == "request_too_large"
    assert f"{STRINGS_MOST:,} strings" in error.value.message


def test_quotes_in_a_text_are_no_strings() -> None:
    text = '"' * (2 * STRINGS_MOST + 10)
    assert json.loads(bytes(read_fields(json.dumps({"a": text}).encode())["a"])) == text
