"""Errors in Anthropic's envelope, in the words its clients act on."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gateway.apps.dialects.anthropic.answer import envelope
from gateway.errors import CATALOGUE, GatewayError, PassedOn, context_length_exceeded, model_not_found

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}  # all others: api_error
OVERFLOW = re.compile(r"^prompt is too long: (\d+) tokens > (\d+) maximum$")  # what Claude Code reads


def said(error: GatewayError, status: int | None) -> dict[str, Any]:
    """The `error` of the envelope."""
    body = json.loads(envelope(status, error.envelope(), "my-id"))
    told: dict[str, Any] = body.pop("error")
    assert body == {"type": "error", "request_id": "my-id"}
    assert told.keys() == {"type", "message", "code"}
    return told


@pytest.mark.parametrize("inside_a_stream", [False, True])
@pytest.mark.parametrize("code", CATALOGUE)
def test_every_error_has_the_type_of_its_status_and_keeps_its_code_and_words(code: str, inside_a_stream: bool) -> None:
    error = GatewayError(code, "what is wrong", param="messages")
    kind = TYPES.get(CATALOGUE[code].status, "api_error")
    wanted = {"type": kind, "message": "what is wrong", "code": code}
    assert said(error, None if inside_a_stream else error.status) == wanted


def test_the_types_are_those_of_the_statuses_that_are_answered() -> None:
    assert {CATALOGUE[code].status for code in CATALOGUE} >= set(TYPES)


def test_an_unknown_model_is_said_to_be_one() -> None:
    error = model_not_found("x", ["y"])
    assert said(error, error.status) == {
        "type": "not_found_error",
        "message": "The model 'x' does not exist",
        "code": "model_not_found",
    }


@pytest.mark.parametrize("status", [400, None])
def test_a_prompt_that_is_too_long_is_said_in_the_words_that_claude_code_reads(status: int | None) -> None:
    told = said(context_length_exceeded(131072, 140000), status)
    match = OVERFLOW.match(told["message"])
    assert match is not None
    assert match.groups() == ("140000", "131072")
    assert (told["type"], told["code"]) == ("invalid_request_error", "context_length_exceeded")


@pytest.mark.parametrize("code", CATALOGUE)
def test_no_other_error_speaks_of_a_prompt_that_is_too_long(code: str) -> None:
    assert OVERFLOW.match(said(GatewayError(code, "The prompt has 5 tokens."), None)["message"]) is None


@pytest.mark.parametrize(("status", "kind"), [(400, "invalid_request_error"), (409, "api_error"), (422, "api_error")])
@pytest.mark.parametrize("code", [None, "its_own"])
def test_a_backends_own_refusal_keeps_its_message_and_code(status: int, kind: str, code: str | None) -> None:
    error = PassedOn(status, "temperature must be below 2", "temperature", code)
    assert said(error, status) == {"type": kind, "message": "temperature must be below 2", "code": code}


def test_a_code_that_is_not_ours_is_a_failure_inside_a_stream() -> None:
    assert said(PassedOn(400, "no", None, "its_own"), None)["type"] == "api_error"
