"""References, and placeholders that are no key."""

from __future__ import annotations

import pytest

from gateway.apps.importing.draft import Notes
from gateway.apps.importing.source_values import Secrets, is_no_key, reference


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


@pytest.mark.parametrize(
    ("name", "value", "is_secret"),
    [
        ("DEFAULT_THINKING_TOKEN_BUDGET", "32768", False),
        ("TIKTOKEN_ENCODINGS_BASE", "/etc/encodings", False),
        ("TIKTOKEN_RS_CACHE_DIR", "cache", False),
        ("HF_TOKEN_PATH", "~/.cache/token", False),
        ("VLLM_MAX_TOKENS_PER_EXPERT", "many", False),
        ("MAX_TOKEN", "all", False),
        ("TOKENIZERS_PARALLELISM", "off", False),
        ("HF_TOKEN", "abcdef", True),
        ("HUGGING_FACE_HUB_TOKEN", "abcdef", True),
        ("TOKEN_OF_MINE", "abcdef", True),
        ("API_KEY", "123456", True),
        ("DB_PASSWORD", "/abc", True),
    ],
)
def test_which_variables_hold_secrets(name: str, value: str, is_secret: bool) -> None:
    assert Secrets(Notes("x", lambda path: None)).value(name, value, ()) == (f"${{{name}}}" if is_secret else value)
