"""vLLM and other servers with OpenAI's API: calls and answers are passed on unchanged."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any

from gateway.domain.backend import BackendState
from gateway.domain.upstream import Response
from gateway.engines.base import Call, authorized, reported_name, reported_window
from gateway.transport.client import post_json


class OpenAIEngine:
    """All engines that speak OpenAI's API; they differ only in their traits."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def prepare(self) -> None:
        pass

    def send(self, state: BackendState, call: Call) -> Coroutine[Any, Any, Response]:
        assert state.client is not None
        backend = state.backend
        path = backend.api_path + call.endpoint.path
        return post_json(state.client, path, authorized(call.headers, backend), call.fields)

    def read_models(self, answer: Any) -> Mapping[str, int | None]:
        return {card["id"]: card_window(card) for card in model_cards(answer)}


# -- the list of models (`/v1/models`), untrusted ----------------------------------------------------------------------


def model_cards(answer: Any) -> list[dict[str, Any]]:
    """The entries of the decoded answer whose `id` can be a model's name, in the server's order."""
    cards = answer.get("data") if isinstance(answer, dict) else None
    found = cards if isinstance(cards, list) else []
    return [card for card in found if isinstance(card, dict) and reported_name(card.get("id")) is not None]


def loaded_models(answer: Any, where: tuple[str, str] | None) -> dict[str, bool]:
    """Model name -> is it loaded, for a server that loads models by itself and tells which are (llama-server as a
    router). `where`: `EngineTraits.loaded`. Models of which nothing is told are left out."""
    path, value = where if where is not None else ("", "")
    told = {card["id"]: at_path(card, path) for card in model_cards(answer)} if path else {}
    return {name: found == value for name, found in told.items() if isinstance(found, str)}


def at_path(value: Any, path: str) -> Any:
    """What is at "a.b" = `b` inside `a`; None where there is nothing."""
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def card_window(card: dict[str, Any]) -> int | None:
    """The window in tokens: vLLM reports `max_model_len`, llama-server `meta.n_ctx`, other servers another key; None =
    not reported."""
    told = at_path(card, "meta.n_ctx")
    return reported_window(card.get("max_model_len"), card.get("context_length"), told)
