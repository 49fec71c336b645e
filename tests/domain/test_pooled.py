"""How many results a request for vectors or scores gets."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.domain.endpoints import EMBEDDINGS, RERANK, SCORE
from gateway.domain.pooled import count_inputs
from tests.inspection.test_pooled import asked


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ("a", 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1], [2, 3]], 2), ([{"role": "user", "content": "a"}], 1),
        ([], None), (5, 1), ([{"text": "a"}, {"image": "b"}], 2), ([{"prompt_string": "a"}], 1),
        ([[{"role": "user", "content": "a"}]] * 3, 3), ([1, "a", 2], 1), (["a", 1, 2], 1), (["a", -1], 1),
    ],
)  # fmt: skip
def test_texts_to_embed_are_counted(given: Any, count: int | None) -> None:
    assert count_inputs(asked(EMBEDDINGS, input=given)) == count


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"text_1": "q", "text_2": ["a", "b"]}, 2),
        ({"queries": ["q"], "documents": ["a", "b", "c"]}, 3),
        ({"queries": "q", "items": ["a"]}, 1),
        ({"data_1": "q", "data_2": "a"}, 1),
        ({"text_1": "q"}, None),
    ],
)
def test_pairs_to_score_are_counted(fields: dict[str, Any], count: int | None) -> None:
    assert count_inputs(asked(SCORE, **fields)) == count


def test_documents_to_rank_are_counted() -> None:
    assert count_inputs(asked(RERANK, query="q", documents=["a", {"text": "b"}])) == 2
    assert count_inputs(asked(RERANK, query="q")) is None
