"""Any answer of a chat, and its stream in any pieces."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from tests.apps.dialects.answers import Answer, called, chunk, respaced

ROLE = chunk({"role": "assistant", "content": ""})
BEAT = chunk({})
COMMENT = b": still there\n\n"

letters = st.characters(exclude_categories=["Cs"]) | st.sampled_from(' \n"\\{}é😀')
said = st.text(letters, max_size=12) | st.sampled_from(["", "\n\n", " "])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(letters, max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(letters, max_size=4), inner, max_size=2),
    max_leaves=4,
)
arguments = st.dictionaries(st.text(letters, max_size=6), values, max_size=3)
usages = st.none() | st.fixed_dictionaries(
    {"prompt_tokens": st.integers(0, 2**20), "completion_tokens": st.integers(0, 2**20)},
    optional={"prompt_tokens_details": st.none() | st.fixed_dictionaries({"cached_tokens": st.integers(0, 2**20)})},
)


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    given_ = draw(st.lists(arguments, max_size=3))
    names = st.sampled_from(["now", "get_weather"])
    ascii_ = draw(st.booleans())
    calls = [
        (f"call-{i}", draw(names), draw(st.sampled_from(["", " "])) + json.dumps(one, ensure_ascii=ascii_))
        for i, one in enumerate(given_)
    ]
    finish = draw(st.sampled_from(["stop", "length", "tool_calls", "content_filter"]))
    stop = draw(st.sampled_from([None, "END", 151645]))
    return Answer(draw(said), draw(said), calls, finish, stop, draw(usages))


def cut(draw: st.DrawFn, text: str) -> list[str]:
    """The text in pieces; of nothing there are none."""
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4))) if text else []
    return [text[a:b] for a, b in pairwise([0, *places, len(text)]) if a < b]


def call_deltas(draw: st.DrawFn, answer: Answer, *, beside: bool) -> list[dict[str, Any]]:
    """Each call's head and the pieces of its arguments; `beside`: those of several in turns."""
    queues = []
    for i, (id_, name, text) in enumerate(answer.calls):
        first, *rest = cut(draw, text)
        with_head = draw(st.booleans())
        head = called(i, id_, name, first if with_head else "" if i % 2 else None)
        queues.append([head, *(called(i, arguments=piece) for piece in ([] if with_head else [first]) + rest)])
    if not beside:
        return [delta for queue in queues for delta in queue]
    found: list[dict[str, Any]] = []
    begun = 0
    while any(queues):
        ready = [i for i, queue in enumerate(queues) if queue and i <= begun]
        i = draw(st.sampled_from(ready))
        begun = max(begun, i + 1)
        found.append(queues[i].pop(0))
    return found


@st.composite
def streams(draw: st.DrawFn, answer: Answer, *, beside: bool = False) -> list[bytes]:
    """The answer as events of a chat: cut anywhere, put together anyhow, with heartbeats and comments in between."""
    name = draw(st.sampled_from(["reasoning", "reasoning_content"]))
    deltas: list[dict[str, Any]] = [{name: piece} for piece in cut(draw, answer.reasoning)]
    deltas += [{"content": piece} for piece in cut(draw, answer.text)]
    deltas += call_deltas(draw, answer, beside=beside)
    events = [ROLE] if draw(st.booleans()) else []
    waiting: dict[str, Any] = {}
    for delta in deltas:
        [(key, value)] = delta.items()
        waiting[key] = waiting[key] + value if key in waiting else value
        ends: bool = draw(st.booleans())
        if ends:
            events.append(chunk(waiting))
            waiting = {}
            events += draw(st.sampled_from([[], [BEAT], [COMMENT], [COMMENT, BEAT]]))
    last = answer.end()
    if waiting:
        with_end: bool = draw(st.booleans())
        events.append(chunk(waiting, *([answer.finish] if with_end else []), stop_reason=answer.stop_reason))
        last = last[1:] if with_end else last
    compact: bool = draw(st.booleans())
    return [event if compact else respaced(event) for event in events + last]
