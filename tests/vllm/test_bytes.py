"""What vLLM writes is what the client gets, byte for byte, but for the model's name and the usage chunk it did not ask
for. Held against a wiretap between gateway and vLLM: two runs would differ in how tokens are merged into events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import running_gateway

from .asks import CALL, CHAT, WEATHER, chat, script
from .servers import RUST, VllmServer
from .wiretap import wiretap

TEXT = '<think>Let me see: ünï 🙂</think>Hello there, 世界 — "quoted" \\ and\ttabs\n\nand "model":"tiny" in the text'
COMPLETIONS = "/v1/completions"
PROMPT = {"model": "front", "prompt": "once upon", "max_tokens": 40}
TWO_CALLS = "<think>two</think>" + CALL % "Oslo" + "\n" + CALL % "Rome"

BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "thoughts and text": (CHAT, chat(**script(TEXT))),
    "random text": (CHAT, chat(max_tokens=60, seed=5, temperature=1.0)),
    "cut by length": (CHAT, chat(max_tokens=3, **script("<think></think>one two three four five six"))),
    "two choices": (CHAT, chat(n=2, **script(TEXT))),
    "logprobs": (CHAT, chat(logprobs=True, top_logprobs=2, **script(TEXT))),
    "token ids": (CHAT, chat(return_token_ids=True, **script(TEXT))),
    "a tool call": (CHAT, chat(tools=[WEATHER], **script("<think>hm</think>" + CALL % "Oslo"))),
    "two tool calls": (CHAT, chat(tools=[WEATHER], **script(TWO_CALLS))),
    "a stop text": (CHAT, chat(stop=["there"], **script("<think></think>Hello there, world"))),
    "a completion": (COMPLETIONS, {**PROMPT, **script(TEXT)}),
    "two completions with logprobs": (COMPLETIONS, {**PROMPT, "prompt": ["a", "b"], "logprobs": 1, **script("Hello")}),
}
if RUST:  # several requests for several answers; and it sends the line break between two calls as content
    BODIES = {name: body for name, body in BODIES.items() if not name.startswith("two ")}
every_body = pytest.mark.parametrize(("path", "body"), BODIES.values(), ids=BODIES.keys())


def usage_chunk(event: bytes) -> bool:
    if not event.startswith(b"data: {"):
        return False
    chunk = json.loads(event.removeprefix(b"data: "))
    return chunk["choices"] == [] and "usage" in chunk


async def through(server: VllmServer, path: str, body: dict[str, Any]) -> tuple[bytes, bytes, dict[str, Any]]:
    """(what the client got, what vLLM wrote, what vLLM was asked)."""
    async with wiretap(server.url) as tap:
        routes = f"backends: {{a: {{url: '{tap.url}'}}}}\naliases: {{front: [a]}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a")
            got = await gateway.client.post(path, json=body, headers={"x-request-id": "bytes-1"})
            assert got.status_code == 200, got.text
        asked, wrote = tap.only()
        return got.content, wrote, json.loads(asked)


@every_body
async def test_a_whole_answer_is_vllms_but_for_the_models_name(
    tools: VllmServer, path: str, body: dict[str, Any]
) -> None:
    got, wrote, asked = await through(tools, path, body)
    assert got == wrote.replace(b'"model":"tiny"', b'"model":"front"', 1)
    assert asked == {**body, "model": "tiny"}
    assert json.loads(got)["id"].split("-", 1)[1] == "bytes-1"


@every_body
@pytest.mark.parametrize("usage", [False, True], ids=["usage not asked for", "usage asked for"])
async def test_a_stream_is_vllms_but_for_the_models_name_and_the_usage_chunk(
    tools: VllmServer, path: str, body: dict[str, Any], usage: bool
) -> None:
    options = {"stream_options": {"include_usage": True}} if usage else {}
    got, wrote, asked = await through(tools, path, {**body, "stream": True, **options})
    events = wrote.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    assert len([e for e in events if usage_chunk(e)]) == 1
    wanted = [e.replace(b'"model":"tiny"', b'"model":"front"', 1) for e in events if usage or not usage_chunk(e)]
    assert got == b"\n\n".join(wanted)
    assert asked == {**body, "model": "tiny", "stream": True, "stream_options": {"include_usage": True}}


async def test_continuous_usage_is_left_as_the_client_set_it(tools: VllmServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = chat(stream=True, stream_options=options, **script(TEXT))
    got, wrote, asked = await through(tools, CHAT, body)
    assert got == wrote.replace(b'"model":"tiny","choices"', b'"model":"front","choices"')
    assert asked["stream_options"] == options


async def test_an_alias_named_as_the_model_changes_nothing_at_all(tools: VllmServer) -> None:
    async with wiretap(tools.url) as tap:
        async with running_gateway(f"backends: {{tiny: {{url: '{tap.url}'}}}}") as gateway:
            await gateway.until_ready("tiny")
            got = await gateway.client.post(CHAT, json=chat(model="tiny", **script(TEXT)))
        assert got.content == tap.only()[1]
