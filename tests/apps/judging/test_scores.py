"""Scores in the answers of judges."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.apps.judging.comparison import by_path, by_pattern, usual_score


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ('{"score": 4, "reason": "2 of 5"}', 4.0),
        ('{"rating": "3.5"}', 3.5),
        ('Thinking of it.\n```json\n{"score": 2}\n```', 2.0),
        ('The answer is fine. {"score": 5}', 5.0),
        ("I would first give a score of 2, but then: Score: 4", 4.0),
        ("**Rating:** 3/5", 3.0),
        ("4", 4.0),
        (" 4/5. ", 4.0),
        ("-1", -1.0),
        ("Score: -4", -4.0),
        ("score = **-0.5**", -0.5),
        ("Score: \u22124", -4.0),
        ("Score - 4", 4.0),
        ("Score: .5", 0.5),
        ("Score (1-5): 4", 4.0),
        ("**Score [0-100]:** 85", 85.0),
        ("Rating (out of 10) = 8", 8.0),
        ("Score (4)", 4.0),
        ("Score: 4.", 4.0),
        ("Score: 7\nPoints 1-5 are for style.", 7.0),
        ("Score from 1 to 5", None),
        ("Score: 1-5", None),
        ("It has 4 sentences.", None),
        ('{"score": null}', None),
        ('{"score": true}', None),
        ('{"score": NaN}', None),
        ("", None),
    ],
)
def test_a_score_is_found_where_answers_have_it(text: str, score: float | None) -> None:
    assert usual_score(text) == score


def test_a_path_leads_into_the_json() -> None:
    text = json.dumps({"criteria": [{"score": 3}, {"score": 5}], "overall": {"value": 4}})
    assert by_path("overall.value")(text) == 4.0
    assert by_path("$.criteria[1].score")(text) == 5.0
    assert by_path("criteria[-1].score")(text) == 5.0
    assert by_path("criteria[7].score")(text) is None
    assert by_path("overall")(text) is None
    assert by_path("overall.value")("no json") is None


def test_the_last_match_of_a_pattern_counts() -> None:
    assert by_pattern(r"Verdict: (\d)")("Verdict: 1 ... Verdict: 3") == 3.0
    assert by_pattern(r"Verdict: (\d)")("nothing") is None


@pytest.mark.parametrize("wrong", ["", "$", "a[x]", "[", "a..b]"])
def test_a_path_that_is_none_is_said(wrong: str) -> None:
    with pytest.raises(ValueError, match="is no path"):
        by_path(wrong)


@pytest.mark.parametrize("wrong", ["(", "no group"])
def test_a_pattern_that_is_none_is_said(wrong: str) -> None:
    with pytest.raises(ValueError):
        by_pattern(wrong)


@given(st.text(max_size=200))
def test_no_answer_breaks_it(text: str) -> None:
    for find in (usual_score, by_path("a.b[0]"), by_pattern(r"(\d+)")):
        found = find(text)
        assert found is None or found == found
