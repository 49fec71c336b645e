"""How servers count the tokens of a prompt exactly, as data: what is asked where, and where the number is."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.domain import tokenizers
from gateway.domain.tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class Count:
    """One question for a number of tokens.

    `path`: below the server's root. `fields`: the fields of a request that are sent along, because they change the
    prompt. `prompt`: the server's name of the field `prompt`. `also`: further fields, as JSON. `answer`: the key of the
    number in the answer; "" = the whole answer; a list there is counted. `thoughts`: the only name under which earlier
    thoughts are counted; None = as in a chat."""

    path: str
    fields: tuple[str, ...]
    answer: str
    prompt: str = "prompt"
    also: tuple[tuple[str, bytes], ...] = ()
    thoughts: str | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """How a server counts the prompts of each endpoint, and tells tokens themselves; None = it cannot."""

    chat: Count | None = None
    completions: Count | None = None
    tokenizer: Tokenizer | None = None

    def of(self, endpoint: str) -> Count | None:
        """`endpoint`: the name of an inference endpoint."""
        return self.chat if endpoint == "chat" else self.completions if endpoint == "completions" else None


NO_COUNTS = Counts()

_CHAT = ("messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")

# vLLM 0.32 renders both names of thoughts in a chat, and counts only `reasoning`. Seen running.
VLLM = Counts(
    Count("/tokenize", (*_CHAT, "chat_template", "add_special_tokens"), "count", thoughts="reasoning"),
    Count("/tokenize", ("prompt", "add_special_tokens"), "count"),
    tokenizers.VLLM,
)
# llama-server of 2026-10-01, seen running: the counts are those of its `usage`, and need none of its slots.
LLAMACPP = Counts(
    Count(
        "/v1/chat/completions/input_tokens",
        (*_CHAT, "tool_choice", "response_format", "reasoning_effort"),
        "input_tokens",
    ),
    Count("/tokenize", ("prompt",), "tokens", prompt="content", also=(("add_special", b"true"),)),
    tokenizers.LLAMACPP,
)
# SGLang 0.5, from its source: it counts text, and no chats.
SGLANG = Counts(completions=Count("/tokenize", ("prompt", "add_special_tokens"), "count"), tokenizer=tokenizers.SGLANG)
# text-generation-inference 3, from its documents.
TGI = Counts(
    Count("/chat_tokenize", ("messages", "tools", "tool_choice", "tool_prompt"), "tokenize_response"),
    Count("/tokenize", ("prompt",), "", prompt="inputs"),
)
