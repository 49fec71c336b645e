"""A field that cannot be translated: the error names it, and repeats no word that an agent would act on."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.apps.dialects.anthropic.request import to_chat
from gateway.errors import GatewayError
from tests.apps.dialects.parts import refused, user


@pytest.mark.parametrize("name", ["messages", "system", "tools", "tool_choice", "thinking", "output_config"])
@pytest.mark.parametrize("value", [b'["\xff"]', b"[1e999]"])
def test_a_field_that_can_not_be_read_is_named(name: str, value: bytes) -> None:
    fields = {"model": b'"m"', "messages": b"[]", name: value}
    with pytest.raises(GatewayError) as caught:
        to_chat(b"{%b}" % b",".join(b'"%b":%b' % (key.encode(), said) for key, said in fields.items()))
    assert (caught.value.code, caught.value.param) == ("invalid_request_body", name)
    assert "is not valid JSON" in caught.value.message


@pytest.mark.parametrize("word", ["context", "MAX_TOKENS", "input token", "not found", "overloaded"])
def test_the_clients_own_words_are_not_repeated_where_an_agent_would_act_on_them(word: str) -> None:
    refused("messages.0.role", {"role": word, "content": ""})
    refused("messages.0.content.0", user({"type": word, "source": {}}), code="input_unsupported")
    demand: dict[str, Any] = {"tool_choice": {"type": "any"}, "code": "input_unsupported"}
    refused("tools.0", user("hi"), tools=[{"type": word, "name": "x"}], **demand)


def test_a_long_word_is_cut_short_in_an_error() -> None:
    assert len(refused("messages.0.role", {"role": "x" * 10_000, "content": ""})) < 200
