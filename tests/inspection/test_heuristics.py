"""What a text and a usage tell of an answer."""

from __future__ import annotations

from gateway.inspection.heuristics import closes_alone, empty_kind, is_garbage, opened
from gateway.inspection.reasoning import REASONING, THINK


def test_what_content_may_begin_with_is_told_by_its_first_characters() -> None:
    assert opened("<") is THINK
    assert opened("\n<think>hm") is THINK
    assert opened("[THI") is REASONING["mistral"]
    assert opened("<|channel>thought\n") is REASONING["gemma4"]
    assert opened("<", REASONING["gemma4"]) is REASONING["gemma4"]
    for text in ("", "\n", "Hello", "<div>", "[1]", "< 5"):
        assert opened(text) is None


def test_a_closing_tag_counts_only_on_a_line_of_its_own() -> None:
    assert closes_alone("so\n</think>\n\nyes")
    assert closes_alone("</think>")
    assert not closes_alone("the tag `</think>` ends it")
    assert not closes_alone("```\n<think>\n</think>\n```")


def test_one_character_again_and_again_is_garbage() -> None:
    assert is_garbage("!!!!!!!!")
    assert is_garbage("?" * 20)
    assert not is_garbage("Wow!!!!!")
    assert not is_garbage("ab" * 20)


def test_silence_after_many_tokens_has_a_name_of_its_own() -> None:
    assert empty_kind({"completion_tokens": 30}) == "nothing_said"
    assert empty_kind({"completion_tokens": 1}) == "empty"
    assert empty_kind(None) == "empty"
