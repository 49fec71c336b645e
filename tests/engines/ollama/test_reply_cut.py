"""Was the prompt cut? What Ollama's counts tell."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.engines.ollama.engine import cut_violation, version_of
from gateway.engines.ollama.reply import OllamaLine
from tests.engines.ollama_lines import DONE, ndjson, said, send


def judged(
    count: int, *, text: int, window: int | None = 8192, version: str | None = "0.9.6", low: int = 0
) -> str | None:
    last = OllamaLine(prompt_eval_count=count, done=True)
    return cut_violation(last, text, window, low or int(text / 4.8), version)


def test_a_full_window_was_cut() -> None:
    assert judged(8192, text=100) == "prompt_cut"
    assert judged(8191, text=100, version=None) == "prompt_cut"
    assert judged(8000, text=32_000) is None
    assert judged(9000, text=36_000, window=None) is None


def test_far_fewer_tokens_than_the_text_can_have_were_cut() -> None:
    assert judged(1000, text=24_000) == "prompt_cut"  # at least 5000
    assert judged(3000, text=24_000) is None


def test_a_low_count_proves_nothing_where_cached_tokens_are_not_counted_or_nothing_is_cut() -> None:
    for version in ("0.3.14", "0.12.6", "0.30.0", None, "dev"):
        assert judged(10, text=24_000, version=version) is None


def test_a_learned_ratio_makes_no_alarm() -> None:
    """Learned from Chinese (1.5 bytes per token); then English comes."""
    assert judged(5000, text=24_000, low=14_400) is None


def test_short_prompts_and_absent_counts_are_not_judged() -> None:
    assert judged(1, text=4000) is None
    assert judged(0, text=24_000) is None


async def test_a_cut_prompt_is_told_on_the_response() -> None:
    full = {**said(content="x"), **DONE, "prompt_eval_count": 8192}
    for streamed in (True, False):
        response: Any
        response, _, _ = await send(ndjson(full), stream=streamed)
        assert response.violation is None
        await response.read_all(10_000)
        assert response.violation == "prompt_cut"


@settings(deadline=None)
@given(st.text())
def test_any_version_text_is_read(text: str) -> None:
    assert version_of(text) >= (0,)
    assert version_of("0.12.6-rc1") == (0, 12, 6)
