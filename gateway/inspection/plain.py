"""Recognises plain text, in which there is nothing to check or mend: most answers are nothing else. Pure.

It looks for what could begin a call, thoughts or garbage, which costs less than inspecting the text. Where it is not
sure the inspection decides, and both come to the same (tests/inspection/test_plain.py)."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.inspection.heuristics import begins_as_garbage, opened
from gateway.inspection.markers import markers_of
from gateway.inspection.policy import InspectionPolicy
from gateway.inspection.reasoning import Thoughts

PLAIN_ENDS = ("stop", "length")  # a finish_reason with which nothing is mended


class Message(msgspec.Struct, gc=False):
    """The fields of the message of a whole answer that may say something."""

    content: Any = None
    role: Any = None
    refusal: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    reasoning_details: Any = None
    reasoning_text: Any = None
    thinking: Any = None
    tool_calls: Any = None
    function_call: Any = None
    audio: Any = None


def plain_text(message: Message, finish: object, usual: Thoughts | None) -> str | None:
    """The text of this choice of a whole answer, if it is a plain text with its end and nothing else. `usual`: how the
    model marks thoughts."""
    text, role, calls = message.content, message.role, message.tool_calls
    if finish not in PLAIN_ENDS or type(text) is not str or not text or text.isspace():
        return None
    if not (role is None or type(role) is str) or not (calls is None or calls == []):
        return None
    if not (message.refusal is message.reasoning is message.reasoning_content is None):
        return None
    if not (message.function_call is message.audio is message.thinking is None):
        return None
    if not (message.reasoning_details is message.reasoning_text is None):
        return None
    return text if begins_plainly(text, usual) else None


def begins_plainly(text: str, usual: Thoughts | None) -> bool:
    """Does this content begin neither with thoughts nor as garbage, and does it end none? `usual`: how the model marks
    thoughts."""
    start = text.lstrip()
    return "</think>" not in text and opened(start, usual) is None and begins_as_garbage(start) is False


def is_plain_under(policy: InspectionPolicy, text: str) -> bool:
    """Is this whole content, which is not blank, plain text by what the policy looks for?"""
    if policy.must_call or policy.reasoning_field != "as_is":
        return False
    found = policy.thoughts
    if found is not None and (found.implied or any(tag in text for tag in found.tags)):
        return False
    return policy.tools is None or markers_of(tuple(policy.formats)).anywhere.search(text) is None
