"""How servers tell the tokens of a text, and the text of tokens, as data. The gateway speaks vLLM's words for both."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """The defaults are vLLM's own words, as of 0.32.

    `prompt`, `special`, `strings`: its names of `prompt`, `add_special_tokens` and `return_token_strs`; "" = it has no
    such field. `text`: its name of the text in the answer about tokens. `chats`: it takes `messages`. `renders`: the
    path at which it writes `messages` as one text; None = it does not. `pieces`: with `strings`, each token is an
    object with its `id` and `piece`."""

    prompt: str = "prompt"
    special: str = "add_special_tokens"
    strings: str = "return_token_strs"
    text: str = "prompt"
    chats: bool = True
    renders: str | None = None
    pieces: bool = False


VLLM = Tokenizer()
# llama-server of 2026-10-01, seen running.
LLAMACPP = Tokenizer("content", "add_special", "with_pieces", "content", False, "/apply-template", pieces=True)
# SGLang 0.5, from its source.
SGLANG = Tokenizer(strings="", text="text", chats=False)
