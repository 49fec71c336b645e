"""Is there a usable vector or score for every input? Judged by itself, without a gateway."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import msgspec
import pytest

from gateway.domain.endpoints import EMBEDDINGS, RERANK, SCORE, Endpoint
from gateway.domain.request import InferenceRequest, parse
from gateway.inspection.pooled import PooledCheck, prompt_usage
from gateway.inspection.whole import read_whole


def asked(endpoint: Endpoint, **fields: Any) -> InferenceRequest:
    return parse(endpoint, json.dumps({"model": "a", **fields}).encode())


def judged(request: InferenceRequest, results: Any, **params: Any) -> PooledCheck:
    check = PooledCheck(request, msgspec.Raw(json.dumps(results).encode()), params)
    for _ in check.steps():
        pass
    return check


def vectors(*given: Any) -> list[dict[str, Any]]:
    return [{"index": i, "embedding": vector} for i, vector in enumerate(given)]


def packed(*numbers: float, form: str = "f") -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}{form}", *numbers)).decode()


TWO = ["one", "two"]
WRONG: dict[str, tuple[dict[str, Any], Any]] = {
    "fewer than inputs": ({"input": TWO}, vectors([1.0])),
    "more than inputs": ({"input": "one"}, vectors([1.0], [2.0])),
    "the same place twice": ({"input": TWO}, [vectors([1.0])[0], vectors([2.0])[0]]),
    "a place beyond the inputs": ({"input": "one"}, [{"index": 1, "embedding": [1.0]}]),
    "an empty vector": ({"input": "one"}, vectors([])),
    "no vector": ({"input": "one"}, [{"index": 0}]),
    "null in it": ({"input": "one"}, vectors([1.0, None])),
    "text in it": ({"input": "one"}, vectors([1.0, "x"])),
    "different sizes": ({"input": TWO}, vectors([1.0], [1.0, 2.0])),
    "not finite": ({"input": "one"}, vectors(packed(1.0, float("nan")))),
    "infinite": ({"input": "one"}, vectors(packed(1.0, float("inf")))),
    "half a number": ({"input": "one"}, vectors(base64.b64encode(b"\0\0\0").decode())),
    "no base64": ({"input": "one"}, vectors("a")),
}


@pytest.mark.parametrize("name", WRONG)
def test_vectors_that_are_none_are_a_fault(name: str) -> None:
    fields, results = WRONG[name]
    found = judged(asked(EMBEDDINGS, **fields), results)
    assert found.fault is not None
    assert (found.inability, found.dimensions) == (None, None)


@pytest.mark.parametrize(
    "results", [vectors([0.5, -1], [1, 2.5]), vectors(packed(0.5, -1.0), packed(1.0, 2.5))], ids=["float", "base64"]
)
def test_good_vectors_show_their_size(results: Any) -> None:
    found = judged(asked(EMBEDDINGS, input=TWO), results)
    assert (found.fault, found.inability, found.dimensions) == (None, None, 2)
    unnumbered = [{"embedding": one["embedding"]} for one in results]
    assert judged(asked(EMBEDDINGS, input=TWO), unnumbered).fault is None, "then they are in order"


def test_texts_and_pictures_have_a_vector_each() -> None:
    """As Jina's models take them."""
    pair = asked(EMBEDDINGS, input=[{"text": "a"}, {"image": "https://host/a.png"}])
    assert judged(pair, vectors([0.5, 1], [1, 0.5])).fault is None
    assert judged(pair, vectors([0.5, 1])).fault is not None


def test_vectors_of_zeros_are_none() -> None:
    found = judged(asked(EMBEDDINGS, input="a"), vectors([0.0, -0.0]))
    assert found.inability == "answers with vectors of zeros: it embeds nothing"


def test_dimensions_that_were_not_obeyed_are_an_inability() -> None:
    wants = asked(EMBEDDINGS, input="a", dimensions=2)
    assert judged(wants, vectors([1.0, 2.0])).inability is None
    assert judged(wants, vectors([1.0, 2.0])).dimensions is None, "they say nothing of the model's own size"
    assert "3 numbers, whatever `dimensions` says" in str(judged(wants, vectors([1.0, 2.0, 3.0])).inability)
    assert judged(asked(EMBEDDINGS, input="a"), vectors([1.0, 2.0, 3.0]), dimensions=2).inability is not None


def test_half_floats_and_forms_of_other_servers_are_let_through() -> None:
    half = asked(EMBEDDINGS, input="a", encoding_format="base64", embed_dtype="float16")
    assert judged(half, vectors(packed(1.0, 2.0, form="e"))).fault is None
    binary = asked(EMBEDDINGS, input="a", embedding_type=["binary"])
    assert judged(binary, [{"index": 0, "embedding": {"binary": [1]}}]).fault is None


def ranked(*pairs: tuple[Any, Any]) -> list[dict[str, Any]]:
    return [{"index": i, "relevance_score": score} for i, score in pairs]


@pytest.mark.parametrize(
    ("more", "results", "good"),
    [
        ({}, ranked((1, 0.9), (0, -0.1)), True),
        ({"top_n": 1}, ranked((1, 0.9)), True),
        ({"top_n": 9}, ranked((1, 0.9), (0, 0.1)), True),
        ({"top_n": 1}, ranked((1, 0.9), (0, 0.1)), False),
        ({}, ranked((1, 0.9)), False),
        ({}, ranked((1, 0.9), (1, 0.1)), False),
        ({}, ranked((1, 0.9), (2, 0.1)), False),
        ({}, ranked((1, 0.9), (-1, 0.1)), False),
        ({}, ranked((1, 0.9), (None, 0.1)), False),
        ({}, ranked((1, 0.9), (0, None)), False),
        ({}, ranked((1, 0.9), (0, "0.1")), False),
        ({}, ranked((1, 0.9), (0, 1e999)), False),
    ],
)
def test_a_ranking_has_each_document_once(more: dict[str, Any], results: Any, good: bool) -> None:
    request = asked(RERANK, query="q", documents=TWO, **more)
    body = json.dumps({"results": results}).encode()
    answer = read_whole(body, request)
    if answer.failure is None:
        found = PooledCheck(request, answer.results, {})
        list(found.steps())
        answer.failure = found.fault
    assert (answer.failure is None) is good


def test_each_pair_has_a_score() -> None:
    request = asked(SCORE, text_1="q", text_2=TWO)
    assert judged(request, [{"index": 0, "score": 1}, {"index": 1, "score": -0.5}]).fault is None
    assert judged(request, [{"index": 0, "score": 1}]).fault is not None
    assert judged(request, [{"index": 0, "score": 1}, {"index": 1}]).fault is not None


def test_a_count_of_all_tokens_is_one_of_the_prompt() -> None:
    assert prompt_usage({"total_tokens": 7}) == {"total_tokens": 7, "prompt_tokens": 7}
    assert prompt_usage({"prompt_tokens": 3, "total_tokens": 7}) == {"prompt_tokens": 3, "total_tokens": 7}
    assert prompt_usage(None) is None


def test_large_answers_are_read_in_steps() -> None:
    many = [f"text {i}" for i in range(64)]
    check = PooledCheck(
        asked(EMBEDDINGS, input=many), msgspec.Raw(json.dumps(vectors(*[[0.25] * 8192] * 64)).encode()), {}
    )
    assert len(list(check.steps())) >= 8
    assert (check.fault, check.dimensions) == (None, 8192)
