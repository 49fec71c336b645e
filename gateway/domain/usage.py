"""The token counts in a backend's answer, as far as they are plausible.

All usage that is counted, charged or stored is read here. The client gets the usage as the backend sent it, byte by
byte."""

from __future__ import annotations

from typing import Any

import msgspec

COUNT_MOST = 1_000_000_000  # tokens: far more than any window and any batch of prompts


class Tokens(msgspec.Struct, frozen=True, gc=False):
    """Token counts as a backend reported them. `cached` is part of `prompt`, `reasoning` of `completion`."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0

    @property
    def total(self) -> int:
        return self.prompt + self.completion


NO_TOKENS = Tokens()


def read_usage(usage: object) -> Tokens:
    """Read OpenAI's usage object. Values that cannot be counts are read as 0."""
    if not isinstance(usage, dict):
        return NO_TOKENS
    of_prompt, of_answer = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    if of_prompt is None and of_answer is None:
        return Tokens(count_of(usage.get("prompt_tokens")), count_of(usage.get("completion_tokens")))
    return Tokens(
        count_of(usage.get("prompt_tokens")),
        count_of(usage.get("completion_tokens")),
        count_of(of_prompt.get("cached_tokens")) if isinstance(of_prompt, dict) else 0,
        count_of(of_answer.get("reasoning_tokens")) if isinstance(of_answer, dict) else 0,
    )


def count_of(value: Any) -> int:
    """A number of tokens. 0 for a value that cannot be one: it is not an int (bool, a subclass of int, is excluded
    too), or negative, or larger than COUNT_MOST."""
    return value if type(value) is int and 0 < value <= COUNT_MOST else 0


def is_beyond_belief(usage: object) -> bool:
    """Is a reported number of prompt or answer tokens impossibly large? Then the real usage is not known."""
    if not isinstance(usage, dict):
        return False
    return _is_too_large(usage.get("prompt_tokens")) or _is_too_large(usage.get("completion_tokens"))


def _is_too_large(value: Any) -> bool:
    return type(value) in (int, float) and value > COUNT_MOST
