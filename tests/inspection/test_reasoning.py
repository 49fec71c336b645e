"""Thoughts are split from the content while they come."""

from __future__ import annotations

import pytest

from gateway.inspection.mender import Reasoning
from gateway.inspection.reasoning import REASONING, THINK, LateTags
from tests.inspection.mending import cut, mend, mender, run

IMPLIED = THINK.with_opener_implied()


def test_thoughts_flow_while_they_are_thought() -> None:
    machine = mender("", THINK)
    assert machine.feed("<think>")[0].raw == "<think>"
    assert machine.feed("\nhm, ") == [Reasoning("\nhm, ")]
    assert machine.feed("so</thi") == [Reasoning("so")]
    assert machine.feed("s") == [Reasoning("</this")]


@pytest.mark.parametrize("text", ["Answer.", "Say <think>a</think>", "a</think>b", "`<think>` opens", "<thin", "  x"])
def test_an_opener_counts_only_at_the_start(text: str) -> None:
    mended = mend("", text, THINK)
    assert (mended.content, mended.reasoning) == (text, "")


def test_white_space_may_precede_the_opener() -> None:
    mended = mend("", "\n <think>a</think>b", THINK)
    assert (mended.reasoning, mended.content) == ("a", "b")


def test_with_the_opener_implied_all_is_thought_until_the_closer() -> None:
    for text, reasoning, content in [
        ("hmm\n</think>\n\nAnswer.", "hmm\n", "\n\nAnswer."),
        ("<think>a</think>b", "a", "b"),
        ("never closed", "never closed", ""),
        ("\n\n</think>b", "", "b"),
        ("a</think>b</think>c", "a", "b</think>c"),
        ("a </thin", "a </thin", ""),
    ]:
        mended = mend("", text, IMPLIED)
        assert (mended.reasoning, mended.content) == (reasoning, content)


def test_white_space_is_no_thought() -> None:
    mended = mend("", "<think>\n\n</think>\n\nAnswer.", THINK)
    assert (mended.reasoning, mended.content) == ("", "\n\nAnswer.")


def test_gemma_channels() -> None:
    gemma = REASONING["gemma4"]
    for text, reasoning, content in [
        ("<|channel>thought\nhmm<channel|>Answer.", "hmm", "Answer."),
        ("<|channel>hmm<channel|>Answer.", "hmm", "Answer."),
        ("<|channel>thought\n<channel|>Answer.", "", "Answer."),
        ("thought\nhmm<channel|>Answer.", "", "thought\nhmm<channel|>Answer."),
        ("Answer.", "", "Answer."),
    ]:
        mended = mend("", text, gemma)
        assert (mended.reasoning, mended.content) == (reasoning, content)
    bare = gemma.with_opener_implied()
    assert mend("", "thought\nhmm<channel|>Answer.", bare).reasoning == "hmm"
    assert mend("", "Answer.", bare).content == "Answer."


def test_mistral_brackets() -> None:
    mended = mend("mistral", "[THINK]hm[/THINK][TOOL_CALLS]ping[ARGS]{}", REASONING["mistral"])
    assert (mended.reasoning, mended.content, mended.calls) == ("hm", "", [("ping", {})])


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("<think>a</think>b\n<think>c</think>d", True),
        ("<think>a</think>b\n</think>d", True),
        ("a\n\n  <think>c", True),
        ("</think>Answer.", True),
        ("<think>a</think>b <think>c</think>", False),
        ("<think>a</think>The tag `<think>` opens, </think> closes.\nSo.", False),
        ("<think>a\n<think>\nb</think>c", False),
        ("a\nb\n<thinking", False),
    ],
)
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_tags_behind_the_start_stay_in_the_content_and_are_told(text: str, seen: bool, size: int) -> None:
    machine = mender("hermes", THINK)
    mended = run(machine, cut(text, size))
    assert machine.saw_thoughts_later is seen
    assert mended.raw == text
    assert ("<think>c" in mended.content) == ("<think>c" in text)


GRANITE, HUNYUAN = REASONING["granite"], REASONING["hunyuan_a13b"]


@pytest.mark.parametrize("is_", ["Here is", "Here's"])
@pytest.mark.parametrize("ends", ["Here is", "Here's"])
def test_granite_says_in_words_where_its_thoughts_and_its_answer_begin(is_: str, ends: str) -> None:
    mended = mend("", f"{is_} my thought process: Hm. Here is why.\n{ends} my response: Yes.", GRANITE)
    assert (mended.reasoning.strip(), mended.content.strip()) == ("Hm. Here is why.", "Yes.")
    for text in ("Here is my plan.", "Well. Here is my thought process: x", "Here", "Hello"):
        assert (mend("", text, GRANITE).content, mend("", text, GRANITE).reasoning) == (text, "")


@pytest.mark.parametrize(
    ("text", "thoughts", "content"),
    [
        ("<think>\nHm.\n</think>\n<answer>\nYes.\n</answer>", "\nHm.\n", "Yes."),
        ("<think>\n\n</think>\n<answer>\nYes.\n</answer>", "", "Yes."),
        ("<think>Hm.</think><answer>Yes.</answer>", "Hm.", "Yes."),
        ("<think>Hm.</think>\n<answer>\na\n\nb\n", "Hm.", "a\n\nb\n"),
        ("<answer>\nYes.\n</answer>", "", "Yes."),
        ("<think>Hm.</think>\nNo tag.", "Hm.", "\nNo tag."),
        ("The tag <answer> is one.", "", "The tag <answer> is one."),
        ("<think>Hm.</think>\n<answer>\nYes.\n</answer> More.", "Hm.", "Yes. More."),
    ],
)
def test_the_tags_around_hunyuans_answer_are_no_content(text: str, thoughts: str, content: str) -> None:
    mended = mend("hunyuan_a13b", text, HUNYUAN)
    assert (mended.reasoning, mended.content) == (thoughts, content)


def test_a_call_in_hunyuans_answer_is_one() -> None:
    call = '<tool_calls>[{"name": "ping", "arguments": {}}]</tool_calls>'
    mended = mend("hunyuan_a13b", f"<think>Hm.</think>\n<answer>\nI look.\n{call}\n</answer>", HUNYUAN)
    assert (mended.calls, mended.content.strip()) == ([("ping", {})], "I look.")


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_tag_behind_many_blanks_is_found_however_it_is_cut(size: int) -> None:
    text = "An answer.\n" + " " * 60 + "</think>\nmore"
    late = LateTags(THINK)
    for at in range(0, len(text), size):
        late.feed(text[at : at + size])
    assert late.found
