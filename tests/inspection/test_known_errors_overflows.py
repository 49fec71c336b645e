"""A backend that refuses prompt and limit together is asked again for less, whatever version it names; and an overflow
error tells the prompt's size as it is known, never one that is made up."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from tests.saying import Fleet, both_ways, fleet, says, text
from tests.scripted import Script, Turn, json_answer, raw_post

WINDOW = 131072  # as tests/scripted.py lists it
LIMITS = ["max_tokens", "max_completion_tokens"]


def counts(prompt: int, *, told: str = "least", window: int = WINDOW) -> Script:
    """A vLLM that names 0.32, and yet refuses prompt and limit together where they exceed its window. `told`: how it
    says how long the prompt is."""

    async def play(turn: Turn) -> None:
        asked = max((turn.json.get(name) or 0 for name in LIMITS), default=0)
        if prompt + asked <= window:
            await says(*text("Well."))(turn)
            return
        await turn.send(
            json_answer({"error": {"message": refusal(prompt, asked, window, told), "code": 400}}, "400 No")
        )

    return play


def refusal(prompt: int, asked: int, window: int, told: str) -> str:
    head = f"This model's maximum context length is {window} tokens. However, "
    if told == "exact":
        return (
            f"{head}you requested {prompt + asked} tokens ({prompt} in the messages, {asked} in the completion). "
            "Please reduce the length of the messages or completion."
        )
    least = max(1, window - asked + 1)  # it counts no further
    if told == "passed":
        return (
            f"You passed {prompt} input tokens and requested {asked} output tokens. However, the model's context "
            f"length is only {window} tokens, resulting in a maximum input length of {least - 1} tokens. Please "
            "reduce the length of the input prompt. (parameter=input_tokens, value=1)"
        )
    if told == "unknown":
        return f"Prompt and answer: {asked} tokens more than the context; it exceeds the context window."
    return (
        f"{head}you requested {asked} output tokens and your prompt contains at least {least} input tokens, for a "
        f"total of at least {least + asked} tokens. Please reduce the length of the input prompt or the number of "
        f"requested output tokens. (parameter=input_tokens, value={least})"
    )


def sent(chat: Fleet, name: str = "max_tokens", backend: int = 0) -> list[Any]:
    return [turn.json.get(name) for turn in chat.backends[backend].turns]


async def overflow(chat: Fleet, **more: Any) -> tuple[int, int]:
    """(window, prompt tokens) of the error that agents act on."""
    reply = await raw_post(chat.gateway.url, {"model": "chat", "messages": [], **more})
    error = reply.json["error"]
    assert (reply.status, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    found = re.fullmatch(
        r"This model's maximum context length is (\d+) tokens\. However, your prompt contains (\d+) input tokens\. "
        r"Please reduce the length of the messages\.",
        error["message"],
    )
    assert found is not None, error["message"]
    return int(found[1]), int(found[2])


@both_ways
@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("told", ["least", "exact", "passed"])
async def test_a_refused_sum_is_asked_again_with_a_limit_that_fits(told: str, name: str, stream: bool) -> None:
    async with fleet(counts(20, told=told)) as chat:
        reply = await chat.ask(stream, **{name: WINDOW})
        assert (reply.status, reply.content) == (200, "Well.")
        assert reply.headers["x-gateway-adapted"] == "max_tokens_clamped"
        first, second = sent(chat, name)
        assert first == WINDOW
        assert WINDOW * 0.9 < second <= WINDOW - 20


async def test_a_long_prompt_is_asked_again_with_what_it_leaves() -> None:
    """The server counts a prompt no further than the limit leaves room, so its number is no more than a beginning."""
    async with fleet(counts(70_000)) as chat:
        reply = await chat.ask(False, messages=[{"role": "user", "content": "x" * 250_000}], max_tokens=100_000)
        assert (reply.status, reply.content) == (200, "Well.")
        first, second = sent(chat)
        assert (first, second + 70_000 <= WINDOW, second > 16_384) == (100_000, True, True)


@pytest.mark.parametrize("words", [6_000, 12_000])
async def test_a_prompt_of_very_short_tokens_fits_the_second_time(words: int) -> None:
    async with fleet(counts(words // 2, window=16_384), keys=", context: 16384") as chat:
        reply = await chat.ask(False, messages=[{"role": "user", "content": "x" * words}], max_tokens=16_384)
        assert (reply.status, reply.content) == (200, "Well.")
        assert sent(chat)[1] >= 4_000


async def test_the_limit_of_the_alias_is_made_smaller_too() -> None:
    async with fleet(counts(20), alias=", params: {max_tokens: 131072}") as chat:
        assert (await chat.ask(False)).status == 200
        assert sent(chat)[0] == WINDOW > sent(chat)[1]


async def test_what_one_request_was_refused_changes_no_other() -> None:
    async with fleet(counts(20)) as chat:
        for _ in range(2):
            await chat.ask(False, max_tokens=WINDOW)
        assert sent(chat)[::2] == [WINDOW, WINDOW]
        await chat.ask(False, max_tokens=1000)
        assert sent(chat)[-1] == 1000


async def test_a_backend_that_refuses_every_limit_is_asked_twice_and_then_left() -> None:
    async with fleet(refuses_always("exact"), says(*text("Hello."))) as chat:
        reply = await chat.ask(False, max_tokens=WINDOW)
        assert (reply.headers["x-gateway-backend"], len(chat.backends[0].turns)) == ("b", 2)
        assert reply.headers["x-gateway-routed"] == "too_long"


async def test_a_prompt_that_is_too_long_by_itself_is_not_sent_again() -> None:
    async with fleet(refuses_always("least", prompt=WINDOW + 5)) as chat:
        await overflow(chat, max_tokens=10)
        assert len(chat.backends[0].turns) == 1


async def test_a_request_without_a_limit_is_not_sent_again() -> None:
    async with fleet(refuses_always("exact")) as chat:
        await overflow(chat)
        assert len(chat.backends[0].turns) == 1


def refuses_always(told: str, prompt: int = 1234) -> Script:
    async def play(turn: Turn) -> None:
        asked = max((turn.json.get(name) or 0 for name in LIMITS), default=0)
        message = refusal(prompt, max(asked, WINDOW - 100), WINDOW, told)
        await turn.send(json_answer({"error": {"message": message, "code": 400}}, "400 No"))

    return play


@pytest.mark.parametrize("told", ["exact", "passed"])
async def test_the_size_that_a_backend_counted_is_told(told: str) -> None:
    async with fleet(refuses_always(told)) as chat:
        assert await overflow(chat, max_tokens=WINDOW) == (WINDOW, 1234)


async def test_a_message_is_told_no_size_that_is_not_larger() -> None:
    async with fleet(refuses_always("exact")) as chat:
        body = {"model": "chat", "max_tokens": WINDOW, "messages": [{"role": "user", "content": "hello"}]}
        reply = await raw_post(chat.gateway.url, body, "/v1/messages")
        assert reply.json["error"]["message"] == (
            f"prompt is too long: 1234 tokens and the room for an answer exceed the maximum of {WINDOW}"
        )


async def test_a_size_that_nobody_counted_is_our_estimate() -> None:
    async with fleet(refuses_always("unknown")) as chat:
        messages = [{"role": "user", "content": "x" * 36_000}]
        window, tokens = await overflow(chat, messages=messages)
        assert window == WINDOW
        assert 9_000 <= tokens <= 11_000
        assert tokens != WINDOW + 1


async def test_a_window_that_nobody_told_is_no_number() -> None:
    async with fleet(refuses_always("unknown")) as chat:
        state = chat.gateway.gateway.fleet["a"]
        state.saw_model(None, None)
        reply = await raw_post(chat.gateway.url, {"model": "chat", "messages": []})
        assert reply.json["error"]["code"] == "context_length_exceeded"
        message = reply.json["error"]["message"]
        assert message.startswith("This model's maximum context length is not known. However, your prompt contains ")
        reply = await raw_post(chat.gateway.url, {"model": "chat", "max_tokens": 9, "messages": []}, "/v1/messages")
        assert reply.json["error"]["message"] == "prompt is too long"


async def test_the_error_tells_the_window_that_this_request_was_told() -> None:
    async def play(turn: Turn) -> None:
        message = refusal(5000, 0, 4096, "exact")
        await turn.send(json_answer({"error": {"message": message, "code": 400}}, "400 No"))

    async with fleet(play) as chat:
        assert await overflow(chat) == (4096, 5000)
        assert chat.gateway.gateway.fleet["a"].window(time.monotonic()) == WINDOW
