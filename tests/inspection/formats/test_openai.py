"""gpt-oss (harmony): a call is a message on a channel, addressed to a function."""

from __future__ import annotations

import pytest

from tests.inspection.mending import mend

CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>'


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        "<|start|>assistant" + CALL,
        CALL.replace("commentary", "analysis"),
        CALL.replace(" <|constrain|>json", ""),
        CALL.replace("<|constrain|>json", "json"),
        CALL.removesuffix("<|call|>"),
    ],
    ids=["whole", "start of the message", "analysis", "no type", "bare type", "no end"],
)
def test_a_call_is_read_with_and_without_its_optional_tokens(text: str) -> None:
    assert mend("openai", text).calls == [("get_weather", {"city": "Oslo"})]


def test_a_message_to_nobody_is_text() -> None:
    text = '<|channel|>commentary to=functions.unknown <|message|>{"city": "Oslo"}<|call|>'
    assert mend("openai", text).calls == []
