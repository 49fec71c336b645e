"""The incremental machine: what it holds back, what it leaves alone, and that cuts make no difference."""

from __future__ import annotations

import json
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.inspection.formats import FORMATS
from gateway.inspection.mender import Call, Gap
from gateway.inspection.reasoning import REASONING, THINK, Thoughts
from tests.inspection.mending import CASES, cut, mend, mender, run, torn
from tests.limits import cpu_within

PING = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
ALL = sorted({format_.name for format_ in FORMATS.values()})


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
