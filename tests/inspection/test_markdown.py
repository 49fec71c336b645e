"""Calls that are only mentioned, in code or in a quotation, stay text."""

from __future__ import annotations

import pytest

from gateway.inspection.formats import FORMATS
from tests.inspection.mending import mend, mender
from tests.inspection.test_markers import XML_PING
from tests.inspection.test_mender import ALL, PING

STICKY = " ".join(name for name in ALL if not FORMATS[name].only_at_start)


@pytest.mark.parametrize(
    "text",
    [
        f"Write `{PING}` to call.",
        f"```xml\n{PING}\n```\n",
        f"````\n```\n{PING}\n```\n````",
        f'Write "{PING.replace(chr(34), "")}" to call.',
        f"Say “{PING}” and see.",
        f"``x ` {PING}``",
        f"```\n{PING}",
        "The tag <tool_call> opens a call, and <|tool_call> does so for gemma, [TOOL_CALLS] for mistral.",
        "<tool_call>" * 20,
        "<<tool_call",
        "a < b and c[0] <t",
        "",
        " \n ",
    ],
)
def test_text_that_only_mentions_a_call_comes_back(text: str) -> None:
    mended = mend(STICKY, text)
    assert (mended.content, mended.calls) == (text, [])


@pytest.mark.parametrize(
    "before",
    [
        "It`s mine.\n",
        'A 15" display. ',
        'An "open quote\n',
        "`code` ",
        '"quoted" ',
        "```\ncode\n```\n",
        "``a`b`` ",
        "<<",
    ],
)
def test_what_was_closed_or_no_quotation_does_not_hide_a_call(before: str) -> None:
    mended = mend("hermes", before + PING)
    assert (mended.content, mended.calls) == (before, [("ping", {})])


@pytest.mark.parametrize(
    "before",
    [
        'He said "sure, ',
        "“so ",
        "It is `not closed ",
        "``a ` ",
        "```python\nprint(1)\n\n",
        "```\n# like so\n",
    ],
)
@pytest.mark.parametrize("call", [PING, XML_PING, f"{PING}{XML_PING}", PING.replace(">", ">\n", 1)])
def test_code_or_a_quotation_that_is_never_closed_does_not_hide_a_call_at_its_end(before: str, call: str) -> None:
    mended = mend("hermes qwen3_xml", before + call)
    assert (mended.content, mended.calls) == (before, [("ping", {})] * call.count("ping"))


@pytest.mark.parametrize("before", ['He said "sure, ', "It is `not closed "])
def test_the_end_of_the_line_is_the_end_of_a_quotation_and_of_inline_code(before: str) -> None:
    mended = mend("hermes", f"{before}{PING} \nand so on, {PING}")
    assert mended.content == f"{before} \nand so on, "
    assert len(mended.calls) == 2


@pytest.mark.parametrize(
    "text",
    [
        f'Write "a {XML_PING}" or "b {XML_PING}{XML_PING}".',
        f'"a {XML_PING} and more\n',
        f'"a {PING} and more\n',
        f"`a {PING} and more\n",
        f"`{PING}\n`",
        f"`{XML_PING}",
        f'"{XML_PING}\n',
        f"“{PING}\n”",
        f"It is ``x {PING} ``\n",
        f"```xml\n{PING}",
        f"```xml\n\n  {XML_PING}\n{PING}",
        f"```\nSo:\n{PING}\nand so on",
        f"```\nSo:\n{PING}\n```",
        f"```\nSo:\n{PING}\n{PING}\n````\n",
        f"``` {PING}",
        f"```\nSo: <tool_call>{{\n```\n`{PING}`",
    ],
)
def test_a_call_in_code_or_a_quotation_with_more_behind_it_is_text(text: str) -> None:
    mended = mend("hermes qwen3_xml", text)
    assert (mended.content, mended.calls) == (text, [])


def test_code_in_a_block_flows_also_behind_the_beginning_of_a_call() -> None:
    machine = mender("hermes")
    machine.feed("```\nSo:\n")
    assert "".join(p.raw for p in machine.feed("x = 1\n")) == "x = 1\n"
    assert "".join(p.raw for p in machine.feed('<tool_call>{"name": "ping", "x": "...\n```\nOr')).endswith("Or")


@pytest.mark.parametrize("parser", sorted(FORMATS))
def test_a_block_that_begins_with_a_marker_is_an_example_and_flows(parser: str) -> None:
    for marker in FORMATS[parser].markers:
        machine = mender(parser)
        text = f"An example:\n```\n{marker}"
        sent = "".join(segment.raw for segment in machine.feed(text))
        for _ in range(50):
            text += "and so on. "
            sent += "".join(segment.raw for segment in machine.feed("and so on. "))
            assert len(text) - len(sent) <= 40  # a marker, not the rest of the answer
        assert sent + "".join(segment.raw for segment in machine.finish()) == text
