"""What tokens cost: as declared, as litellm's map says, nothing in the LAN, else unknown."""

from __future__ import annotations

import importlib.util
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.accounting.prices import FREE, Prices, Rates, costs_money, litellm_rates
from gateway.config.snapshot import Backend, Price
from gateway.domain.tokens import NO_TOKENS, Tokens, read_usage

MAP: dict[str, Any] = {
    "claude-x": {
        "litellm_provider": "anthropic",
        "input_cost_per_token": 3e-6,
        "output_cost_per_token": 15e-6,
        "cache_read_input_token_cost": 0.3e-6,
        "input_cost_per_token_above_200k_tokens": 6e-6,
        "output_cost_per_token_above_200k_tokens": 22.5e-6,
        "cache_read_input_token_cost_above_200k_tokens": 0.6e-6,
    },
    "gemini/gemini-y": {"litellm_provider": "gemini", "input_cost_per_token": 1e-6, "output_cost_per_token": 1e-5},
    "embed-z": {"litellm_provider": "cohere", "input_cost_per_token": 1e-7},
    "pictures": {"litellm_provider": "gemini", "input_cost_per_image": 0.1},
}
CLOUD = Backend("c", engine="openai", url="https://cloud.example/v1", cloud=True)


def lite(model: str) -> Backend:
    return Backend("l", engine="litellm", cloud=True, model=model)


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({}, NO_TOKENS),
        ({"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}, Tokens(10, 3)),
        (
            {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 8}, "completion_tokens": None},
            Tokens(10, 0, 8),
        ),
        ({"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}}, Tokens(0, 9, 0, 4)),
        ({"prompt_tokens": "10", "completion_tokens": -5, "prompt_tokens_details": None}, NO_TOKENS),
        ({"prompt_tokens": 1.5, "completion_tokens_details": {"reasoning_tokens": "x"}}, NO_TOKENS),
    ],
)
def test_usage_is_read_as_far_as_it_makes_sense(usage: dict[str, Any], tokens: Tokens) -> None:
    assert read_usage(usage) == tokens


def test_a_declared_price_is_per_million_and_wins_over_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litellm", SimpleNamespace(model_cost=MAP))
    for backend in (CLOUD, lite("anthropic/claude-x")):
        priced = Backend(**{**backend.__dict__, "price": Price(0.5, 1.5)})
        rates = Prices().of(priced)
        assert rates is not None
        assert rates.usd(Tokens(1_000_000, 1_000_000, 600_000)) == pytest.approx(2.0)


def test_cached_tokens_have_a_price_of_their_own() -> None:
    rates = Prices().of(Backend(**{**CLOUD.__dict__, "price": Price(0.5, 1.5, 0.05)}))
    assert rates is not None
    assert rates.usd(Tokens(1_000_000, 0, 600_000)) == pytest.approx(0.4 * 0.5 + 0.6 * 0.05)


def test_the_lan_costs_nothing_and_an_unknown_cloud_is_unknown() -> None:
    prices = Prices()
    assert prices.of(Backend("a", url="http://10.0.0.1:8001")) is FREE
    assert prices.of(CLOUD) is None
    assert [costs_money(b) for b in (Backend("a"), CLOUD, Backend("a", price=Price(0.0, 0.1)))] == [False, True, True]
    assert not costs_money(Backend("c", cloud=True, price=Price(0.0, 0.0)))


@pytest.mark.parametrize(
    ("model", "tokens", "usd"),
    [
        ("anthropic/claude-x", Tokens(1000, 100), 0.0045),
        ("claude-x", Tokens(1000, 100), 0.0045),
        ("anthropic/claude-x", Tokens(1000, 0, 900), 0.0003 + 0.00027),
        ("anthropic/claude-x", Tokens(200_001, 1000, 200_001), 0.6e-6 * 200_001 + 0.0225),
        ("anthropic/claude-x", Tokens(100, 0, 500), 0.00003),
        ("gemini/gemini-y", Tokens(300_000, 10, 100_000), 0.3 + 0.0001),
        ("cohere/embed-z", Tokens(1000, 0), 0.0001),
    ],
)
def test_litellms_map_with_cached_tokens_and_long_prompts(model: str, tokens: Tokens, usd: float) -> None:
    rates = litellm_rates(MAP, model)
    assert rates is not None
    assert rates.usd(tokens) == pytest.approx(usd)


@pytest.mark.parametrize("model", ["anthropic/claude-unheard-of", "azure/claude-x", "gemini/pictures", "", "gemini-y"])
def test_a_price_that_the_map_does_not_know_is_unknown(model: str) -> None:
    """The same model at another provider may have another price."""
    assert litellm_rates(MAP, model) is None


def test_the_map_is_read_once_it_is_there_and_never_imported_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "litellm", raising=False)
    prices, backend = Prices(), lite("anthropic/claude-x")
    assert prices.of(backend) is None
    assert "litellm" not in sys.modules
    monkeypatch.setitem(sys.modules, "litellm", SimpleNamespace(model_cost=MAP))
    assert isinstance(prices.of(backend), Rates)
    edited = lite("anthropic/claude-other")
    assert prices.of(edited) is None, "another definition is another price"


@pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="without the extra `cloud`")
def test_the_real_map_knows_the_models_people_use() -> None:
    """Read from its file, as it came with the package."""
    import json
    from pathlib import Path

    spec = importlib.util.find_spec("litellm")
    assert spec is not None
    assert spec.origin is not None
    file = Path(os.path.dirname(spec.origin)) / "model_prices_and_context_window_backup.json"
    costs = json.loads(file.read_text())
    for model in ("anthropic/claude-sonnet-4-5", "gemini/gemini-2.5-pro"):
        rates = litellm_rates(costs, model)
        assert rates is not None
        assert 0.0 < rates.cached < rates.prompt < rates.completion < 1e-3
        assert rates.long is not None
        assert rates.long.prompt > rates.prompt
