"""Prompts of a wanted length, no two of which begin alike, so that no prefix cache can answer for the engine."""

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


class Ask(NamedTuple):
    """One request to be made. `words` size its prompt, `tokens` its answer. `nonce` is its own alone; those that are
    compared share the `seed` of the words, so that they are equally long. `forced`: with the fields that make vLLM give
    an answer of just that length. `thinking` None = as the model does by itself."""

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
        """How many words make a prompt of about so many tokens."""
        return max(0, round((tokens - self.overhead) / self.per_word))


def sizing(seen: Sequence[tuple[int, int]]) -> Sizing:
    """From (words, tokens) of prompts that the server has counted; the guess where they do not tell."""
    if len(seen) < 2:
        return Sizing()
    (few, least), (many, most) = min(seen), max(seen)
    if many == few or most <= least:
        return Sizing()
    per_word = (most - least) / (many - few)
    return Sizing(least - per_word * few, per_word)


def prompt(ask: Ask) -> str:
    """The nonce stands first: from its first block on the prompt is another one, whatever follows. The words are not
    one sentence over and over, which would flatter a drafter that looks tokens up in the prompt."""
    pick = Random(ask.seed)
    text = " ".join(pick.choices(_WORDS, k=ask.words))
    return (
        f"[{ask.nonce}] Write a story of at least {ask.tokens} words, and do not stop before. "
        f"Take what you like of these words:\n\n{text}"
    )


def body(ask: Ask, model: str | None) -> dict[str, Any]:
    """The chat request. Usage is asked for: tokens are the server's to count, one chunk may hold several."""
    fields: dict[str, Any] = {} if model is None else {"model": model}
    fields |= {
        "messages": [{"role": "user", "content": prompt(ask)}],
        "max_tokens": ask.tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if ask.forced:
        fields |= {"ignore_eos": True, "min_tokens": ask.tokens}
    if ask.thinking is not None:
        fields["chat_template_kwargs"] = {"enable_thinking": ask.thinking}
    return fields
