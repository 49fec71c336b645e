"""A front end of front_ends.py answers as `vllm serve` with the same flags: the other tests rely on it."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.simulator.wire import ask

from .asks import CALL, CHAT, WEATHER, chat, script
from .servers import VllmServer
from .test_simulator import POSTS, TRIES, alike

THOUGHT_CALL = chat(model="tiny", tools=[WEATHER], **script("<think>hm</think>" + CALL % "Oslo"))
NAMED = {"type": "function", "function": {"name": "get_weather"}}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: post for name, post in POSTS.items() if name != "an unknown model"},  # that lists the names it serves
    "a call on demand": (CHAT, {**THOUGHT_CALL, "tool_choice": "required"}),
    "a named call": (CHAT, {**THOUGHT_CALL, "tool_choice": NAMED}),
    "JSON after thoughts": (
        CHAT,
        {**chat(model="tiny", **script('<think>hm</think>{"a": 1}')), "response_format": {"type": "json_object"}},
    ),
}
# The grammar begins after the thoughts: there it allows no text.
FORBIDDEN = {**chat(model="tiny", tools=[WEATHER], **script("<think>hm</think>No.")), "tool_choice": "required"}
every_body = pytest.mark.parametrize(("path", "body"), BODIES.values(), ids=BODIES.keys())


@every_body
async def test_a_whole_answer_is_that_of_vllm_serve(
    front_ends: VllmServer, tools: VllmServer, path: str, body: dict[str, Any]
) -> None:
    prefix = front_ends.front_end("hermes", "qwen3").removeprefix(front_ends.url)
    alike(await ask(front_ends.url, prefix + path, body), await ask(tools.url, path, body))


@every_body
async def test_a_stream_is_that_of_vllm_serve(
    front_ends: VllmServer, tools: VllmServer, path: str, body: dict[str, Any]
) -> None:
    """Both merge tokens that wait for their writer, each in its own way."""
    sent = {**body, "stream": True}
    prefix = front_ends.front_end("hermes", "qwen3").removeprefix(front_ends.url)
    for last in (False,) * (TRIES - 1) + (True,):
        with contextlib.suppress(*() if last else (AssertionError,)):
            alike(await ask(front_ends.url, prefix + path, sent), await ask(tools.url, path, sent))
            return


async def test_the_engine_knows_where_thoughts_end(front_ends: VllmServer, tools: VllmServer) -> None:
    prefix = front_ends.front_end("hermes", "qwen3").removeprefix(front_ends.url)
    ours = await ask(front_ends.url, prefix + CHAT, FORBIDDEN)
    alike(ours, await ask(tools.url, CHAT, FORBIDDEN))
    assert ours.status == 500
    early = {**FORBIDDEN, **script("No thoughts, no tags."), "max_tokens": 5}
    assert (await ask(front_ends.url, prefix + CHAT, early)).status == 200
    bare = front_ends.front_end("hermes").removeprefix(front_ends.url)
    assert (await ask(front_ends.url, bare + CHAT, early)).status == 500


async def test_a_server_without_parsers_refuses_tools_in_the_same_words(
    front_ends: VllmServer, plain: VllmServer
) -> None:
    prefix = front_ends.front_end("none").removeprefix(front_ends.url)
    for choice in ("auto", "required", NAMED):
        body = {**THOUGHT_CALL, "tool_choice": choice}
        ours = await ask(front_ends.url, prefix + CHAT, body)
        alike(ours, await ask(plain.url, CHAT, body, headers=plain.headers))
        assert ours.status == 400
