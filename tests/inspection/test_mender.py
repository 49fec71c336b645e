"""The incremental machine: what it holds back, what it leaves alone, and that cuts make no difference."""

from __future__ import annotations

import json
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.inspection.finder import CallFinder
from gateway.inspection.formats import FORMATS
from gateway.inspection.mender import PIECE, Call, Gap, Text
from gateway.inspection.reasoning import REASONING, THINK, Thoughts
from gateway.inspection.segments import Segment, merged
from tests.inspection.mending import CASES, cut, mend, mender, run, torn
from tests.limits import cpu_within

PING = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
XML_PING = "<tool_call><function=ping></function></tool_call>"
ALL = sorted({format_.name for format_ in FORMATS.values()})
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


def test_white_space_around_calls_is_no_content() -> None:
    mended = mend("hermes", f"\n\n{PING}\n{PING}\n")
    assert mended.content == ""
    assert [type(piece) for piece in mended.pieces] == [Gap, Call, Gap, Call, Gap]


def test_a_call_is_held_until_it_is_whole_and_then_given_out() -> None:
    machine = mender("hermes")
    assert [piece for char in PING[:-1] for piece in machine.feed(char)] == []
    assert machine.feed(PING[-1]) == [Call("ping", "{}", PING)]


def test_a_refused_call_flows_at_once() -> None:
    machine = mender("hermes")
    assert (
        "".join(p.raw for p in machine.feed('<tool_call>{"name": "rm_rf", "arg')) == '<tool_call>{"name": "rm_rf", "arg'
    )


def test_the_raw_text_of_several_calls_in_one_wrapper_is_counted_once() -> None:
    text = 'functools[{"name": "ping"}, {"name": "ping"}]'
    assert [piece.raw for piece in mend("phi4_mini_json", text).pieces] == [text, ""]


def test_a_call_beyond_the_limit_is_text_however_it_comes() -> None:
    def call(size: int) -> str:
        head, tail = '<tool_call>{"name": "get_weather", "arguments": {"city": "', '"}}</tool_call>'
        return head + "x" * (size - len(head) - len(tail)) + tail

    assert len(mend("hermes", call(200), max_held=200).calls) == 1
    for size in (201, 260, 900):
        mended = mend("hermes", call(size) + " then " + PING, max_held=200)
        assert (mended.content, mended.calls) == (call(size) + " then ", [("ping", {})])


def test_inside_a_text_that_was_too_long_for_a_call_nothing_is_looked_for() -> None:
    text = "<function=write_file>\n<parameter=path>\n<function=ping></function>" + "x" * 300
    assert mend("qwen3_xml", text, max_held=200).content == text


def test_a_long_call_is_given_out_with_its_last_character() -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "' + "x" * 3000 + '"}}</tool_call>'
    machine = mender("hermes")
    assert [piece for char in text[:-1] for piece in machine.feed(char)] == []
    assert [type(piece) for piece in machine.feed(text[-1])] == [Call]


def test_much_white_space_is_not_held_back() -> None:
    machine = mender("hermes")
    sent = [piece for _ in range(50) for piece in machine.feed("\n")]
    assert "".join(piece.raw for piece in sent) == "\n" * 50


def test_without_tools_or_formats_nothing_is_a_call() -> None:
    assert mend("hermes", PING, tools=[]).content == PING
    assert mend("", PING).content == PING


def test_a_long_call_full_of_closing_characters_arrives_whole() -> None:
    content = "if (x) { y[0] } > </parameter> ]\n" * 3000
    arguments = json.dumps({"path": "a.c", "content": content})
    for parser, text in (
        ("mistral", f"[TOOL_CALLS]write_file[ARGS]{arguments}"),
        ("hermes", f'<tool_call>{{"name": "write_file", "arguments": {arguments}}}</tool_call>'),
        ("qwen3_xml", f"<function=write_file>\n<parameter=content>\n{content}\n</parameter>\n</function>"),
    ):
        machine = mender(parser)
        with cpu_within(2):
            pieces = [piece for part in cut(text, 8) for piece in machine.feed(part)] + machine.finish()
        (call,) = [piece for piece in pieces if isinstance(piece, Call)]
        assert json.loads(call.arguments)["content"] == content


# Thoughts


def test_a_call_after_thoughts_needs_no_content() -> None:
    mended = mend("hermes", f"<think>\nhm\n</think>\n\n{PING}", THINK)
    assert (mended.reasoning, mended.content, mended.calls) == ("\nhm\n", "", [("ping", {})])


def test_a_call_inside_closed_thoughts_is_a_draft() -> None:
    text = f"<think>\nI could {PING} or not\n</think>\nNo."
    mended = mend("hermes", text, THINK)
    assert (mended.reasoning, mended.content) == (f"\nI could {PING} or not\n", "\nNo.")
    assert mend("hermes", f"<think>{PING}</think>", THINK).calls == []


