"""The catalogue of errors and its wording; an error that is kept is raised as a copy of it."""

from __future__ import annotations

import ast
import json
import traceback
from pathlib import Path

import pytest

import gateway.errors
from gateway.domain.upstream import OwnFailure, ResetFailure
from gateway.errors import CATALOGUE, GatewayError, PassedOn, fresh, model_not_found
from gateway.routing.refusal import MISLEADING
from tests.envelope import NOT_IN_A_429, TRIGGERS

SOURCES = Path(gateway.errors.__file__).parent


async def test_the_catalogue_has_every_code_of_the_contract_with_its_status() -> None:
    contract = {
        "invalid_request_body": 400,
        "request_too_large": 413,
        "model_not_found": 404,
        "context_length_exceeded": 400,
        "tool_choice_unsupported": 400,
        "thinking_unsupported": 400,
        "input_unsupported": 400,
        "invalid_api_key": 401,
        "model_not_allowed": 403,
        "rate_limit_exceeded": 429,
        "queue_full": 429,
        "queue_timeout": 429,
        "backend_warming": 429,
        "budget_exceeded": 402,
        "no_backend_available": 503,
        "upstream_error": 502,
        "upstream_timeout": 504,
    }
    assert contract.items() <= {name: code.status for name, code in CATALOGUE.items()}.items()


DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def texts(path: Path) -> list[str]:
    """Every text of a source file that may end up in a message: all but docstrings, joined where f-strings split."""
    tree = ast.parse(path.read_text())
    bodies = [n.body for n in ast.walk(tree) if isinstance(n, DOCUMENTED) and n.body]
    docs = {id(body[0].value) for body in bodies if isinstance(body[0], ast.Expr)}
    strings = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return [str(n.value) for n in strings if id(n) not in docs and " " in str(n.value)]


# Where messages for clients are written.
SPEAKING = (
    "errors.py",
    "proxy/*.py",
    "routing/*.py",
    "admission/*.py",
    "api/*.py",
    "apps/*/*api.py",
    "apps/dialects/token_counts.py",
)


async def test_no_message_of_ours_but_the_overflow_makes_an_agent_drop_its_history() -> None:
    files = [file for pattern in SPEAKING for file in SOURCES.glob(pattern) if file.name != "decided.py"]  # names alone
    said = [(file.name, text) for file in files for text in texts(file)]
    assert len(said) > 50
    assert all(any(SOURCES.glob(pattern)) for pattern in SPEAKING)
    guilty = [
        (name, text)
        for name, text in said
        if any(word in text.lower() for word in TRIGGERS)
        and not any(part in text for part in ("maximum context length", " input tokens. "))
        and text not in MISLEADING.pattern
        and text not in {code.meaning for code in CATALOGUE.values()}
    ]
    assert guilty == []


async def test_the_words_that_are_not_repeated_are_all_the_known_ones() -> None:
    for word in (*TRIGGERS, *NOT_IN_A_429, "not found"):
        assert MISLEADING.search(f"it said {word.upper()} here")


async def test_retry_after_is_whole_seconds_within_ten_minutes() -> None:
    for given, told in ((0.0, b"1"), (0.4, b"1"), (7.6, b"8"), (5000.0, b"600")):
        error = GatewayError("queue_full", "x", retry_after=given)
        assert error.headers() == [(b"retry-after", told)]
    assert GatewayError("queue_full", "x").headers() == []


@pytest.mark.parametrize("code", ["invalid_api_key", "model_not_allowed", "budget_exceeded"])
async def test_a_refusal_makes_hermes_put_its_key_aside_for_a_second_only(code: str) -> None:
    assert GatewayError(code, "x").headers() == [(b"retry-after", b"1")]


async def test_a_passed_on_refusal_keeps_the_backends_code_and_our_type() -> None:
    told = json.loads(PassedOn(422, "no", "temperature", "odd").envelope())
    assert told == {"error": {"message": "no", "type": "invalid_request_error", "param": "temperature", "code": "odd"}}


async def test_a_names_quotes_do_not_break_the_envelope() -> None:
    assert json.loads(model_not_found('a"b\\\n', []).envelope())["error"]["message"].startswith("The model 'a\"b")


def raised(error: BaseException) -> BaseException:
    with pytest.raises(type(error)) as found:
        raise fresh(error)
    return found.value


def test_the_copy_says_what_the_kept_one_says() -> None:
    kept = GatewayError("memory_full", "no room", retry_after=3)
    copy = raised(kept)
    assert isinstance(copy, GatewayError)
    assert (str(copy), copy.code, copy.status, copy.headers()) == ("no room", "memory_full", 503, kept.headers())


def test_an_error_with_arguments_of_its_own_is_copied() -> None:
    copy = raised(OwnFailure("files", unsent=True))
    assert isinstance(copy, OwnFailure)
    assert (copy.shortage, copy.unsent) == ("files", True)


def test_the_kept_one_leads_to_no_frame_however_often_it_is_raised() -> None:
    kept = ResetFailure("gone")
    for _ in range(2):
        assert len(traceback.extract_tb(raised(kept).__traceback__)) == 1
    assert kept.__traceback__ is None


def test_the_cause_is_kept() -> None:
    kept = ResetFailure("gone")
    kept.__cause__ = OSError("reset")
    assert raised(kept).__cause__ is kept.__cause__
