"""Where a call may begin: markers, cut, shared, or in no call at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.inspection.mender import Text
from tests.inspection.mending import mend, mender, run, torn
from tests.inspection.test_mender import PING

XML_PING = "<tool_call><function=ping></function></tool_call>"


@pytest.mark.parametrize("call", [PING, XML_PING])
def test_a_cut_after_the_beginning_of_a_marker_makes_no_example(call: str) -> None:
    text = f"```\n<div>\n{call}"
    whole = run(mender("hermes qwen3_xml"), [text])
    for at in range(1, len(text)):
        cut_there = run(mender("hermes qwen3_xml"), [text[:at], text[at:]])
        assert (cut_there.calls, cut_there.content) == (whole.calls, whole.content)
    assert whole.calls


def test_formats_that_share_a_marker_are_told_apart() -> None:
    glm = "<tool_call>ping\n</tool_call>"
    mended = mend("glm45 qwen3_xml hermes", f"{PING}\n{XML_PING}{glm}")
    assert mended.calls == [("ping", {})] * 3
    assert mended.content == ""


def test_plain_text_is_not_held_back() -> None:
    machine = mender("hermes qwen3_xml")
    assert machine.feed("Hello, ") == [Text("Hello, ")]
    assert machine.feed("a <b> and <to") == [Text("a <b> and ")]
    assert machine.feed("ol> tag") == [Text("<tool> tag")]
    assert machine.finish() == []


@given(st.text('<tool_cal>func=`"\n {[', max_size=60), st.integers(0, 1000))
def test_no_more_than_a_marker_is_held_outside_a_call(text: str, seed: int) -> None:
    machine = mender("hermes")
    fed = sent = 0
    for piece in torn(text, seed):
        fed += len(piece)
        sent += sum(len(out.raw) for out in machine.feed(piece))
        unsent = text[sent:fed]
        assert len(unsent) <= len("<tool_call>") or "<tool_call>" in unsent
