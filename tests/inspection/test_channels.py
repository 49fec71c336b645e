"""The channels of gpt-oss in a text that arrives in pieces of any size."""

from __future__ import annotations

import pytest

from gateway.inspection.channels import ChannelSplitter
from gateway.inspection.segments import Gap, Reasoning, Text, merged

CALL = "assistantcommentary to=functions.look json{}"
HEAD, END = "<|channel|>{}<|message|>", "<|end|><|start|>assistant"


def split(pieces: list[str]) -> tuple[str, str]:
    """(thoughts, content)"""
    splitter = ChannelSplitter()
    segments = [made for piece in pieces for made in splitter.feed(piece)] + splitter.finish()
    segments = merged(segments)
    assert "".join(segment.raw for segment in segments) == "".join(pieces)
    assert all(isinstance(segment, (Gap, Reasoning, Text)) for segment in segments)
    thoughts = "".join(segment.text for segment in segments if isinstance(segment, Reasoning))
    return thoughts, "".join(segment.text for segment in segments if isinstance(segment, Text))


@pytest.mark.parametrize(
    ("text", "thoughts", "content"),
    [
        (HEAD.format("analysis") + "Hm." + END + HEAD.format("final") + "Yes.", "Hm.", "Yes."),
        (HEAD.format("final") + "Yes.", "", "Yes."),
        (HEAD.format("commentary") + "I look." + END + HEAD.format("final") + "Yes.", "", "I look.Yes."),
        ("<|channel|>final <|constrain|>json<|message|>{}", "", "{}"),
        ("analysisHm. So.assistantfinalYes.", "Hm. So.", "Yes."),
        ("analysisHm.assistantanalysisMore.assistantfinalyes", "Hm.More.", "yes"),
        ("assistantfinalYes.", "", "Yes."),
        (
            "analysisHm.assistantcommentary to=functions.look json{}",
            "Hm.",
            "assistantcommentary to=functions.look json{}",
        ),
        ("analysisNever ended", "Never ended", ""),
        # words of a sentence
        ("analysis of it is hard", "", "analysis of it is hard"),
        ("final answer: 12", "", "final answer: 12"),
        ("assistant finalists", "", "assistant finalists"),
        ("Analysis: an assistantfinal word", "", "Analysis: an assistantfinal word"),
        ("anal", "", "anal"),
        ("", "", ""),
    ],
)
def test_each_text_in_any_pieces(text: str, thoughts: str, content: str) -> None:
    assert split([text]) == (thoughts, content)
    assert split(list(text)) == (thoughts, content)
    for cut in range(len(text)):
        assert split([text[:cut], text[cut:]]) == (thoughts, content), cut
