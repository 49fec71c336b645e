"""The raw texts of all segments, joined, are what the backend sent."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.inspection.finder import CallFinder
from gateway.inspection.mender import PIECE, Text
from gateway.inspection.segments import Segment, merged
from tests.inspection.mending import mender, run, torn
from tests.inspection.test_mender import ARMED


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_characters="<[{f]"), max_size=200), ARMED, st.integers(0, 10_000))
def test_text_without_a_call_comes_back_exactly(text: str, armed: list[str], seed: int) -> None:
    mended = run(mender(armed), torn(text, seed))
    assert merged(mended.pieces) == ([Text(text)] if text else [])


def test_a_long_text_is_searched_piece_by_piece() -> None:
    searched, search = list[int](), CallFinder.feed

    def feed(finder: CallFinder, text: str) -> list[Segment]:
        searched.append(len(text))
        return search(finder, text)

    with patch.object(CallFinder, "feed", feed):
        assert mender(["hermes"]).feed("a" * (2 * PIECE + 1)) == [Text("a" * (2 * PIECE + 1))]
    assert searched == [PIECE, PIECE, 1]
