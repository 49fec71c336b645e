"""Rules about variables, and what ends the start of a vLLM with its Rust front end."""

from __future__ import annotations

import pytest

from gateway.apps.fleet.lint.rust_front_end import body_most, chooses_rust, rust_front_end
from gateway.apps.fleet.lint.subject import Finding
from gateway.config.suggest import REASONING_PARSERS, TOOL_PARSERS
from gateway.launch.flags import vllm_flags
from tests.apps.fleet.lint.linting import check_mistake, launched, names_of

TABLE = rust_front_end()


def rust(flags: str, value: str = "1") -> list[Finding]:
    found = launched(f"VLLM_USE_RUST_FRONTEND={value} VLLM_HTTP_MAX_REQUEST_BODY_SIZE=0 vllm serve m {flags}")
    return [one for one in found if one.rule.startswith("rust-")]


def test_the_table_is_of_the_flags_that_are_known() -> None:
    assert set(TABLE.refused_flags) <= set(vllm_flags().flags)
    assert TABLE.tool_parsers <= TOOL_PARSERS
    assert TABLE.reasoning_parsers <= REASONING_PARSERS
    assert (len(TABLE.tool_parsers), len(TABLE.reasoning_parsers), len(TABLE.refused_flags)) == (32, 27, 48)


@pytest.mark.parametrize("parser", sorted(TOOL_PARSERS - {"minimax"}))
def test_a_tool_parser_is_refused_where_it_is_not_registered(parser: str) -> None:
    found = rust(f"--tool-call-parser {parser} --reasoning-parser gemma4")
    assert [one.severity for one in found] == ([] if parser in TABLE.tool_parsers else ["error"])
    assert all("VLLM_USE_RUST_FRONTEND" in one.fix for one in found)


@pytest.mark.parametrize("parser", sorted(REASONING_PARSERS))
def test_a_reasoning_parser_is_refused_where_it_is_not_registered(parser: str) -> None:
    found = rust(f"--reasoning-parser {parser}")
    assert [one.severity for one in found] == ([] if parser in TABLE.reasoning_parsers else ["error"])


@pytest.mark.parametrize(("flag", "value"), [("root-path", "/x"), ("enable-log-outputs", ""), ("response-role", "x")])
def test_a_flag_that_it_does_not_implement_is_an_error_with_a_way_out(flag: str, value: str) -> None:
    (found,) = rust(f"--{flag} {value}")
    assert (found.rule, found.severity) == ("rust-flags", "error")
    assert f"take out --{flag}" in found.fix


def test_a_parser_of_calls_and_thoughts_is_named_for_both() -> None:
    assert rust("--tool-call-parser gemma4 --reasoning-parser gemma4") == []
    for flags in ("", "--reasoning-parser qwen3"):
        (found,) = rust(f"--tool-call-parser gemma4 {flags}")
        assert (found.rule, found.severity, found.fix) == ("rust-parsers", "error", "--reasoning-parser gemma4")


def test_a_flag_with_its_usual_value_is_not_handed_on() -> None:
    assert rust("--response-role assistant --uvicorn-log-level info") == []


@pytest.mark.parametrize("value", ["0", "", "false", "${RUST}"])
def test_without_the_variable_nothing_is_said(value: str) -> None:
    assert not chooses_rust({"VLLM_USE_RUST_FRONTEND": value})
    assert rust("--tool-call-parser openai --root-path /x", value or "0") == []


def test_a_parser_alone_is_enough_there() -> None:
    found = launched("VLLM_USE_RUST_FRONTEND=1 vllm serve m --tool-call-parser hermes")
    assert "auto-tool-choice" not in {one.rule for one in found}
    assert "auto-tool-choice" in {one.rule for one in launched("vllm serve m --tool-call-parser hermes")}


@pytest.mark.parametrize(("value", "most"), [(None, 33_554_432), ("0", None), ("1000", 1000), ("${X}", None)])
def test_the_size_of_a_request(value: str | None, most: int | None) -> None:
    assert body_most({} if value is None else {"VLLM_HTTP_MAX_REQUEST_BODY_SIZE": value}) == most


@pytest.mark.parametrize("name", names_of("variables"))
def test_what_went_wrong_gives_its_finding(name: str) -> None:
    check_mistake(name)
