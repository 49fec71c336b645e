"""Windows that backends tell in refusals: what is believed of them, for whom, and for how long."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.backend import BackendState
from gateway.domain.request import InferenceRequest
from gateway.inspection.error_replies import Verdict, judge
from gateway.inspection.known_errors import LEAST_WINDOW
from gateway.proxy.feedback import Feedback, ask_again, learn, within_reason
from gateway.routing.plan import make_plan
from gateway.routing.refusal import FailedAttempt, refusal
from tests.proxy.test_feedback import ask, is_the_overflow, overflow, vllm
from tests.proxy.test_feedback import fleet as gateway_with
from tests.routing.parts import NOW, alias, backend, fleet, request

LONG = [{"role": "user", "content": "word " * 10_000}]  # 50,000 bytes
SAYINGS = [
    "request ({prompt} tokens) exceeds the available context size ({window} tokens), try increasing it",
    "This model's maximum context length is {window} tokens. However, your request has {prompt} input tokens.",
    "This model's maximum context length is {window} tokens. However, it is not known why.",
    "The input ({prompt} tokens) is longer than the model's context length ({window} tokens).",
    "`inputs` must have less than {window} tokens. Given: {prompt}",
    "the input length exceeds the context length",
    "context_length_exceeded",
]
numbers = st.integers(-10, 10**31) | st.sampled_from([0, 1, 255, 256, 10**9, 10**30])


def judged(text: str) -> Verdict:
    return judge(400, {}, json.dumps({"error": {"message": text}}).encode(), "chat")


def told(state: BackendState, asked: InferenceRequest, text: str) -> tuple[str, Verdict]:
    """(the error that the client reads when this backend alone has refused with `text`, what was believed of it)."""
    verdict = within_reason(judged(text), state, asked, alias(state.name))
    ask_again(state, asked, alias(state.name), verdict)
    learn(state, Feedback(asked, "r"), verdict, NOW)
    plan = make_plan(alias(state.name), fleet(state), asked, NOW)
    plan.outcomes[state.name] = verdict.kind
    tried = FailedAttempt(state.name, verdict.kind, "x", False, verdict.window, verdict.prompt_tokens, verdict.least)
    return refusal(plan, [tried], asked, NOW).message, verdict


@given(st.sampled_from(SAYINGS), numbers, numbers)
def test_no_client_is_told_a_window_that_cannot_be(text: str, window: int, prompt: int) -> None:
    """Agents shorten their history to the number that they read."""
    state, asked = backend("b0", context=None), request(messages=LONG)
    message, verdict = told(state, asked, text.format(window=window, prompt=prompt))
    if verdict.kind != "too_long":
        return
    said = re.match(r"This model's maximum context length is (not known|\d+ tokens)\. However", message)
    assert said is not None
    if said[1] != "not known":
        assert LEAST_WINDOW <= int(said[1].split()[0]) <= len(LONG[0]["content"]) + 100_000
    learned = state.window(NOW)
    assert learned is None or LEAST_WINDOW <= learned <= len(LONG[0]["content"]) + 100_000


@pytest.mark.parametrize("text", SAYINGS[-2:])
def test_a_window_that_is_not_told_is_not_invented(text: str) -> None:
    state = backend("b0", context=None)
    message, _ = told(state, request(messages=LONG), text)
    assert message.startswith("This model's maximum context length is not known. However, your prompt contains ")
    assert state.window(NOW) is None


@pytest.mark.parametrize(("window", "learned"), [(8192, 8192), (256, 256), (255, None), (1, None), (10**8, None)])
def test_an_unknown_window_is_learned_within_reason(window: int, learned: int | None) -> None:
    state = backend("b0", context=None)
    told(state, request(messages=LONG), SAYINGS[0].format(window=window, prompt=max(9_000, window + 1)))
    assert state.window(NOW) == learned


def test_a_prompt_of_more_tokens_than_bytes_is_not_believed() -> None:
    state, asked = backend("b0", context=None), request(messages=LONG)
    message, verdict = told(state, asked, SAYINGS[0].format(window=8192, prompt=900_000_000))
    assert (verdict.prompt_tokens, verdict.unverified, asked.exact) == (None, True, {})
    assert "900000000" not in message


def test_a_recording_may_have_more_tokens_than_its_text_has_bytes() -> None:
    picture: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    asked = request(messages=[{"role": "user", "content": [picture] * 2}])
    _, verdict = told(backend("b0", context=None), asked, SAYINGS[0].format(window=65_536, prompt=66_000))
    assert (verdict.window, verdict.prompt_tokens) == (65_536, 66_000)


def test_the_window_that_one_backend_tells_is_not_that_of_another() -> None:
    """The largest window is told, so a backend that boasts would hide the real one."""
    states = [backend("liar", context=None), backend("honest", context=None)]
    asked, tried = request(messages=LONG), []
    for state, window in zip(states, (900_000_000, 8192), strict=True):
        text = SAYINGS[0].format(window=window, prompt=window + 1)
        verdict = within_reason(judged(text), state, asked, alias("liar", "honest"))
        ask_again(state, asked, alias("liar", "honest"), verdict)
        tried.append(
            FailedAttempt(state.name, "too_long", "x", False, verdict.window, verdict.prompt_tokens, verdict.least)
        )
    plan = make_plan(alias("liar", "honest"), fleet(*states), asked, NOW)
    plan.outcomes |= {"liar": "too_long", "honest": "too_long"}
    assert refusal(plan, tried, asked, NOW).message.startswith("This model's maximum context length is 8192 tokens.")


def test_a_learned_window_ends_with_the_engine_that_told_it() -> None:
    """Its list tells another window than before: it was started again, or has loaded the model anew."""
    state = backend("b0", context=None)
    state.saw_model("m", 32_768)
    for prompt in ("one", "other"):  # it contradicts the list, so two prompts have to show it
        asked = request(messages=[{"role": "user", "content": prompt * 10_000}])
        told(state, asked, SAYINGS[0].format(window=8192, prompt=9_000))
    assert (state.window(NOW), "window" in state.facts.taught) == (8192, True)
    state.saw_model("m", 32_768)
    assert state.window(NOW) == 8192
    state.saw_model("m", 65_536)
    assert (state.window(NOW), "window" in state.facts.taught) == (65_536, False)


async def test_a_boast_reaches_no_client() -> None:
    boasting, honest = vllm("a"), vllm("b")
    boasting.fault("no_models")
    async with gateway_with(boasting, honest) as gateway:
        boasting.fault("status", **overflow(900_000_000))
        honest.fault("status", **overflow(16_384))
        is_the_overflow(await ask(gateway), 16_384)
        assert gateway.gateway.fleet["a"].window(time.monotonic()) is None
