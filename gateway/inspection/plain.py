"""Recognises plain text, in which there is nothing to check or mend: most answers are nothing else. Pure.

It looks for what could begin a call, thoughts or garbage, which costs less than inspecting the text. Where it is not
sure the inspection decides, and both come to the same (tests/inspection/test_plain.py)."""

from __future__ import annotations

from typing import Any, TypeGuard

from gateway.inspection.heuristics import begins_as_garbage, opened
from gateway.inspection.markers import markers_of
from gateway.inspection.policy import InspectionPolicy
from gateway.inspection.reasoning import Thoughts

PLAIN_ENDS = ("stop", "length")  # a finish_reason with which nothing is mended


def is_plain_choice(message: object, finish: object, usual: Thoughts | None) -> TypeGuard[dict[str, Any]]:
    """Is this choice of a whole answer a plain text with its end? `usual`: how the model marks thoughts."""
    return finish in PLAIN_ENDS and is_plain_message(message) and begins_plainly(message["content"], usual)


def is_plain_message(message: object) -> TypeGuard[dict[str, Any]]:
    """Is this message of a whole answer a text and nothing else? (Fields that are not of OpenAI's API say nothing.)"""
    if type(message) is not dict or type(text := message.get("content")) is not str or not text or text.isspace():
        return False
    said = message.get
    role, calls = said("role"), said("tool_calls")
    return (
        (role is None or type(role) is str)
        and (calls is None or calls == [])
        and said("refusal") is said("reasoning") is said("reasoning_content") is None
        and said("function_call") is said("audio") is None
    )


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
