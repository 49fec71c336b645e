"""Requests to the real vLLM that are alike run on what was decided before, and their streams come whole."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pytest

from gateway.proxy.decisions import Decision
from tests.support import running_gateway

from .asks import CHAT, chat, script
from .conftest import KEY
from .servers import VllmServer

SAID = ("Hello, world!", 'He said "no",\n\\ and left: größer.', "H", "A longer answer of some more words, " * 9)
MORE: tuple[dict[str, Any], ...] = ({}, {"stream_options": {"include_usage": True}}, {"max_tokens": 4})


@pytest.mark.parametrize("more", MORE)
async def test_streams_of_requests_that_are_alike_come_whole(plain: VllmServer, more: dict[str, Any]) -> None:
    async with running_gateway(f"backends: {{tiny: {{url: '{plain.url}', api_key: {KEY}}}}}") as gateway:
        await gateway.until_ready("tiny")
        with patch.object(Decision, "backend_for", autospec=True, side_effect=Decision.backend_for) as decided:
            for number in range(12):
                said = SAID[number % len(SAID)]
                body = chat(model="tiny", stream=True, **script(said), **more)
                answer = await gateway.client.post(CHAT, json=body)
                *events, done, end = answer.text.split("\n\n")
                assert (done, end) == ("data: [DONE]", "")
                chunks = [json.loads(event.removeprefix("data: ")) for event in events]
                text = "".join(choice["delta"].get("content") or "" for one in chunks for choice in one["choices"])
                assert said.startswith(text) if "max_tokens" in more else text == said
                assert any(one.get("usage") for one in chunks) == ("stream_options" in more)
        assert decided.call_count >= 9, "all but the first with this head"
