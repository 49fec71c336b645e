"""A request as a server reads it that refuses what others read leniently: numbers as text, messages without content,
arguments that are no JSON. vLLM's Rust front end is one; what its Python one takes is what is written here. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from gateway.domain.body import value_of
from gateway.inspection.arguments import Arguments

Message = dict[str, Any]

_INTEGERS = (
    *("max_tokens", "max_completion_tokens", "min_tokens", "n", "seed", "top_k", "top_logprobs", "prompt_logprobs"),
    *("truncate_prompt_tokens", "thinking_token_budget"),
)
_NUMBERS = (
    *("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    "length_penalty",
)
_SWITCHES = (
    *("parallel_tool_calls", "echo", "ignore_eos", "skip_special_tokens", "include_reasoning", "add_generation_prompt"),
    *("continue_final_message", "include_stop_str_in_output", "spaces_between_special_tokens", "return_token_ids"),
)
_TRUE = frozenset(("true", "yes", "on", "1", "t", "y"))
_FALSE = frozenset(("false", "no", "off", "0", "f", "n"))
_TEXTS = frozenset(("text", "input_text", "output_text"))
_WORDS_OF = {"refusal": "refusal", "thinking": "thinking", "reasoning": "reasoning"}  # type of a part -> its text
_WHOLE_MOST = 2**53  # beyond, a float is no exact number

_encode = msgspec.json.Encoder().encode


def strict_scalars(fields: dict[str, Raw]) -> None:
    """Change numbers and switches to their own types, where a lenient server would."""
    readers: tuple[tuple[tuple[str, ...], Callable[[Any], Any]], ...] = (
        (_INTEGERS, _whole),
        (_NUMBERS, _number),
        (_SWITCHES, _switch),
        (("logprobs",), _logprobs),
    )
    for names, read in readers:
        for name in names:
            if name in fields:
                given = value_of(fields[name])
                made = read(given)
                if type(made) is not type(given):
                    fields[name] = Raw(_encode(made))


def _whole(value: Any) -> Any:
    number = _number(value)
    if isinstance(number, float) and number.is_integer() and abs(number) < _WHOLE_MOST:
        return int(number)
    return value if isinstance(value, str) and not isinstance(number, int) else number


def _number(value: Any) -> Any:
    if not isinstance(value, str) or len(value) > 40:
        return value
    try:
        return int(value)
    except ValueError:
        pass
    try:
        number = float(value)
    except ValueError:
        return value
    return number if math.isfinite(number) else value


def _switch(value: Any) -> Any:
    if isinstance(value, str):
        word = value.strip().lower()
        return True if word in _TRUE else False if word in _FALSE else value
    return bool(value) if type(value) is int and value in (0, 1) else value


def _logprobs(value: Any) -> Any:
    """A switch in chats, a number in text completions."""
    number = _whole(value)
    return number if type(number) is int else _switch(value)


# -- messages ----------------------------------------------------------------------------------------------------------


def strict_messages(messages: list[Message]) -> list[Message]:
    """The messages with content, ids, types and arguments as a strict server reads them."""
    made: list[Message] = []
    open_ids: list[str] = []  # of calls that have no result yet
    for position, message in enumerate(messages):
        message = {**message}
        role = message.get("role")
        if role == "assistant":
            _read_calls(message, position, open_ids)
        elif role in ("tool", "function"):
            _read_result(message, position, open_ids)
        _read_content(message)
        made.append(message)
    return made


def _read_calls(message: Message, position: int, open_ids: list[str]) -> None:
    old = message.pop("function_call", None)
    calls = message.get("tool_calls")
    if isinstance(old, dict) and not calls:
        calls = [{"function": old}]
    calls = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    if not calls:
        message.pop("tool_calls", None)
        return
    open_ids.clear()
    message["tool_calls"] = made = []
    for number, call in enumerate(calls):
        function = call.get("function")
        if not isinstance(function, dict):
            custom = call.get("custom")
            custom = custom if isinstance(custom, dict) else {}
            function = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
        id_ = _id(call.get("id")) or f"call_{position}_{number}"
        open_ids.append(id_)
        kept = {name: value for name, value in call.items() if name != "custom"}
        read = {**function, "name": str(function.get("name") or ""), "arguments": _arguments(function.get("arguments"))}
        made.append({**kept, "id": id_, "type": "function", "function": read})


def _arguments(value: Any) -> str:
    """The arguments of a call as JSON. A text that cannot be mended is kept as the one argument of an object."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return "{}"
    if not isinstance(value, str):
        return _encode(value).decode()
    if value.strip() == "null" or value_of(value) is not None:
        return value
    arguments = Arguments()
    mended = arguments.feed(value) + arguments.finish()
    return mended if arguments.whole else _encode({"input": value}).decode()


def _read_result(message: Message, position: int, open_ids: list[str]) -> None:
    given = _id(message.get("tool_call_id"))
    if message.get("role") == "function":
        message["role"] = "tool"
    if given is None:
        given = open_ids[0] if open_ids else f"call_{position}"
    message["tool_call_id"] = given
    if given in open_ids:
        open_ids.remove(given)


def _id(value: Any) -> str | None:
    if isinstance(value, str):
        return value or None
    return str(value) if type(value) is int else None


def _read_content(message: Message) -> None:
    content = message.get("content")
    if isinstance(content, list):
        parts = [made for part in content if (made := _part(part)) is not None]
        message["content"] = parts or ""
    elif content is None:
        refusal = message.get("refusal")
        if isinstance(refusal, str) and refusal:
            message["content"] = refusal
        elif message.get("role") != "assistant" or not message.get("tool_calls"):
            message["content"] = ""
    elif not isinstance(content, str):
        message["content"] = _encode(content).decode()
    if message.get("content") == "" and message.get("role") not in ("assistant", "system", "tool"):
        message["content"] = [{"type": "text", "text": ""}]  # an empty text is refused, an empty part is not


def _part(part: Any) -> Any:
    """A part of the content; None: there is nothing in it."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, Mapping):
        return None
    kind = part.get("type")
    if kind in _TEXTS or kind is None:
        text = part.get("text")
        if kind is None and text is None:
            return part
        return {**part, "type": "text", "text": text if isinstance(text, str) else ""}
    if kind in _WORDS_OF:
        text = part.get(_WORDS_OF[kind])
        return {"type": "text", "text": text} if isinstance(text, str) and text else None
    return part
