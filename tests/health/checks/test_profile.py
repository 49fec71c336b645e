"""What the checks know of a backend's model."""

from __future__ import annotations

from dataclasses import replace

from gateway.health.checks import profile_of
from gateway.inspection.policy import formats_for, thoughts_for
from tests.health.checks.test_graders import QWEN36, VLLM


def test_what_is_known_of_the_model_is_known_to_its_checks() -> None:
    assert QWEN36.tool_flags == "--enable-auto-tool-choice --tool-call-parser qwen3_xml"
    assert QWEN36.formats == formats_for("Qwen3.6-35B-A3B", "hermes")
    assert QWEN36.thoughts == thoughts_for("Qwen3.6-35B-A3B", "qwen3")
    assert profile_of(replace(VLLM, engine="openai"), "qwen3.6", None).tool_flags == ""
    assert profile_of(replace(VLLM, thinking="never"), "qwen3.6", None).thinking == "never"
