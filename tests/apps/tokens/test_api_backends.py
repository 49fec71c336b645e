"""Who tells the tokens of an alias, and what is said where nobody can."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gateway.apps.tokens.api import TokenizeFailure, refusal, tokenizers_of
from gateway.config.snapshot import Alias
from gateway.domain.backend import BackendState
from gateway.domain.health_state import State
from tests.routing.parts import backend

ALIAS = Alias("chat", (("a", "b"), ("c",)))


def state(name: str, model: str = "m", health: State = State.READY, engine: Any = "vllm", **more: Any) -> BackendState:
    made = backend(name, model=model, engine=engine, **more)
    made.health.state = health
    return made


def asked(*states: BackendState) -> tuple[list[str], dict[str, str]]:
    found, passed = tokenizers_of(ALIAS, states, time.monotonic())
    return [one.name for one in found], {one.state.name: one.kind for one in passed}


def test_tokenizers_with_the_first_backends_model_are_asked_in_their_order() -> None:
    assert asked(state("a"), state("b"), state("c", "other")) == (["a", "b"], {"c": "lacking"})
    assert asked(state("a", "other"), state("b"), state("c")) == (["a"], {"b": "lacking", "c": "lacking"})


def test_a_tokenizer_that_is_away_keeps_its_model_and_a_parked_one_does_not() -> None:
    assert asked(state("a", health=State.DOWN), state("b"), state("c", "other"))[0] == ["b"]
    assert asked(state("a", health=State.DOWN), state("b", "other"))[0] == []
    assert asked(state("a", health=State.PARKED), state("b", "other"))[0] == ["b"]


def test_a_cloud_and_a_server_without_a_tokenizer_are_never_asked() -> None:
    others = state("a", engine="openai"), state("b", engine="ollama")
    assert asked(*others, state("c", "other")) == ([], dict.fromkeys("abc", "lacking"))
    assert asked(*others, state("c"))[0] == ["c"]
    assert asked(state("a", cloud=True), state("b")) == (["b"], {"a": "lacking"})


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        (["lacking", "lacking"], "input_unsupported"),
        (["lacking", "down"], "no_backend_available"),
        (["outside"], "no_backend_available"),
        (["down", "warming"], "backend_warming"),
        (["starting"], "backend_warming"),
        (["lacking", "failed"], "upstream_error"),
        (["failed", "down"], "upstream_error"),
    ],
)
def test_the_error_is_that_of_the_nearest_hope(kinds: list[str], code: str) -> None:
    passed = [TokenizeFailure(state(name), kind, f"is {kind}") for name, kind in zip("abc", kinds, strict=False)]
    error = refusal(ALIAS, "/tokenize", passed, time.monotonic())
    assert error.code == code
    assert all(f"{one.state.name} {one.reason}" in error.message for one in passed)
    assert (error.retry_after is not None) == (code in ("no_backend_available", "backend_warming"))
    silent = [TokenizeFailure(state("a"), "failed", "was silent", timeout=True)]
    assert refusal(ALIAS, "/tokenize", silent, time.monotonic()).code == "upstream_timeout"
