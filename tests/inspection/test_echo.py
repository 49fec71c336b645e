"""Whether a phrase is the client's: found wherever its body says it, however that is written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.endpoints import CHAT
from gateway.domain.request import parse
from gateway.inspection.echo import READ_MOST, client_mentions, mentions
from gateway.inspection.error_replies import judge
from tests.routing.parts import request

PHRASE = "Maximum context length is 9"


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": PHRASE},
        {"x": {"a": [1, {"b": f"so {PHRASE.upper()}!"}]}},
        {"x": {PHRASE: 1}},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": PHRASE}]}]},
    ],
)
def test_a_phrase_is_found_wherever_it_is_said(body: dict[str, Any]) -> None:
    assert mentions(request(**body), PHRASE, False)


def test_escapes_do_not_hide_it() -> None:
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in PHRASE)
    assert mentions(parse(CHAT, b'{"model":"alias","messages":[],"x":"%b"}' % escaped.encode()), PHRASE, False)


def test_what_is_not_said_is_not_found() -> None:
    assert not mentions(request(x={"Maximum": "context"}, y=[9, None, True]), PHRASE, True)


@pytest.mark.parametrize("unknown", [True, False])
def test_of_a_body_too_large_to_be_searched_nothing_is_known(unknown: bool) -> None:
    large = request(x="x" * READ_MOST)
    assert mentions(large, PHRASE, unknown) is unknown


def test_a_refusal_of_a_very_large_prompt_moves_it_on_but_does_not_teach() -> None:
    large = request(x="x" * READ_MOST)
    for text in ("The prompt exceeds the context window.", "prompt is too long: 5000 tokens > 4096 maximum"):
        body = json.dumps({"error": {"message": text}}).encode()
        verdict = judge(400, {}, body, "chat", echoed=lambda phrase, unknown: mentions(large, phrase, unknown))
        assert (verdict.kind, verdict.unverified) == ("too_long", True)


def test_what_the_model_said_before_is_not_asked_by_the_client() -> None:
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "x\n</think>\ny"}]
    assert not client_mentions(request(messages=turns), "</think>")
    assert client_mentions(request(messages=[*turns, {"role": "user", "content": "Why </think>?"}]), "</think>")
    assert client_mentions(request(messages=[{"role": "system", "content": "End with </THINK>"}]), "</think>")
    assert not client_mentions(request(messages="odd"), "</think>")
