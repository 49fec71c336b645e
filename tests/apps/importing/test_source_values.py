"""References, and placeholders that are no key."""

from __future__ import annotations

import pytest

from gateway.apps.importing.source_values import is_no_key, reference


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
