"""vLLM and every other server that speaks OpenAI's API: the call goes out as it is."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from gateway.domain.upstream import Response
from gateway.engines.base import Call, authorized, told_name, told_window
from gateway.transport.client import post_json

if TYPE_CHECKING:
    from gateway.domain.backend import BackendState


class OpenAIEngine:
    """`engine: vllm` and `engine: openai`; they differ in their traits."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def prepare(self) -> None:
        pass

    def send(self, state: BackendState, call: Call) -> Coroutine[Any, Any, Response]:
        assert state.client is not None
        backend = state.backend
        path = backend.api_path + call.endpoint.path
        return post_json(state.client, path, authorized(call.headers, backend), call.fields, fresh=call.fresh)

    def read_models(self, answer: Any) -> Mapping[str, int | None]:
        """vLLM tells `max_model_len` per name; other servers tell it by other keys or not at all."""
        models: dict[str, int | None] = {}
        cards = answer.get("data") if isinstance(answer, dict) else None
        for card in cards if isinstance(cards, list) else []:
            name = told_name(card.get("id")) if isinstance(card, dict) else None
            if name is not None:
                models[name] = told_window(card.get("max_model_len"), card.get("context_length"))
        return models
