"""How servers count the tokens of a prompt exactly, and tell the tokens of a text, as data: what is asked where, and
where the answer is. The gateway speaks vLLM's words."""

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


VLLM_TOKENIZER = Tokenizer()
# llama-server of 2026-10-01, seen running.
LLAMACPP_TOKENIZER = Tokenizer(
    "content", "add_special", "with_pieces", "content", False, "/apply-template", pieces=True
)
# SGLang 0.5, from its source.
SGLANG_TOKENIZER = Tokenizer(strings="", text="text", chats=False)


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
    VLLM_TOKENIZER,
)
# llama-server of 2026-10-01, seen running: the counts are those of its `usage`, and need none of its slots.
LLAMACPP = Counts(
    Count(
        "/v1/chat/completions/input_tokens",
        (*_CHAT, "tool_choice", "response_format", "reasoning_effort"),
        "input_tokens",
    ),
    Count("/tokenize", ("prompt",), "tokens", prompt="content", also=(("add_special", b"true"),)),
    LLAMACPP_TOKENIZER,
)
# SGLang 0.5, from its source: it counts text, and no chats.
SGLANG = Counts(completions=Count("/tokenize", ("prompt", "add_special_tokens"), "count"), tokenizer=SGLANG_TOKENIZER)
# text-generation-inference 3, from its documents.
TGI = Counts(
    Count("/chat_tokenize", ("messages", "tools", "tool_choice", "tool_prompt"), "tokenize_response"),
    Count("/tokenize", ("prompt",), "", prompt="inputs"),
)
