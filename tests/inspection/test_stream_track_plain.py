"""A plain event of a stream is noted as any event is."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.endpoints import CHAT
from gateway.domain.request import parse
from gateway.inspection.inspector import Inspector
from gateway.inspection.rewrite import ReplyIdentity
from gateway.inspection.stream_track import StreamTrack
from tests.proxy.house import END as END_OF_STREAM
from tests.proxy.house import event

# -- events ------------------------------------------------------------------------------------------------------------

contents = st.one_of(st.sampled_from(["", "So", "!", "!!!!!!", "<think>", "</think>", "<", " ", "größer"]), st.none())
deltas = st.fixed_dictionaries(
    {},
    optional={
        "content": contents,
        "role": st.sampled_from(["assistant", None, 5]),
        "reasoning": st.sampled_from(["Hm", "", None]),
        "tool_calls": st.sampled_from([None, [], [{"index": 0, "function": {"name": "f", "arguments": ""}}]]),
        "refusal": st.sampled_from([None, "No"]),
        "x": st.integers(0, 1),
    },
)
ends = st.sampled_from([None, None, None, "stop", "length", "abort", "tool_calls", "", 7])
events = st.lists(st.tuples(deltas, ends), max_size=6)


def followed(given_events: list[tuple[dict[str, Any], Any]]) -> list[object]:
    request = parse(CHAT, b'{"model": "alias", "messages": [], "stream": true}')
    track = StreamTrack(request, ReplyIdentity())
    found: list[object] = []
    for delta, end in given_events:
        found.append(track.feed([event(delta, end)]))
        found.append((track.failure, track.content, track.reasoning, bool(track.held), track.finished.copy()))
        if track.failure is not None:
            return found
    found.append(track.feed(END_OF_STREAM))
    track.conclude()
    found.append((track.violations, track.mended, track.empty, track.stray_close, track.usage, track.whole))
    return found


@given(events)
def test_a_plain_event_is_noted_as_any_event_is(given_events: list[tuple[dict[str, Any], Any]]) -> None:
    fast = followed(given_events)
    with patch.object(Inspector, "inspect_plain", lambda _inspector, _choice: None):
        assert followed(given_events) == fast
