"""Arguments of calls as they arrive: JSON passes unchanged, what is none is mended from where it breaks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.inspection import arguments as arguments_module
from gateway.inspection.arguments import MENDED_MOST, Arguments


def fed(pieces: list[str]) -> tuple[list[str], str, Arguments]:
    """(what was passed on for each piece, the rest, the arguments)."""
    arguments = Arguments()
    passed = [arguments.feed(piece) for piece in pieces]
    return passed, arguments.finish(), arguments


def in_pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"city": Oslo}', {"city": "Oslo"}),
        ('{"city": Oslo, "days": 3}', {"city": "Oslo", "days": 3}),
        ("{'city': 'Oslo', 'x': None}", {"city": "Oslo", "x": None}),
        ("{'city': 'it\\'s'}", {"city": "it's"}),
        ('{"city": "Oslo", "x": True}', {"city": "Oslo", "x": True}),
        ('{"city": "Oslo",}', {"city": "Oslo"}),
        ('{"tags": ["a", "b", ], "x": 1}', {"tags": ["a", "b"], "x": 1}),
        ('{"city": "Os\nlo\t!", "x": "a\nb"}', {"city": "Os\nlo\t!", "x": "a\nb"}),
        ('{"city": "Oslo"}}}', {"city": "Oslo"}),
        ('{"n": 007}', {"n": "007"}),
    ],
)
def test_what_is_no_json_is_mended(text: str, value: dict[str, Any], size: int) -> None:
    passed, rest, arguments = fed(in_pieces(text, size))
    assert json.loads("".join(passed) + rest) == value
    assert (arguments.whole, arguments.mended) == (True, True)


@pytest.mark.parametrize("size", [1, 2, 1000])
@pytest.mark.parametrize(
    "text", ['{"city": "Os', '{"city":', '{"a": [1, 2', '{"a": tru', "{", "[1]", '"x"', "5", "{!}"]
)
def test_what_cannot_be_mended_is_as_it_came(text: str, size: int) -> None:
    passed, rest, arguments = fed(in_pieces(text, size))
    assert "".join(passed) + rest == text
    assert not arguments.whole


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), JSON), st.booleans(), st.sampled_from([None, 2]), st.data())
def test_json_passes_unchanged_and_at_once(value: Any, ascii_: bool, indent: int | None, data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=ascii_, indent=indent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    passed, rest, arguments = fed(pieces)
    assert "".join(passed) + rest == text
    assert not (value and rest)
    assert (arguments.whole, arguments.mended) == (True, False)


def test_an_empty_object_waits_for_the_arguments_behind_it() -> None:
    assert fed(["{}"])[:2] == ([""], "{}")
    passed, rest, arguments = fed(["{}", '{"city"', ': "Oslo"}'])
    assert ("".join(passed), rest) == ("", '{"city": "Oslo"}')
    assert arguments.whole


def test_strings_pass_at_once_and_a_comma_waits_for_what_follows() -> None:
    pieces = ['{"', "city", '":', ' "Os', "lo", '",', ' "d": ', "tr", "ue", ', "n": 1', "2}"]
    passed, rest, _ = fed(pieces)
    assert passed == ['{"', "city", '":', ' "Os', "lo", '"', ', "d": ', "", "", 'true, "n": ', "12}"]
    assert rest == ""


def test_what_is_too_long_to_be_checked_passes_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments_module, "CHECKED_MOST", 10)
    pieces = ['{"a": "b', "cdefg", ", oops", "}"]
    passed, rest, arguments = fed(pieces)
    assert ("".join(passed), rest) == ("".join(pieces), "")
    assert (arguments.whole, arguments.mended, arguments.empty) == (True, False, False)
    again = Arguments()
    assert [again.passes(piece) for piece in pieces[:2]] == [True, True]
    assert [again.passes(pieces[2]), again.feed(pieces[2]), again.passes(pieces[3])] == [False, pieces[2], True]


@given(st.text(alphabet="{}[]\",:'\\ntrue05 -.eE", max_size=30))
def test_nothing_is_lost_of_any_text(text: str) -> None:
    passed, rest, arguments = fed(in_pieces(text, 1))
    once, rest_once, _ = fed([text])
    assert "".join(passed) + rest == "".join(once) + rest_once
    if arguments.whole:
        assert isinstance(json.loads("".join(passed) + rest), dict)
    else:
        assert "".join(passed) + rest == text


def test_what_is_long_and_hopeless_is_left_as_it_came() -> None:
    for text in ("}" * (MENDED_MOST + 1), '{"a": 1}' + " }" * MENDED_MOST, "```" * MENDED_MOST):
        arguments = Arguments()
        assert arguments.feed(text) + arguments.finish() == text
        assert not arguments.whole
