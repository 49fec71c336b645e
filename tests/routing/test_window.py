"""Prompts against windows, and when they are worth counting."""

from __future__ import annotations

from typing import Any

from gateway.domain.endpoints import EMBEDDINGS
from gateway.routing.window import fits_window
from tests.routing.parts import NOW, backend, request


def test_each_of_many_texts_to_embed_has_the_window_to_itself() -> None:
    state = backend("a", context=1_000)
    many, one = (request(EMBEDDINGS, input=given) for given in (["x" * 3_000] * 9, "x" * 27_000))
    assert fits_window(state, many, 0, NOW)
    assert not fits_window(state, one, 0, NOW)


def test_a_server_that_computes_beyond_its_window_gets_only_prompts_that_surely_fit() -> None:
    asked = request(messages=[{"role": "user", "content": "x" * 30_000}])  # 6,250 to 12,000 tokens
    cases: list[tuple[dict[str, Any], bool]] = [
        ({}, True),
        ({"engine": "mlx"}, False),
        ({"engine": "openai", "server": "transformers"}, False),
    ]
    for keys, fit in cases:
        assert fits_window(backend("a", context=10_000, **keys), asked, 1024, NOW) is fit
    assert fits_window(backend("a", context=20_000, engine="mlx"), asked, 1024, NOW)


def test_a_text_to_embed_is_left_to_the_server_where_it_may_fit() -> None:
    state, text = backend("a", engine="ollama", context=2_000), "x" * 6_000  # 1,250 to 2,400 tokens
    assert fits_window(state, request(EMBEDDINGS, input=text), 0, NOW)
    assert not fits_window(state, request(messages=[{"role": "user", "content": text}]), 0, NOW)
