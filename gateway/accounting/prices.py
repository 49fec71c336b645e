"""What tokens cost: declared prices, litellm's own map, or unknown."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.config.snapshot import Backend
from gateway.domain.endpoints import PICTURES, Endpoint
from gateway.domain.engine_traits import traits_of
from gateway.domain.tokens import Tokens

LONG_PROMPT = 200_000  # tokens; some models cost more beyond


@dataclass(frozen=True, slots=True)
class Rates:
    """USD per token. `long`: the rates of a prompt above LONG_PROMPT, where they differ."""

    prompt: float
    completion: float
    cached: float
    long: Rates | None = None

    def usd(self, tokens: Tokens) -> float:
        rates = self.long if self.long is not None and tokens.prompt > LONG_PROMPT else self
        cached = min(tokens.cached, tokens.prompt)
        fresh = tokens.prompt - cached
        return fresh * rates.prompt + cached * rates.cached + tokens.completion * rates.completion


FREE = Rates(0.0, 0.0, 0.0)


class Prices:
    """The rates of backends, computed once for each definition."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Backend, Rates | None]] = {}

    def of(self, backend: Backend) -> Rates | None:
        """The rates of a backend; None if unknown. Never imports litellm: as long as it is not loaded, no request has
        used it."""
        known = self._known.get(backend.name)
        if known is not None and known[0] is backend:
            return known[1]
        rates = declared(backend)
        if rates is None and traits_of(backend).library:
            costs = getattr(sys.modules.get("litellm"), "model_cost", None)
            if not costs:
                return None  # litellm is not loaded yet: look again at the next call
            rates = litellm_rates(costs, backend.model or "")
        self._known[backend.name] = (backend, rates)
        return rates


def declared(backend: Backend) -> Rates | None:
    """The rates that routes.yaml declares: `price`, or 0 for a backend in the LAN; None for a cloud without `price`."""
    price = backend.price
    if price is not None:
        cached = price.input if price.cached is None else price.cached
        return Rates(price.input / 1e6, price.output / 1e6, cached / 1e6)
    return None if backend.cloud else FREE


def costs_money(backend: Backend) -> bool:
    """May a request to this backend cost money? True also for a cloud whose price is unknown."""
    price = backend.price
    return backend.cloud if price is None else max(price.input, price.output, price.image) > 0.0


def pictures_usd(backend: Backend, endpoint: Endpoint, pictures: int) -> float:
    """What so many pictures cost there; 0 if they have no price of their own."""
    return backend.price.image * pictures if backend.price is not None and endpoint in PICTURES else 0.0


def litellm_rates(costs: Mapping[str, Any], model: str) -> Rates | None:
    """The rates in litellm's map, where the key of a model has the provider's name in front for some providers only."""
    provider, slash, name = model.partition("/")
    entry = costs.get(model)
    if entry is None and slash:
        entry = costs.get(name)
        if isinstance(entry, dict) and not str(entry.get("litellm_provider", "")).startswith(provider):
            entry = None
    if not isinstance(entry, dict):
        return None
    usual = _rates(entry, "")
    if usual is None:
        return None
    return Rates(usual.prompt, usual.completion, usual.cached, _rates(entry, "_above_200k_tokens", usual))


def _rates(entry: Mapping[str, Any], suffix: str, usual: Rates | None = None) -> Rates | None:
    """The rates under keys with this suffix; a missing rate is taken from `usual`. None if no key has a rate."""
    prompt, completion, cached = (
        entry.get(f"{key}{suffix}")
        for key in ("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost")
    )
    if not isinstance(prompt, (int, float)):
        return None
    if not isinstance(completion, (int, float)):
        completion = usual.completion if usual is not None else 0.0
    if not isinstance(cached, (int, float)):
        cached = prompt
    return Rates(float(prompt), float(completion), float(cached))
