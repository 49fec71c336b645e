"""Which checks are skipped or cost no request."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gateway.domain.facts import Observation
from gateway.health.checks import ALL, CHECKS, NO_ANSWER, Profile, skipped
from tests.health.checks.test_graders import QWEN36


def test_where_thinking_is_optional_its_checks_cost_no_request_of_their_own() -> None:
    asked = {name: json.dumps(CHECKS[name].ask(QWEN36)) for name in ALL}
    assert asked["thinking_on"] == asked["reasoning"]
    assert asked["thinking_off"] == asked["arithmetic"]
    assert len(set(asked.values())) == 12


YES, NO, UNTESTED = Observation("yes", ""), Observation("no", "bad"), Observation("untested", "")
SKIPPED: tuple[tuple[str, Profile, dict[str, Observation], str | None], ...] = (
    ("stream", QWEN36, {"plain": YES}, None),
    ("stream", QWEN36, {"plain": NO}, "plain did not work"),
    ("window", QWEN36, {"plain": UNTESTED}, "plain did not work"),
    ("tool_auto", QWEN36, {"plain": YES, "stream": Observation("no", NO_ANSWER + "reset")}, NO_ANSWER + "reset"),
    ("tool_stream", QWEN36, {"plain": YES, "tool_auto": NO}, "tool_auto did not work"),
    ("tool_stream", QWEN36, {"plain": YES, "tool_auto": Observation("mended", "")}, None),
    ("tool_required", QWEN36, {"plain": YES, "tool_auto": NO}, None),
    ("thinking_on", QWEN36, {}, None),
    ("thinking_on", replace(QWEN36, thinking="never"), {}, "it never thinks"),
    ("thinking_off", replace(QWEN36, thinking="always"), {}, "its thinking cannot be switched"),
    ("thinking_off", replace(QWEN36, switch=None), {}, "not known how its thinking is switched"),
    ("thinking_on", replace(QWEN36, thinking=None), {"reasoning": UNTESTED}, "not known to think"),
    ("thinking_on", replace(QWEN36, thinking=None), {"reasoning": YES}, None),
    ("thoughts_kept", QWEN36, {}, "keeps them"),
    ("thoughts_kept", replace(QWEN36, refuses_unread=False), {"reasoning": YES, "tool_auto": YES}, None),
    ("thoughts_kept", replace(QWEN36, refuses_unread=False), {"reasoning": UNTESTED}, "not seen to think"),
    ("thoughts_kept", replace(QWEN36, refuses_unread=False), {"tool_auto": NO}, "not seen to think and to call"),
    ("window", QWEN36, {}, None),
    ("window", replace(QWEN36, window=None), {}, "does not report its window"),
    ("window", replace(QWEN36, refuses_unread=False), {}, "not known to refuse"),
    ("reasoning", replace(QWEN36, thinking="never"), {}, None),
)


@pytest.mark.parametrize(("check", "profile", "seen", "reason"), SKIPPED)
def test_a_check_without_a_point_is_skipped_with_its_reason(
    check: str, profile: Profile, seen: dict[str, Observation], reason: str | None
) -> None:
    found = skipped(check, profile, seen)
    assert found is None if reason is None else found is not None and reason in found
