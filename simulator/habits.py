"""What servers other than vLLM and Ollama were seen to do on the wire, as data: mlx_lm.server 0.32, transformers serve
5.23."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Habits:
    """`thoughts`: the field of thoughts. `stop`: a stop string is left out of a text that goes on, or kept at its end.
    `role_each`: every delta has a role; `nulls`: fields that are null are sent. `usage`: in a stream where it is asked
    for (in a chunk of its own), or always (with the end). `done`: streams end with [DONE]. `limit`: tokens of an answer
    that sets no limit. `default_model`: the name of the model that it was started with, besides its own; None = it
    serves no other. `zero_limit`: (status, text of the error) for `max_tokens: 0`; a 500 is an event in a stream.
    `prompt_list_kills`: a list as `prompt` ends its engine. `int_bias_fails`: a `logit_bias` of integers is an
    error. `fields`: those that a request may have; None = unknown ones are ignored."""

    thoughts: Literal["reasoning", "reasoning_content"]
    stop: Literal["left_out", "kept"]
    limit: int
    zero_limit: tuple[int, str]
    role_each: bool = False
    nulls: bool = False
    usage: Literal["asked", "always"] = "asked"
    done: bool = True
    default_model: str | None = None
    prompt_list_kills: bool = False
    int_bias_fails: bool = False
    fields: frozenset[str] | None = None


_OPENAI_FIELDS = """
audio best_of chat_template_kwargs echo frequency_penalty function_call functions generation_config logit_bias
logprobs max_completion_tokens max_tokens messages metadata modalities model n parallel_tool_calls prediction
presence_penalty prompt reasoning_effort response_format seed service_tier stop store stream stream_options suffix
temperature tool_choice tools top_logprobs top_p user vllm_xargs web_search_options"""

HABITS: Mapping[str, Habits] = {
    "mlx": Habits(
        thoughts="reasoning",
        stop="left_out",
        limit=512,
        zero_limit=(400, "max_tokens must be at least 1"),
        role_each=True,
        nulls=True,
        default_model="default_model",
        prompt_list_kills=True,
    ),
    "transformers": Habits(
        thoughts="reasoning_content",
        stop="kept",
        limit=1024,
        zero_limit=(500, "`max_new_tokens` must be greater than 0, but is 0."),
        usage="always",
        done=False,
        int_bias_fails=True,
        fields=frozenset(_OPENAI_FIELDS.split()),
    ),
}


def limit_of(body: Mapping[str, Any], habits: Habits) -> int:
    asked = body.get("max_completion_tokens")
    asked = body.get("max_tokens") if asked is None else asked
    return habits.limit if asked is None else int(asked)