def test_thoughts_that_end_in_calls_are_over() -> None:
    mended = mend("hermes", f"<think>\nI call now\n{PING}\n{PING}\n", THINK)
    assert (mended.reasoning, mended.content) == ("\nI call now\n", "")
    assert mended.calls == [("ping", {})] * 2
    assert mend("hermes", f"<think>\n{PING} or so", THINK).calls == []


# Whatever comes

TEXTS = [case["text"] for case in CASES]
CHUNKS = st.sampled_from(
    [marker for format_ in FORMATS.values() for marker in format_.markers]
    + [closer for format_ in FORMATS.values() for closer in format_.closers]
    + [
        "ping",
        "get_weather",
        '{"name": "ping", "arguments": {}}',
        "{}",
        "[ping()]",
        "{city:",
        '"',
        "`",
        "```",
        "\n",
        " ",
        ";",
    ]
    + [
        "<think>",
        "</think>",
        "<parameter=city>",
        "</parameter>",
        "<arg_key>",
        '<|"|>',
        "\\",
        "ü",
        "\ud83c",
        "1e",
        "nul",
        "“",
    ]
)
MESS = st.lists(st.one_of(CHUNKS, st.text(max_size=4), st.sampled_from(TEXTS), st.just(PING)), max_size=12).map("".join)
ARMED = st.lists(st.sampled_from(ALL), max_size=4, unique=True)
THOUGHTS = st.sampled_from(
    [None, THINK, THINK.with_opener_implied(), REASONING["gemma4"].with_opener_implied(), REASONING["mistral"]]
)


@settings(max_examples=400, deadline=None)
@given(MESS, ARMED, THOUGHTS, st.integers(0, 10_000), st.sampled_from([40, 1000, 1 << 20]))
def test_cuts_make_no_difference_and_nothing_is_lost(
    text: str, armed: list[str], thoughts: Thoughts | None, seed: int, limit: int
) -> None:
    whole = run(mender(armed, thoughts, limit), [text])
    assert whole.raw == text
    assert run(mender(armed, thoughts, limit), torn(text, seed)) == whole
    assert run(mender(armed, thoughts, limit), text) == whole
    with patch("gateway.inspection.mender.PIECE", 7):
        assert run(mender(armed, thoughts, limit), [text]) == whole
    for name, arguments in whole.calls:
        assert name in ("ping", "get_weather", "write_file")
        assert isinstance(arguments, dict)
    for piece in whole.pieces:
        if isinstance(piece, Call):
            piece.arguments.encode()


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


MILLION = 1_000_000
OPENINGS = {
    "hermes": '<tool_call>{"name": "write_file", "arguments": {"path": "',
    "qwen3_xml": "<tool_call>\n<function=write_file>\n<parameter=path>\n",
    "glm45": "<tool_call>write_file\n<arg_key>path</arg_key>\n<arg_value>",
    "gemma4": '<|tool_call>call:write_file{path:<|"|>',
    "mistral": '[TOOL_CALLS]write_file[ARGS]{"path": "',
    "deepseek_v4": '<｜DSML｜invoke name="write_file">\n<｜DSML｜parameter name="path" string="true">',
    "llama3_json": '{"name": "write_file", "parameters": {"path": "',
    "pythonic": "[write_file(path='",
}


def filled(unit: str) -> str:
    return (unit * (MILLION // len(unit) + 1))[:MILLION]


@pytest.mark.parametrize("parser", OPENINGS)
def test_a_megabyte_of_malice_takes_less_than_a_second(parser: str) -> None:
    opening, marker = OPENINGS[parser], FORMATS[parser].markers[0]
    texts = [
        filled(marker),
        filled(marker[:-1] or "x"),
        filled(opening),
        opening + filled("x} ]</parameter> </tool_call> )] "),
        opening + filled(FORMATS[parser].closers[0] + " "),
        filled(opening) + "</parameter>\n</function></arg_value></tool_call>",
        opening.rstrip("\"'") + filled("["),
        opening + filled('\\"'),
        filled('"\n'),
        filled("`"),
    ]
    for i, text in enumerate(texts):
        machine, pieces = mender(parser), list(cut(text, 4096 if i % 2 else MILLION))
        with cpu_within(1.5):
            mended = run(machine, pieces)
        assert mended.raw == text


@pytest.mark.parametrize("between", ["", " ", "\t"])
def test_calls_inside_an_unclosed_quotation_are_read_once(between: str) -> None:
    """What stands behind the last of them refuses them all."""
    call = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
    for tail in ("x", ""):
        text = '"x ' + (call + between) * (200_000 // len(call)) + tail
        with cpu_within(1.5):
            mended = run(mender("hermes"), [text])
        assert mended.raw == text
