"""What a model writes in its own format is read as it was meant, whatever stands around it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gateway.inspection.formats import FORMATS
from gateway.inspection.reasoning import REASONING
from tests.inspection.mending import mend
from tests.inspection.writers import WRITERS, Call

ALL = sorted({format_.name for format_ in FORMATS.values()})
CALLS: dict[str, list[Call]] = {
    "one": [("get_weather", {"city": "Oslo"})],
    "several": [("get_weather", {"city": "Oslo", "days": 3}), ("ping", {}), ("get_weather", {"city": "Rome"})],
    "no arguments": [("ping", {})],
    "unicode": [("get_weather", {"city": "Zürich 東京 🌧️ ñ"})],
    "newlines": [("write_file", {"path": "a.py", "content": "def f():\n\treturn 1\n\n\nf()"})],
    "quotes": [("write_file", {"path": "C:\\tmp\\a b", "content": "say \"hi\" and it's 'so' \\n"})],
    "types": [("write_file", {"path": "a", "content": "b", "overwrite": True, "mode": -7, "ratio": 0.5})],
    "object": [("write_file", {"path": "a", "content": "b", "meta": {"k": {"l": [1, {"m": None}]}, "e": {}}})],
    "array": [("write_file", {"path": "a", "content": "b", "tags": ["x", "y, z", ""]})],
    "empty text": [("write_file", {"path": "", "content": ""})],
    "text like a value": [("write_file", {"path": "7", "content": "null"})],
    "tags in text": [("write_file", {"path": "a.html", "content": "<b>x</b> & {y} [z] </p> ```js\n1\n``` `c`"})],
    "declared nowhere": [("ping", {"note": "x y"})],
}


@pytest.mark.parametrize("format_", ALL)
@pytest.mark.parametrize("kind", CALLS)
def test_what_was_written_is_read(format_: str, kind: str) -> None:
    text = WRITERS[format_](CALLS[kind])
    mended = mend(format_, text)
    assert (mended.calls, mended.content) == (CALLS[kind], "")


@pytest.mark.parametrize("format_", ALL)
def test_with_every_format_armed_each_reads_its_own(format_: str) -> None:
    for calls in CALLS.values():
        assert mend(" ".join(ALL), WRITERS[format_](calls)).calls == calls


@pytest.mark.parametrize("format_", ALL)
def test_text_around_calls_is_content(format_: str) -> None:
    calls = CALLS["several"]
    written = WRITERS[format_](calls)
    mended = mend(format_, f"{written}\n\n")
    assert (mended.calls, mended.content) == (calls, "")
    mended = mend(format_, f"{written} Done.")
    if FORMATS[format_].only_at_end:
        assert (mended.calls, mended.content) == ([], f"{written} Done.")
    else:
        assert (mended.calls, mended.content.lstrip()) == (calls, "Done.")
    if not FORMATS[format_].only_at_start:
        mended = mend(format_, f"Let me look.\n\n{written}")
        assert (mended.calls, mended.content) == (calls, "Let me look.\n\n")


@pytest.mark.parametrize("format_", ALL)
def test_a_tool_that_was_not_offered_stays_text(format_: str) -> None:
    text = WRITERS[format_]([("rm_rf", {"path": "/"})])
    assert (mend(format_, text).content, mend(format_, text).calls) == (text, [])


@pytest.mark.parametrize("format_", ALL)
def test_a_call_shown_in_a_code_block_or_in_backticks_stays_text(format_: str) -> None:
    written = WRITERS[format_](CALLS["one"])
    for text in (f"Like so:\n```\n{written}\n```\n", f"Like so:\n```xml\n# a call\n{written}\n```\nSee?"):
        assert (mend(format_, text).content, mend(format_, text).calls) == (text, [])
    if "`" not in written and "\n" not in written:
        text = f"Write `{written}` and see."
        assert (mend(format_, text).content, mend(format_, text).calls) == (text, [])


@pytest.mark.parametrize("format_", ALL)
def test_a_cut_call_is_text_or_the_whole_of_it(format_: str) -> None:
    """Never arguments that were cut: what is read of a call that ends too early is what was meant, or nothing."""
    calls: list[Call] = [("write_file", {"path": "a", "content": "some text\nof two lines", "mode": 12345})]
    written = WRITERS[format_](calls)
    for end in range(len(written)):
        mended = mend(format_, written[:end])
        assert mended.calls in ([], calls), written[:end]
        if not mended.calls:
            assert mended.content == written[:end]


@pytest.mark.parametrize("format_", ALL)
def test_white_space_between_the_parts_of_a_call_does_no_harm(format_: str) -> None:
    dice, calls = random.Random(1), CALLS["several"]
    written = WRITERS[format_](calls)
    spaced: Any = "".join(char + (" " if char == "\n" and dice.random() < 0.5 else "") for char in written)
    assert [name for name, _ in mend(format_, spaced).calls] == [name for name, _ in calls]


@pytest.mark.parametrize(
    ("format_", "text"),
    [
        ("openai", '<|channel|>commentary to=functions.get_weather<|message|>{"city": "Oslo"}'),
        ("openai", '<|channel|>commentary to=functions.get_weather json<|message|>{"city": "Oslo"}<|call|>'),
        ("openai", '<|channel|>analysis to=functions.get_weather <|message|>{"city": "Oslo"}<|call|>'),
        ("granite", '<tool_call>[{"name": "get_weather", "arguments": {"city": "Oslo"}}]'),
        ("internlm", '<|action_start|><|plugin|>{"name": "get_weather", "arguments": {"city": "Oslo"}}'),
        ("jamba", '<tool_calls>[\n  {"name": "get_weather", "arguments": {"city": "Oslo"}}\n]</tool_calls>'),
        ("olmo3", '<function_calls>\nget_weather(city="Oslo")\n</function_calls>'),
        ("olmo3", "<function_calls>get_weather(city='Oslo')"),
        ("kimi_k2", '<|tool_call_begin|>get_weather<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|>'),
        ("mistral", '[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Oslo"}'),
        ("mistral", '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}}]'),
        ("pythonic", "<|python_start|>[get_weather(city='Oslo')]<|python_end|>"),
        ("llama3_json", '<|python_tag|>{"type": "function", "name": "get_weather", "parameters": {"city": "Oslo"}}'),
        ("qwen3_xml", "<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>"),
        ("glm45", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>"),
    ],
)
def test_the_other_ways_of_writing_a_format_are_read_too(format_: str, text: str) -> None:
    mended = mend(format_, text)
    assert (mended.calls, mended.content) == ([("get_weather", {"city": "Oslo"})], "")


def test_thoughts_of_gpt_oss_precede_its_calls() -> None:
    text = "<|channel|>analysis<|message|>I look.<|end|>" + WRITERS["openai"](CALLS["one"])
    mended = mend("openai", text, REASONING["openai_gptoss"])
    assert (mended.reasoning, mended.calls, mended.content) == ("I look.", CALLS["one"], "")
