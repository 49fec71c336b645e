"""The request body of each check, without the model's name. Checks with the same body share one request.

Checks that do not test thinking switch it off, so that a probe costs little. `tool_auto` and `tool_stream` leave the
switch out, as agents do; canaries switch it off there too. A backend whose thinking cannot be switched off gets enough
tokens to think first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.health.checks.profile import Profile

SHORT, LONG = 64, 256  # max_tokens of a greeting, and of any other answer
THOUGHT, BRIEF_THOUGHT = 2048, 512  # max_tokens where the model may think first; in a canary
LIFE = 4  # max_tokens of an answer that only shows that the engine computes
WORD = "word "  # at least one token in every tokenizer, and exactly one in most
THOUGHT_WORDS = 600  # of a thought in the history: more tokens than the rest of that prompt has in any template

Body = dict[str, Any]

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def _tool(name: str, description: str) -> Mapping[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": CITY}}


WEATHER = _tool("get_weather", "The weather in a city now.")
TIME = _tool("get_time", "The local time in a city now.")
TOOLS = (WEATHER, TIME)

SCHEMA = {
    "type": "object",
    "properties": {
        "factors": {"type": "array", "items": {"type": "integer"}},
        "product": {"type": "integer"},
    },
    "required": ["factors", "product"],
    "additionalProperties": False,
}


def plain(profile: Profile) -> Body:
    return _without_thinking(profile, "Say hello.", SHORT)


def life(profile: Profile) -> Body:
    """A few tokens, whatever they say: thoughts show it too."""
    return _without_thinking(profile, "Say hello.", LIFE) | {"max_tokens": LIFE}


def stream(profile: Profile) -> Body:
    return {**plain(profile), "stream": True}


def arithmetic(profile: Profile) -> Body:
    return _without_thinking(profile, "What is 12*17? Answer with the number.", LONG)


def reasoning(profile: Profile) -> Body:
    """With thinking switched on where that is possible. A model that never thinks gets the request of `arithmetic`, so
    that no further request is sent."""
    if profile.thinking == "never" or (profile.thinking is None and profile.switch is None):
        return arithmetic(profile)
    fields = profile.switched(True) if profile.thinking != "always" else {}
    return {**_body(profile, "What is 12*17? Answer with the number.", _thought(profile)), **fields}


def thinking_off(profile: Profile) -> Body:
    """With thinking switched off. Identical to `arithmetic` where thinking is known to be optional."""
    return {**arithmetic(profile), **profile.switched(False)}


def tool_auto(profile: Profile) -> Body:
    question = "What is the weather in Oslo? Use get_weather."
    if profile.brief:
        return {**_without_thinking(profile, question, LONG), "tools": list(TOOLS)}
    max_tokens = LONG if profile.thinking == "never" else THOUGHT
    return {**_body(profile, question, max_tokens), "tools": list(TOOLS)}


def tool_stream(profile: Profile) -> Body:
    return {**tool_auto(profile), "stream": True}


def tool_required(profile: Profile) -> Body:
    """The question fits an offered tool, as it does when clients require a call: a backend that does not call a tool
    here never obeys `required`."""
    body = _without_thinking(profile, "What is the weather in Oslo?", LONG)
    return {**body, "tools": list(TOOLS), "tool_choice": "required"}


def tool_named(profile: Profile) -> Body:
    """The question fits the tool that is not named, so a call of the named tool shows that the choice is obeyed."""
    choice = {"type": "function", "function": {"name": "get_time"}}
    body = _without_thinking(profile, "What is the weather in Oslo?", LONG)
    return {**body, "tools": list(TOOLS), "tool_choice": choice}


def tool_parallel(profile: Profile) -> Body:
    question = "What is the weather in Oslo, and what is it in Rome? Call get_weather for both cities at once."
    return {**_without_thinking(profile, question, LONG), "tools": list(TOOLS)}


def thoughts_kept(profile: Profile) -> Body:
    """A long thought before a call whose result has just come, where every template that reads thoughts keeps them."""
    call = {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    thought = WORD * THOUGHT_WORDS
    turns = [
        {"role": "user", "content": "What is the weather in Oslo?"},
        {"role": "assistant", "content": "", "reasoning": thought, "reasoning_content": thought, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call00001", "content": "Sunny."},
    ]
    return {**_without_thinking(profile, "", 1), "messages": turns, "max_tokens": 1, "tools": list(TOOLS)}


def json_schema(profile: Profile) -> Body:
    """The question does not mention JSON, so JSON comes back only where the backend enforces the schema."""
    shape = {"type": "json_schema", "json_schema": {"name": "product", "strict": True, "schema": SCHEMA}}
    return {**_without_thinking(profile, "What is 12*17?", LONG), "response_format": shape}


def window(profile: Profile) -> Body:
    """A prompt just over the window: every word has at least one token."""
    assert profile.window is not None
    return {**_without_thinking(profile, WORD * (profile.window + 1), 1), "max_tokens": 1}


def _without_thinking(profile: Profile, question: str, max_tokens: int) -> Body:
    """The question with thinking switched off; where that is not possible, with enough tokens to think first."""
    if profile.thinking == "never":
        return _body(profile, question, max_tokens)
    off = profile.switched(False) if profile.thinking == "optional" else {}
    return {**_body(profile, question, max_tokens if off else _thought(profile)), **off}


def _thought(profile: Profile) -> int:
    return BRIEF_THOUGHT if profile.brief else THOUGHT


def _body(profile: Profile, question: str, max_tokens: int) -> Body:
    body: Body = {"messages": [{"role": "user", "content": question}], "max_tokens": max_tokens}
    return (
        body if profile.cloud else {**body, "temperature": 0}
    )  # some clouds refuse every temperature but their default
