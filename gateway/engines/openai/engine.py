"""vLLM and every other server that speaks OpenAI's API: the call goes out as it is."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any

from gateway.domain.backend import BackendState
from gateway.domain.upstream import Response
from gateway.engines.base import Call, authorized
from gateway.engines.openai.models import card_window, model_cards
from gateway.transport.client import post_json


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
        return {card["id"]: card_window(card) for card in model_cards(answer)}
