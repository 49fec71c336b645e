"""The variables of a text, and a text that says something else than its draft."""

from __future__ import annotations

import pytest

from gateway.apps.importing.draft import Draft, DraftEntry
from gateway.apps.importing.output import RoundTripMismatch, render, variables, verify_round_trip


def test_variables_are_those_of_values_not_of_comments() -> None:
    draft = Draft(head=["${NOT}"], backends={"a": DraftEntry({"api_key": "${YES}", "model": "$${NO}"})})
    assert variables(render(draft)) == ["YES"]


def test_a_text_that_says_something_else_is_not_let_through() -> None:
    draft = Draft(backends={"a": DraftEntry({"url": "http://h:1"})})
    text = render(draft).replace("http://h:1", "http://h:2")
    with pytest.raises(RoundTripMismatch, match=r"backends\.a\.url"):
        verify_round_trip(text, draft, {})
