"""A text is cut at its first stop string, however it arrives."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.inspection.chunk_filter import StopSearch

# Few characters, so that stop strings occur, begin and overlap; characters of one to four bytes.
_TEXT = st.text("ab☃😀", max_size=40)
_STOPS = st.lists(st.text("ab☃😀", min_size=1, max_size=5), min_size=1, max_size=4)


def cut_at(text: str, stops: list[str]) -> tuple[str, str | None]:
    """What is meant, in its slowest form: the text grows by one character until it ends with a stop string."""
    for end in range(len(text) + 1):
        if endings := [stop for stop in stops if text[:end].endswith(stop)]:
            longest = max(endings, key=len)
            return text[: end - len(longest)], longest
    return text, None


def searched(parts: list[str], stops: list[str]) -> tuple[str, str | None]:
    search = StopSearch(stops)
    kept = "".join([search.feed(part) for part in parts])
    return kept + search.finish(), search.found


@given(text=_TEXT, stops=_STOPS, cuts=st.lists(st.integers(0, 40), max_size=40))
def test_however_a_text_is_divided_it_is_cut_at_the_stop_string_that_ends_first(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [text[begin:end] for begin, end in pairwise(places)]
    assert "".join(parts) == text
    assert searched(parts, stops) == searched([text], stops) == cut_at(text, stops)


@given(text=_TEXT, stops=_STOPS)
def test_no_more_is_held_than_may_become_a_stop_string(text: str, stops: list[str]) -> None:
    search = StopSearch(stops)
    kept = "".join([search.feed(character) for character in text])
    held = "" if search.found is not None else text[len(kept) :]
    assert not held or any(stop.startswith(held) and stop != held for stop in stops)


@pytest.mark.parametrize(
    ("text", "stops", "kept"),
    [
        ("one two three", ["two"], "one "),
        ("one two three", ["three", "two"], "one "),  # the first in the text, not in the list
        ("abcdef", ["cd", "abcd"], ""),  # both end at once: the longer one
        ("abcdef", ["abcdef", "cd"], "ab"),  # the one that is complete first
        ("aab", ["ab"], "a"),
        ("no end", ["nothing"], "no end"),
        ("a tw", ["two"], "a tw"),  # only the beginning of one
    ],
)
def test_the_cut(text: str, stops: list[str], kept: str) -> None:
    assert searched(list(text), stops)[0] == searched([text], stops)[0] == kept


def test_after_a_stop_string_nothing_is_kept() -> None:
    search = StopSearch(["."])
    assert [search.feed(part) for part in ("one.", "two", ".")] == ["one", "", ""]
    assert search.finish() == ""
    assert search.found == "."
