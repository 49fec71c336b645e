"""vLLM and every other server that speaks OpenAI's API: the call goes out as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.domain.upstream import Response
from gateway.engines.base import Call, told_name, told_window

if TYPE_CHECKING:
    from gateway.domain.backend import BackendState

_encode = msgspec.json.Encoder().encode


class OpenAIEngine:
    """`engine: vllm` and `engine: openai`; they differ in their traits."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def prepare(self) -> None:
        pass

    async def send(self, state: BackendState, call: Call) -> Response:
        assert state.client is not None
        backend = state.backend
        headers = call.headers
        if backend.api_key is not None:
            headers = [*headers, ("authorization", "Bearer " + backend.api_key.reveal())]
        path = backend.api_path + call.endpoint.path
        return await state.client.send("POST", path, headers, _encode(call.fields), fresh=call.fresh)

    def read_models(self, answer: Any) -> Mapping[str, int | None]:
        """vLLM tells `max_model_len` per name; other servers tell it by other keys or not at all."""
        models: dict[str, int | None] = {}
        cards = answer.get("data") if isinstance(answer, dict) else None
        for card in cards if isinstance(cards, list) else []:
            name = told_name(card.get("id")) if isinstance(card, dict) else None
            if name is not None:
                models[name] = told_window(card.get("max_model_len"), card.get("context_length"))
        return models
