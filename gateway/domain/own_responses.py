"""How servers serve OpenAI's `/v1/responses` themselves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

Trouble = Literal["allowed_tools", "summary", "encrypted", "system_later", "neighbours", "parts", "unfinished", "media"]

ENDPOINT = "endpoint:responses"  # the lack that is learned of a server that answers 404 there


@dataclass(frozen=True, slots=True)
class OwnResponses:
    """`fields`: those of a request that the server obeys; a request with others is asked as a chat, because it would
    ignore them. `troubles`: what it answers worse than the same request as a chat (engines/openai/responses.py tells
    what each is). `hosted`: it runs tools of its own (web_search, ...) and reads files, which no chat can carry.
    `untold`: it is asked there even where `responses` is not in routes.yaml."""

    fields: frozenset[str]
    troubles: frozenset[Trouble] = frozenset()
    hosted: bool = False
    untold: bool = True


# fmt: off
_FIELDS = frozenset((  # those for the record (`user`, `metadata`, ...) too: no server has to obey them
    "model", "input", "instructions", "stream", "max_output_tokens", "temperature", "top_p", "tools", "tool_choice",
    "parallel_tool_calls", "reasoning", "text", "include", "truncation", "user", "metadata", "service_tier",
    "safety_identifier", "store", "prompt_cache_key", "prompt_cache_retention", "stream_options",
))
_SAMPLING = frozenset((
    "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "stop", "stop_token_ids",
    "ignore_eos", "logit_bias", "skip_special_tokens", "include_stop_str_in_output", "vllm_xargs",
    "chat_template_kwargs",
))
# fmt: on

VLLM = OwnResponses(_FIELDS | _SAMPLING, frozenset(get_args(Trouble)))
"""vLLM 0.32.0, seen running: it ignores unknown fields, and accepts hosted tools and ignores them. Calls, also forced
ones, thoughts and structured output are those of its chats."""

OPENAI = OwnResponses(
    _FIELDS | {"max_tool_calls", "top_logprobs", "moderation", "prompt_cache_options"}, hosted=True, untold=False
)
"""OpenAI's cloud, from its documents; and any other server of that API, which is not asked there untold."""


def asked_there(declared: Literal["own", "hosted", "chat"] | None, row: OwnResponses | None) -> OwnResponses | None:
    """How a server is asked at its own `/v1/responses`; None = it is asked as a chat. `declared`: in routes.yaml;
    `row`: of its engine's traits."""
    if declared is None:
        return row if row is not None and row.untold else None
    if declared == "chat":
        return None
    return replace(row or OPENAI, hosted=declared == "hosted")
