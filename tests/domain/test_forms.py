"""The forms that a server reads: as it was learned of them, and the effort that is nearest to the wanted one."""

from __future__ import annotations

import pytest

from gateway.domain.forms import USUAL_FORMS, Forms, learned_forms, nearest_effort


@pytest.mark.parametrize(
    ("wanted", "known", "nearest"),
    [
        ("high", ("low", "medium"), "medium"),
        ("minimal", ("none", "low"), "low"),
        ("none", ("none", "low"), "none"),
        ("extreme", ("low",), None),
    ],
)
def test_the_nearest_effort_is_one_that_is_known(wanted: str, known: tuple[str, ...], nearest: str | None) -> None:
    assert nearest_effort(wanted, known) == nearest


@pytest.mark.parametrize(
    ("facts", "forms"),
    [
        (["form:limit=max_tokens"], Forms(limit="max_tokens")),
        (
            ["form:efforts=low,high", "form:refused=a", "form:refused=b"],
            Forms(efforts=("low", "high"), refused=frozenset("ab")),
        ),
        (["form:extras=cache_control"], Forms(extras=frozenset({"cache_control"}))),
        (["tools", "form:unknown=1"], USUAL_FORMS),
    ],
)
def test_a_learned_fact_changes_its_form_alone(facts: list[str], forms: Forms) -> None:
    assert learned_forms(USUAL_FORMS, facts) == forms
