"""llama-server behind the gateway, as a client with the openai SDK sees it, whole and streamed."""

from __future__ import annotations

import pytest

from tests.vllm.turns import client_on, turn_of

from .processes import RealServer
from .questions import COUNT, COUNT_SAID, NO_THOUGHTS, THOUGHTS, user

WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@WAYS
async def test_thoughts_come_in_their_own_field(llama: RealServer, stream: bool) -> None:
    async with client_on({"a": f"url: '{llama.url}', engine: openai"}, {"front": "[a]"}) as client:
        turn = await turn_of(client.sdk, "front", user(COUNT), stream=stream, temperature=0)
        assert (turn.content, turn.reasoning.strip()) == (COUNT_SAID, THOUGHTS)
        turn = await turn_of(client.sdk, "front", user(COUNT), stream=stream, temperature=0, extra_body=NO_THOUGHTS)
        assert (turn.content, turn.reasoning) == (COUNT_SAID, "")
