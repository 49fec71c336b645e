"""Errors of clouds keep their meaning: answers, failures of the connection, errors inside a stream."""

from __future__ import annotations

import asyncio

import pytest

from gateway.apps.cloud.engine import import_sdk
from gateway.apps.cloud.errors import error_answer
from gateway.domain.upstream import ConnectFailure, UpstreamFailure
from gateway.inspection.error_replies import judge
from tests.apps.cloud.test_engine import KEY, ask
from tests.engines.anthropic_server import (
    START,
    AnthropicServer,
    Script,
    error,
    event,
    text_block,
)
from tests.engines.scripted import events_of


async def test_an_error_inside_a_stream_is_an_error_event(server: AnthropicServer) -> None:
    broken = event("error", error={"type": "overloaded_error", "message": f"Overloaded {KEY}"})
    server.script = Script(pieces=[START, text_block(0, "Hel"), broken])
    body = await (await ask(server.url, stream=True)).read_all(100_000)
    events = events_of(body)
    assert "Overloaded" in events[-1]["error"]["message"]
    assert KEY.encode() not in body


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(
    ("status", "kind", "verdict"),
    [
        (400, "invalid_request_error", "client"),
        (401, "authentication_error", "misconfigured"),
        (403, "permission_error", "misconfigured"),
        (404, "not_found_error", "misconfigured"),
        (429, "rate_limit_error", "cooldown"),
        (500, "api_error", "failed"),
        (529, "overloaded_error", "failed"),
    ],
)
async def test_errors_keep_their_meaning(
    server: AnthropicServer, status: int, kind: str, verdict: str, streamed: bool
) -> None:
    server.script = Script(status, [error(kind, f"no, and your key is {KEY}")], {"retry-after": "7"})
    response = await ask(server.url, stream=streamed)
    body = await response.read_all(10_000)
    assert KEY.encode() not in body
    told = judge(response.status, response.headers, body, "chat")
    assert told.kind == verdict
    assert told.retry_after == (7.0 if verdict == "cooldown" else None)
    assert len(server.requests) == 1  # nothing is tried twice: each try may be billed


async def test_a_prompt_over_the_window_is_understood(server: AnthropicServer) -> None:
    server.script = Script(400, [error("invalid_request_error", "prompt is too long: 200001 tokens > 200000 maximum")])
    response = await ask(server.url)
    assert judge(response.status, {}, await response.read_all(10_000), "chat").kind == "too_long"


async def test_a_refused_connection_is_a_failure() -> None:
    with pytest.raises(ConnectFailure):
        await ask("http://127.0.0.1:1")


async def test_a_connection_that_breaks_before_an_answer_is_a_failure() -> None:
    async with await asyncio.start_server(_hang_up, "127.0.0.1", 0) as mute:
        port = mute.sockets[0].getsockname()[1]
        try:
            response = await ask(f"http://127.0.0.1:{port}")
        except UpstreamFailure:
            return
        assert response.status >= 500


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.close()


def test_a_timeout_is_silence_and_not_the_clients_fault() -> None:
    sdk = import_sdk()
    with pytest.raises(UpstreamFailure) as failure:
        error_answer(sdk, sdk.exceptions.Timeout("slow", model="m", llm_provider="anthropic"), KEY)
    assert failure.value.kind == "silence"


def test_a_wrapped_midstream_error_is_what_it_wraps() -> None:
    sdk = import_sdk()
    inner = sdk.exceptions.RateLimitError("slow down", model="m", llm_provider="anthropic")
    outer = sdk.exceptions.MidStreamFallbackError("x", model="m", llm_provider="anthropic", original_exception=inner)
    assert error_answer(sdk, outer, None).status == 429
