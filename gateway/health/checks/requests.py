"""The request body of each check, without the model's name. Checks with the same body share one request.

Thinking is switched off where a check is not about it, so that a probe costs little; `tool_auto` and `tool_stream` do
not mention it, as agents do not. A backend whose thinking cannot be switched gets room to think.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.health.checks.profile import Profile

SHORT, LONG = 64, 256  # most tokens of a greeting, and of any other answer
THOUGHT = 2048  # the same where it may think first
WORD = "word "  # a token at least in every tokenizer, and in most exactly one

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
    return _quiet(profile, "Say hello.", SHORT)


def stream(profile: Profile) -> Body:
    return {**plain(profile), "stream": True}


def arithmetic(profile: Profile) -> Body:
    return _quiet(profile, "What is 12*17? Answer with the number.", LONG)


def reasoning(profile: Profile) -> Body:
    """With thinking on where it can be switched. What never thinks needs no question of its own."""
    if profile.thinking == "never" or (profile.thinking is None and profile.switch is None):
        return arithmetic(profile)
    fields = profile.switched(True) if profile.thinking != "always" else {}
    return {**_body(profile, "What is 12*17? Answer with the number.", THOUGHT), **fields}


def thinking_off(profile: Profile) -> Body:
    """Where its thinking is known to be optional, the same as `arithmetic`."""
    return {**arithmetic(profile), **profile.switched(False)}


def tool_auto(profile: Profile) -> Body:
    most = LONG if profile.thinking == "never" else THOUGHT
    return {**_body(profile, "What is the weather in Oslo? Use get_weather.", most), "tools": list(TOOLS)}


def tool_stream(profile: Profile) -> Body:
    return {**tool_auto(profile), "stream": True}


def tool_required(profile: Profile) -> Body:
    """A fitting question, as clients that require a call have one: who does not obey even here never does."""
    body = _quiet(profile, "What is the weather in Oslo?", LONG)
    return {**body, "tools": list(TOOLS), "tool_choice": "required"}


def tool_named(profile: Profile) -> Body:
    """The question fits the other tool."""
    choice = {"type": "function", "function": {"name": "get_time"}}
    body = _quiet(profile, "What is the weather in Oslo?", LONG)
    return {**body, "tools": list(TOOLS), "tool_choice": choice}


def tool_parallel(profile: Profile) -> Body:
    question = "What is the weather in Oslo, and what is it in Rome? Call get_weather for both cities at once."
    return {**_quiet(profile, question, LONG), "tools": list(TOOLS)}


def json_schema(profile: Profile) -> Body:
    """The question does not speak of JSON: only what is enforced comes back as it."""
    shape = {"type": "json_schema", "json_schema": {"name": "product", "strict": True, "schema": SCHEMA}}
    return {**_quiet(profile, "What is 12*17?", LONG), "response_format": shape}


def window(profile: Profile) -> Body:
    """Just over the window, surely: one token a word at least."""
    assert profile.window is not None
    return {**_quiet(profile, WORD * (profile.window + 1), 1), "max_tokens": 1}


def _quiet(profile: Profile, question: str, most: int) -> Body:
    if profile.thinking == "never":
        return _body(profile, question, most)
    off = profile.switched(False) if profile.thinking == "optional" else {}
    return {**_body(profile, question, most if off else THOUGHT), **off}


def _body(profile: Profile, question: str, most: int) -> Body:
    body: Body = {"messages": [{"role": "user", "content": question}], "max_tokens": most}
    return body if profile.cloud else {**body, "temperature": 0}  # some clouds refuse any temperature but their own
