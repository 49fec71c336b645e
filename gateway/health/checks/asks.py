"""The request body of each check, without the model's name. The same body is asked once, whoever needs its answer.

Thinking is switched off where a check is not about it, so that a probe costs little; `tool_auto` and `tool_stream` say
nothing about it, as agents do. A backend whose thinking cannot be switched gets room to think.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.health.checks.subject import Subject

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


def plain(subject: Subject) -> Body:
    return _quiet(subject, "Say hello.", SHORT)


def stream(subject: Subject) -> Body:
    return {**plain(subject), "stream": True}


def arithmetic(subject: Subject) -> Body:
    return _quiet(subject, "What is 12*17? Answer with the number.", LONG)


def reasoning(subject: Subject) -> Body:
    """With thinking on where it can be switched. What never thinks needs no question of its own."""
    if subject.thinking == "never" or (subject.thinking is None and subject.switch is None):
        return arithmetic(subject)
    fields = subject.switched(True) if subject.thinking != "always" else {}
    return {**_body(subject, "What is 12*17? Answer with the number.", THOUGHT), **fields}


def thinking_off(subject: Subject) -> Body:
    """Where its thinking is known to be optional, the same as `arithmetic`."""
    return {**arithmetic(subject), **subject.switched(False)}


def tool_auto(subject: Subject) -> Body:
    most = LONG if subject.thinking == "never" else THOUGHT
    return {**_body(subject, "What is the weather in Oslo? Use get_weather.", most), "tools": list(TOOLS)}


def tool_stream(subject: Subject) -> Body:
    return {**tool_auto(subject), "stream": True}


def tool_required(subject: Subject) -> Body:
    """A fitting question, as clients that require a call have one: who does not obey even here never does."""
    body = _quiet(subject, "What is the weather in Oslo?", LONG)
    return {**body, "tools": list(TOOLS), "tool_choice": "required"}


def tool_named(subject: Subject) -> Body:
    """The question fits the other tool."""
    choice = {"type": "function", "function": {"name": "get_time"}}
    body = _quiet(subject, "What is the weather in Oslo?", LONG)
    return {**body, "tools": list(TOOLS), "tool_choice": choice}


def tool_parallel(subject: Subject) -> Body:
    question = "What is the weather in Oslo, and what is it in Rome? Call get_weather for both cities at once."
    return {**_quiet(subject, question, LONG), "tools": list(TOOLS)}


def json_schema(subject: Subject) -> Body:
    """The question does not speak of JSON: only what is enforced comes back as it."""
    shape = {"type": "json_schema", "json_schema": {"name": "product", "strict": True, "schema": SCHEMA}}
    return {**_quiet(subject, "What is 12*17?", LONG), "response_format": shape}


def window(subject: Subject) -> Body:
    """Just over the window, surely: one token a word at least."""
    assert subject.window is not None
    return {**_quiet(subject, WORD * (subject.window + 1), 1), "max_tokens": 1}


def _quiet(subject: Subject, question: str, most: int) -> Body:
    if subject.thinking == "never":
        return _body(subject, question, most)
    off = subject.switched(False) if subject.thinking == "optional" else {}
    return {**_body(subject, question, most if off else THOUGHT), **off}


def _body(subject: Subject, question: str, most: int) -> Body:
    body: Body = {"messages": [{"role": "user", "content": question}], "max_tokens": most}
    return body if subject.cloud else {**body, "temperature": 0}  # some clouds refuse any temperature but their own
