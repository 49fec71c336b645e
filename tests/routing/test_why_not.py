"""What a backend lacks for a request, by the launch flag that is missing."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.domain.facts import Observation
from gateway.routing.plan import make_plan
from gateway.routing.refusal import FailedAttempt, refusal
from tests.routing.parts import NOW, alias, backend, fleet, request
from tests.routing.test_refusal import TOOLS, refuse, refused, told


def test_a_missing_tool_parser_names_the_flag_that_is_missing() -> None:
    error = refuse("incapable")
    assert "--enable-auto-tool-choice" in error.message
    assert "--tool-call-parser" in error.message
    assert "b0" in error.message


@pytest.mark.parametrize(
    ("model", "parser"),
    [
        ("Qwen/Qwen3-Coder-Next", "qwen3_coder"),
        ("RedHatAI/Qwen3.6-35B-A3B-NVFP4", "qwen3_xml"),
        ("google/gemma-4-31B-it", "gemma4"),
        ("deepseek-ai/DeepSeek-V4-Flash", "deepseek_v4"),
    ],
)
@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "f"}}])
def test_the_missing_parser_is_that_of_the_models_family(model: str, parser: str, choice: Any) -> None:
    flags = f"start vLLM with --enable-auto-tool-choice --tool-call-parser {parser}"
    error = refused(backend("b0", "incapable", model=model), tools=TOOLS, tool_choice=choice)
    assert (told(error), error.param) == (
        ("tool_choice_unsupported", 400),
        "tools" if choice == "auto" else "tool_choice",
    )
    assert "b0 can" in error.message
    assert flags.split(" with ")[1] in error.message


def test_a_declared_parser_without_the_other_flag_is_named_as_declared() -> None:
    error = refused(backend("b0", model="Qwen3.6-35B", tool_parser="qwen3_coder", auto_tools=False), tools=TOOLS)
    assert "--enable-auto-tool-choice --tool-call-parser qwen3_coder" in error.message


def test_a_refusal_that_an_attempt_met_gets_the_familys_parser_too() -> None:
    reason = 'cannot call tools: "auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    state, asked = backend("b0", tool_parser=None, model="GLM-4.7-Flash"), request(tools=TOOLS)
    plan = make_plan(alias("b0"), fleet(state), asked, NOW)
    plan.outcomes["b0"] = "incapable"
    error = refusal(plan, [FailedAttempt("b0", "incapable", reason)], asked, NOW)
    assert told(error) == ("tool_choice_unsupported", 400)
    assert "start vLLM with --enable-auto-tool-choice --tool-call-parser glm47" in error.message


def test_thinking_that_was_checked_and_did_not_come_names_the_reasoning_parser() -> None:
    state = backend("b0", model="Qwen3.6-35B")
    state.facts.observe({"thinking_on": Observation("no", "no thoughts came")})
    assert "start vLLM with --reasoning-parser qwen3" in refused(state, think=True).message
