"""`GET /v1/audio/models` and `/v1/audio/voices`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from simulator.audio import SimAudio
from tests.engines.test_http import own_servers
from tests.scripted import raw_post
from tests.support import RunningGateway


@pytest_asyncio.fixture
async def own() -> AsyncIterator[tuple[RunningGateway, SimAudio, SimAudio]]:
    async with own_servers() as servers:
        yield servers


async def test_models_and_voices_are_listed(own: tuple[RunningGateway, SimAudio, SimAudio]) -> None:
    gateway, _, mouth = own
    models = (await gateway.client.get("/v1/audio/models")).json()["models"]
    assert [(one["id"], one["serves"]) for one in models] == [
        ("transcribe", ["transcriptions"]),
        ("speak", ["speech"]),
        ("chat", ["transcriptions"]),
    ]
    for path in ("/v1/audio/voices", "/audio/voices"):
        voices = (await gateway.client.get(path)).json()["voices"]
        assert voices == [{"id": "alloy", "name": "alloy"}, {"id": "emily", "name": "Emily"}]
    assert mouth.seen["/v1/audio/voices"] == 1


async def test_a_request_for_something_else_is_told_what_the_server_serves(
    own: tuple[RunningGateway, SimAudio, SimAudio],
) -> None:
    url = own[0].url
    hello = {"model": "transcribe", "messages": [{"role": "user", "content": "hi"}]}
    chat = await raw_post(url, hello, "/v1/chat/completions")
    assert chat.json["error"]["code"] == "input_unsupported"
    assert chat.json["error"]["message"].endswith(
        "ears does not serve /chat/completions (serves: transcriptions). It serves /audio/transcriptions"
    )
    vectors = await raw_post(url, {"model": "speak", "input": "hi"}, "/v1/embeddings")
    assert vectors.json["error"]["message"].endswith("(serves: speech). It serves /audio/speech")
