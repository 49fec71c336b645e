"""The list of models that a server with OpenAI's API gives (`/v1/models`). Pure; the answer may be anything."""

from __future__ import annotations

from typing import Any

from gateway.engines.base import reported_name, reported_window


def model_cards(answer: Any) -> list[dict[str, Any]]:
    """The entries of the decoded answer whose `id` can be a model's name, in the server's order; without what is
    none."""
    cards = answer.get("data") if isinstance(answer, dict) else None
    found = cards if isinstance(cards, list) else []
    return [card for card in found if isinstance(card, dict) and reported_name(card.get("id")) is not None]


def card_window(card: dict[str, Any]) -> int | None:
    """The window in tokens: vLLM reports `max_model_len`, other servers another key; None = not reported."""
    return reported_window(card.get("max_model_len"), card.get("context_length"))
