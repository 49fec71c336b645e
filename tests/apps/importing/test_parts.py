"""The small parts: keys, names, command lines, and a text that says exactly what the draft says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.apps.importing.draft import Draft, DraftEntry, alias_name, backend_name, shown_path, unique
from gateway.apps.importing.launch_flags import backend_keys
from gateway.apps.importing.output import RoundTripMismatch, variables, verify_round_trip
from gateway.apps.importing.render import render
from gateway.apps.importing.source_values import is_no_key, reference, variable_name
from gateway.config.document import read_document
from gateway.config.problems import Report


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("os.environ/OPENAI_API_KEY", "${OPENAI_API_KEY}"),
        ("${KEY}", "${KEY}"),
        ("${env.KEY}", "${KEY}"),
        ("${KEY:-sk-default}", "${KEY}"),
        ("sk-abc", None),
        ("${file:/x}", None),
        ("a${KEY}", None),
    ],
)
def test_a_reference_stays_one(text: str, kept: str | None) -> None:
    assert reference(text) == kept


@pytest.mark.parametrize(
    "text", ["none", "EMPTY", "sk-no-key-required", "not-needed", "dummy", "xxx", "your-api-key", "ollama"]
)
def test_what_only_stands_for_no_key(text: str) -> None:
    assert is_no_key(text)


@pytest.mark.parametrize("text", ["sk-4f9a", "token-abc123", "none-of-your-business", "hf_x"])
def test_what_may_be_a_key(text: str) -> None:
    assert not is_no_key(text)


def test_names() -> None:
    assert variable_name("qwen3.6-35b") == "QWEN3_6_35B"
    assert variable_name("8b") == "_8B"
    assert backend_name("meta/Llama 3.1:8b") == "meta-Llama-3.1:8b"
    assert backend_name("-!-") == "backend"
    assert alias_name("Qwen/Qwen3 (fast)") == "Qwen/Qwen3-fast"
    assert unique("a", ["a", "a-12"], "12", "12-8000") == "a-12-8000"
    assert unique("a", ["a"]) == "a-2"
    assert shown_path(("model_list", 0, "litellm_params", "rpm")) == "model_list[0].litellm_params.rpm"


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        ("vllm serve Qwen/Q --max-num-seqs 2", {"slots": 2, "model": "Qwen/Q"}),
        ("docker run vllm/vllm-openai:x --model a/b --max-model-len=1K", {"context": 1024, "model": "a/b"}),
        ("python -m vllm.entrypoints.openai.api_server --model m --served-model-name s", {"model": "s"}),
        ("vllm serve m --tool-call-parser hermes", {"tool_parser": "hermes", "auto_tools": False, "model": "m"}),
        ("vllm serve m --max-model-len auto", {"model": "m"}),
        ("llama-server -c 8192 --parallel 2", {"engine": "openai", "context": 4096, "slots": 2}),
        ("llama-server -c 0 -np 'unclosed", {"engine": "openai"}),
        ("", {"engine": "openai"}),
    ],
)
def test_what_a_command_line_tells(command: str, keys: dict[str, Any]) -> None:
    assert backend_keys(command) == keys


# -- the text ---------------------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1, max_size=12)
TRICKY = st.sampled_from(
    ["1", "1e5", ".5e3", "0o17", "true", "null", "~", "a: b", "#x", "- a", "${X}", "*a", "&a", "!t", "a #b", "'", '"',
     "%", "@", "`", "{", "[", ",", "?", "a\\b", "http://h:1/v1", "http://h/ #x", " a", "a ", "-", ":"]
)  # fmt: skip
WORDS = st.one_of(TEXTS, TRICKY).filter(lambda word: bool(word.strip()))
VALUES = st.recursive(
    st.one_of(WORDS, st.integers(-(10**12), 10**12), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=4)),
    max_leaves=8,
)


@settings(max_examples=50)
@given(st.dictionaries(WORDS, st.dictionaries(WORDS, VALUES, min_size=1, max_size=6), min_size=1, max_size=3), TEXTS)
def test_the_text_says_exactly_what_the_draft_says(entries: dict[str, dict[str, Any]], comment: str) -> None:
    draft = Draft(
        backends={name: DraftEntry(keys, [comment], dict.fromkeys(keys, comment)) for name, keys in entries.items()}
    )
    report = Report("routes.yaml")
    assert read_document(render(draft), report) == draft.data()
    assert not report.errors


def test_an_alias_that_only_names_its_steps_is_written_short() -> None:
    aliases = {"a": DraftEntry({"use": ["x", ["y", "z"]]}), "b": DraftEntry({"use": ["x"], "also": ["c-*"]})}
    assert render(Draft(aliases=aliases)).endswith(
        'aliases:\n  a: [x, [y, z]]\n  b:\n    use: [x]\n    also: ["c-*"]\n'
    )


def test_variables_are_those_of_values_not_of_comments() -> None:
    draft = Draft(head=["${NOT}"], backends={"a": DraftEntry({"api_key": "${YES}", "model": "$${NO}"})})
    assert variables(render(draft)) == ["YES"]


def test_a_text_that_says_something_else_is_not_let_through() -> None:
    draft = Draft(backends={"a": DraftEntry({"url": "http://h:1"})})
    text = render(draft).replace("http://h:1", "http://h:2")
    with pytest.raises(RoundTripMismatch, match=r"backends\.a\.url"):
        verify_round_trip(text, draft, {})
