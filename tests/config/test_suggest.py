"""Words of other programs, and keys in the wrong place, lead to the right key."""

from __future__ import annotations

import pytest

from tests.config.test_validate import FINE, mistakes


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("max_model_len", "context"),
        ("--max-model-len", "context"),
        ("num_ctx", "context"),
        ("max_num_seqs", "slots"),
        ("tool_call_parser", "tool_parser"),
        ("enable_auto_tool_choice", "auto_tools"),
        ("served_model_name", "model"),
        ("timeout", "timeouts"),
        ("tol_parser", "tool_parser"),
        ("max_modl_len", "context"),
    ],
)
def test_words_of_other_programs_are_understood(word: str, key: str) -> None:
    found = mistakes(f'backends:\n  a: {{url: "http://spark1:8001", {word}: x}}\n')
    assert found == [f"routes.yaml:2  backends.a.{word}: unknown key '{word}' - did you mean '{key}'?"]


@pytest.mark.parametrize("key", ["model_list", "litellm_params", "router_settings", "general_settings"])
def test_a_litellm_file_is_recognised(key: str) -> None:
    assert "LiteLLM" in mistakes(f"{FINE}{key}: {{}}\n")[0]


@pytest.mark.parametrize("key", ["launch", "profiles"])
def test_what_stands_under_a_backend_is_pointed_there(key: str) -> None:
    (found,) = mistakes(f"{FINE}{key}: {{daily: {{max-model-len: 200000}}}}\n")
    assert found.startswith(f"routes.yaml:4  {key}: unknown key '{key}' - ")
    assert found.endswith(f"backends.NAME.{key}")
