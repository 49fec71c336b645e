"""The simulated vLLM says what the real one says to the same requests, today and not only in the captures."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from typing import Any

import pytest

from simulator import SimVllm
from tests.simulator.wire import Reply, ask, masked, order, said

from .asks import CALL, CHAT, WEATHER, script
from .servers import VllmServer

pytestmark = pytest.mark.usefixtures("as_simulated")

COMPLETIONS = "/v1/completions"
TRIES = 5
HI: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
THOUGHT = script("<think>hm</think>Hello there")
CALLS = "<think>two</think>" + CALL % "Oslo" + "\n" + CALL % "Rome"
NAMED = {"type": "function", "function": {"name": "get_weather"}}

GETS = ("/health", "/version", "/v1/models", "/v1/models/tiny", "/ping", "/load", "/nowhere")
POSTS: dict[str, tuple[str, dict[str, Any]]] = {
    "thoughts and text": (CHAT, {**HI, **THOUGHT}),
    "no thoughts": (CHAT, {**HI, **script("Hello"), "chat_template_kwargs": {"enable_thinking": False}}),
    "two choices": (CHAT, {**HI, **THOUGHT, "n": 2}),
    "a stop text": (CHAT, {**HI, **script("<think></think>one two three"), "stop": ["three"]}),
    "a call": (CHAT, {**HI, "tools": [WEATHER], **script("<think>x</think>" + CALL % "Oslo")}),
    "two calls": (CHAT, {**HI, "tools": [WEATHER], **script(CALLS)}),
    "text, then a call": (CHAT, {**HI, "tools": [WEATHER], **script("<think></think>Sure. " + CALL % "Oslo")}),
    "a call with tool_choice none": (CHAT, {**HI, "tools": [WEATHER], "tool_choice": "none", **script(CALLS)}),
    "an unclosed call": (CHAT, {**HI, "tools": [WEATHER], **script('<tool_call>\n{"name": "get_weather", "argum')}),
    "a call unclosed in its arguments": (CHAT, {**HI, "tools": [WEATHER], **script(CALL.partition("%s")[0] + "Os")}),
    "a call without its last tag": (CHAT, {**HI, "tools": [WEATHER], **script((CALL % "Oslo").partition("</")[0])}),
    "arguments that are no JSON": (CHAT, {**HI, "tools": [WEATHER], **script(CALL.replace('"%s"', "Oslo"))}),
    "no tools but a call": (CHAT, {**HI, **script(CALLS)}),
    "a completion": (COMPLETIONS, {"model": "tiny", "prompt": "hi", "max_tokens": 40, **script("Hello there")}),
    "two completions": (COMPLETIONS, {"model": "tiny", "prompt": ["a", "b"], "max_tokens": 40, **script("Hello")}),
    "two choices, usage asked for": (CHAT, {**HI, **THOUGHT, "n": 2, "stream_options": {"include_usage": True}}),
    "a completion, usage asked for": (
        COMPLETIONS,
        {"model": "tiny", "prompt": "hi", **script("Hello"), "stream_options": {"include_usage": True}},
    ),
    "an unknown model": (CHAT, {**HI, "model": "nope"}),
    "embeddings": ("/v1/embeddings", {"model": "tiny", "input": "hi"}),
    "a negative temperature": (CHAT, {**HI, "temperature": -1}),
    "too many tokens asked": (CHAT, {**HI, "max_tokens": 5000}),
    "a prompt of 9,000 tokens": (CHAT, {**HI, "messages": [{"role": "user", "content": "q1z.x7!Kw9#" * 3000}]}),
    "no tools in the list": (CHAT, {**HI, "tools": []}),
    "a choice of a tool that is not offered": (CHAT, {**HI, "tools": [], "tool_choice": NAMED}),
    "usage asked for": (CHAT, {**HI, **THOUGHT, "stream_options": {"include_usage": True}}),
}
# Streams that the simulator is known to write otherwise, and how; an entry goes when the simulator is mended.
DIFFERENT: dict[str, str] = {}


def simulated() -> SimVllm:
    return SimVllm("tools", served=["tiny", "tiny-alias"], context=2048, tool_parser="hermes", reasoning_parser="qwen3")


def by_choice(reply: Reply) -> dict[object, Reply]:
    """The stream of each choice: they run beside each other, and how they mix differs from run to run."""
    bodies: dict[object, bytes] = {}
    for event in re.findall(rb"data: .*\n\n", reply.body):
        index = re.search(rb'"choices":\[\{"index":(\d+)', event)
        key = index[1] if index else None
        bodies[key] = bodies.get(key, b"") + event
    return {key: replace(reply, body=body) for key, body in bodies.items()}


def alike(ours: Reply, real: Reply) -> None:
    variable = {"date", "content-length"}
    assert (ours.status, ours.reason) == (real.status, real.reason)
    assert [p for p in ours.headers if p[0] not in variable] == [p for p in real.headers if p[0] not in variable]
    if real.body.startswith(b"data:"):
        one, other = by_choice(ours), by_choice(real)
        assert {key: order(r) for key, r in one.items()} == {key: order(r) for key, r in other.items()}
        if b'"text_completion"' not in real.body:
            assert {key: said(r) for key, r in one.items()} == {key: said(r) for key, r in other.items()}
    elif real.body:
        assert masked(ours.json, texts=False) == masked(real.json, texts=False)
    else:
        assert ours.body == b""


@pytest.mark.parametrize("path", GETS)
async def test_a_get_is_answered_alike(tools: VllmServer, path: str) -> None:
    async with simulated().serve() as url:
        alike(await ask(url, path), await ask(tools.url, path))


def cases(known: dict[str, str]) -> list[Any]:
    """Every body; those that are known to be answered otherwise must fail, so that a mended simulator is noticed."""
    marks = {name: [pytest.mark.xfail(reason=known[name], strict=True)] if name in known else [] for name in POSTS}
    return [pytest.param(*POSTS[name], id=name, marks=marks[name]) for name in POSTS]


@pytest.mark.parametrize(("path", "body"), cases({}))
async def test_a_whole_answer_is_alike(tools: VllmServer, path: str, body: dict[str, Any]) -> None:
    async with simulated().serve() as url:
        alike(await ask(url, path, body), await ask(tools.url, path, body))


@pytest.mark.parametrize(("path", "body"), cases(DIFFERENT))
async def test_a_stream_is_alike(tools: VllmServer, path: str, body: dict[str, Any]) -> None:
    """vLLM merges tokens that wait for its writer; on a busy machine that hides a kind of chunk now and then."""
    sent = {**body, "stream": True}
    async with simulated().serve() as url:
        ours = await ask(url, path, sent)
        for _ in range(TRIES - 1):
            with contextlib.suppress(AssertionError):
                alike(ours, await ask(tools.url, path, sent))
                return
        alike(ours, await ask(tools.url, path, sent))
