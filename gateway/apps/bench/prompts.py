"""Prompts of a given length, no two of which begin alike, so that no prefix cache can shorten the engine's work."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

# Short and frequent: about one token each in any tokenizer.
_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father "
    "power hour game line end member law car city name team minute idea body back parent face level office door "
    "health person art war history party result change morning reason research girl guy moment air teacher force "
    "light stone river mountain "
)
_WORDS = _TEXT.split()


class RequestSpec(NamedTuple):
    """One request to be made. `words`: length of its prompt; `tokens`: length of its answer. `nonce`: no other request
    has it; requests that are compared share the `seed` of the words, so their prompts are equally long. `forced`: send
    the fields that make vLLM give an answer of exactly that length. Without `thinking`, the model's default."""

    words: int
    tokens: int
    nonce: str
    seed: int
    forced: bool = True
    thinking: bool | None = None


class Sizing(NamedTuple):
    """Tokens of a prompt = `overhead` (the chat template and our own sentence) + `per_word` x words."""

    overhead: float = 60.0
    per_word: float = 1.25

    def words(self, tokens: int) -> int:
        """The number of words that make a prompt of about this many tokens."""
        return max(0, round((tokens - self.overhead) / self.per_word))


def sizing(seen: Sequence[tuple[int, int]]) -> Sizing:
    """The sizing that follows from (words, tokens) of prompts that the server has counted; the default where two counts
    that differ are missing."""
    if len(seen) < 2:
        return Sizing()
    (few, least), (many, most) = min(seen), max(seen)
    if many == few or most <= least:
        return Sizing()
    per_word = (most - least) / (many - few)
    return Sizing(least - per_word * few, per_word)


def prompt(spec: RequestSpec) -> str:
    """The text of the prompt. The nonce stands first, so that the prompt differs from its first cache block on. The
    words are drawn at random: one repeated sentence would favour speculative decoding that predicts tokens from the
    prompt."""
    pick = Random(spec.seed)
    text = " ".join(pick.choices(_WORDS, k=spec.words))
    return (
        f"[{spec.nonce}] Write a story of at least {spec.tokens} words, and do not stop before. "
        f"Take what you like of these words:\n\n{text}"
    )


def body(spec: RequestSpec, model: str | None) -> dict[str, Any]:
    """The body of the chat request. It asks for usage: the server counts tokens, as one chunk may hold several."""
    fields: dict[str, Any] = {} if model is None else {"model": model}
    fields |= {
        "messages": [{"role": "user", "content": prompt(spec)}],
        "max_tokens": spec.tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if spec.forced:
        fields |= {"ignore_eos": True, "min_tokens": spec.tokens}
    if spec.thinking is not None:
        fields["chat_template_kwargs"] = {"enable_thinking": spec.thinking}
    return fields
