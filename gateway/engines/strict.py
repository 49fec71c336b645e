"""A request as a server reads it that refuses what others read leniently: numbers as text, messages without content,
arguments that are no JSON. vLLM's Rust front end is one; what its Python one takes is what is written here. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from gateway.domain.body import as_switch, value_of
from gateway.domain.open_calls import OpenCalls
from gateway.inspection.arguments import Arguments

Message = dict[str, Any]

_LIMITS = (
    *("max_tokens", "max_completion_tokens", "min_tokens", "n", "best_of", "top_k", "top_logprobs", "prompt_logprobs"),
    *("truncate_prompt_tokens", "thinking_token_budget"),
)
_NUMBERS = (
    *("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    "length_penalty",
)
_SWITCHES = (
    *("parallel_tool_calls", "echo", "ignore_eos", "skip_special_tokens", "include_reasoning", "add_generation_prompt"),
    *("continue_final_message", "include_stop_str_in_output", "spaces_between_special_tokens", "return_token_ids"),
    *("add_special_tokens", "return_tokens_as_token_ids", "use_beam_search"),
)
_TOKENS = ("stop_token_ids", "allowed_token_ids", "prompt")
_NEEDED = frozenset(("model", "messages", "prompt"))
_TEXTS = frozenset(("text", "input_text", "output_text"))
_WORDS_OF = {"refusal": "refusal", "thinking": "thinking", "reasoning": "reasoning"}  # type of a part -> its text
_LIMIT_MOST = 2**31 - 1  # means no limit, and some servers read no more
_DEPTH_MOST = 100  # of arguments; a common limit of readers is 128

_encode = msgspec.json.Encoder().encode


def strict_fields(fields: dict[str, Raw]) -> None:
    """Change numbers, switches and tools to their own types, where a lenient server would; null is absence."""
    for name in [name for name, value in fields.items() if bytes(value) == b"null" and name not in _NEEDED]:
        del fields[name]
    logprobs = _switch if "messages" in fields else whole_number
    readers: tuple[tuple[tuple[str, ...], Callable[[Any], Any]], ...] = (
        (_LIMITS, _limit),
        (_NUMBERS, any_number),
        (_SWITCHES, _switch),
        (_TOKENS, _tokens),
        (("seed",), whole_number),
        (("logprobs",), logprobs),
        (("logit_bias",), _biases),
        (("tools",), _tools),
        (("tool_choice",), _choice),
    )
    for names, read in readers:
        for name in names:
            if name in fields:
                given = value_of(fields[name])
                if (made := read(given)) is not given:
                    fields[name] = Raw(_encode(made))


def _limit(value: Any) -> Any:
    number = whole_number(value)
    return _LIMIT_MOST if type(number) is int and number > _LIMIT_MOST else number


def whole_number(value: Any) -> Any:
    number = any_number(value)
    if isinstance(number, float) and number.is_integer():
        return int(number)
    return value if isinstance(value, str) and not isinstance(number, int) else number


def any_number(value: Any) -> Any:
    """The number that a lenient server reads from this value; the value itself where there is none."""
    if isinstance(value, bool):
        return int(value)
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
    switch = as_switch(value.strip() if isinstance(value, str) else value)
    return value if switch is None else switch


def _tokens(value: Any) -> Any:
    if not isinstance(value, list) or all(type(one) is int for one in value):
        return value
    if all(isinstance(one, list) for one in value):  # several prompts
        return [_tokens(one) for one in value]
    made = [whole_number(one) for one in value]
    return made if all(type(one) is int for one in made) else value


def _biases(value: Any) -> Any:
    return {token: any_number(bias) for token, bias in value.items()} if isinstance(value, dict) else value


def _tools(value: Any) -> Any:
    """Each tool once, with its type, and its schema as an object."""
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        return value
    made: dict[Any, dict[str, Any]] = {}
    for position, tool in enumerate(value):
        function = tool.get("function")
        if not isinstance(function, dict):
            made[position] = tool
            continue
        function = {name: given for name, given in function.items() if given is not None}
        schema = function.get("parameters")
        if isinstance(schema, str):
            schema = value_of(schema)
        if schema == [] or isinstance(schema, dict):
            function["parameters"] = schema or {}
        if "strict" in function:
            function["strict"] = _switch(function["strict"])
        name = function.get("name")
        kept = {**tool, "type": tool.get("type") or "function", "function": function}
        made.setdefault(name if isinstance(name, str) else position, kept)
    return [*made.values()]


def _choice(value: Any) -> Any:
    named = isinstance(value, dict) and isinstance(value.get("function"), dict)
    return {"type": "function", **value} if named else value


# -- messages ----------------------------------------------------------------------------------------------------------


def strict_messages(messages: list[Message]) -> list[Message]:
    """The messages with content, ids, types and arguments as a strict server reads them."""
    made: list[Message] = []
    open_calls = OpenCalls()
    for position, message in enumerate(messages):
        message = {name: value for name, value in message.items() if value is not None or name == "content"}
        role = message.get("role")
        if role == "assistant":
            _read_calls(message, position, open_calls)
            if "reasoning" in message and "reasoning_content" in message:  # two names of one field
                thoughts = message.pop("reasoning_content")
                message["reasoning"] = message["reasoning"] or thoughts
        elif role in ("tool", "function"):
            _read_result(message, position, open_calls)
        _read_content(message)
        made.append(message)
    return made


def _read_calls(message: Message, position: int, open_calls: OpenCalls) -> None:
    old = message.pop("function_call", None)
    calls = message.get("tool_calls")
    if isinstance(old, dict) and not calls:
        calls = [{"function": old}]
    calls = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    if not calls:
        message.pop("tool_calls", None)
        return
    message["tool_calls"] = made = []
    for number, call in enumerate(calls):
        function = call.get("function")
        if not isinstance(function, dict):
            custom = call.get("custom")
            custom = custom if isinstance(custom, dict) else {}
            function = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
        id_ = _id(call.get("id")) or f"call_{position}_{number}"
        kept = {name: value for name, value in call.items() if name != "custom"}
        read = {**function, "name": str(function.get("name") or ""), "arguments": _arguments(function.get("arguments"))}
        made.append({**kept, "id": id_, "type": "function", "function": read})
    open_calls.begin((call["id"], "") for call in made)


def _arguments(value: Any) -> str:
    """The arguments of a call as JSON. A text that cannot be mended is kept as the one argument of an object."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return "{}"
    if not isinstance(value, str):
        return _encode(value).decode()
    if _is_json(value):
        return value
    arguments = Arguments()
    mended = arguments.feed(value) + arguments.finish()
    return mended if arguments.whole and _is_json(mended) else _encode({"input": value}).decode()


def _is_json(text: str) -> bool:
    """Do all readers take it? Not where it nests too deeply, or has a number that none can hold."""
    if text.strip() == "null":
        return True
    value = value_of(text)
    return value is not None and _is_plain(value, _DEPTH_MOST)


def _is_plain(value: Any, depth: int) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if not isinstance(value, (dict, list)):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(_is_plain(one, depth - 1) for one in inner)


def _read_result(message: Message, position: int, open_calls: OpenCalls) -> None:
    given = _id(message.get("tool_call_id"))
    if message.get("role") == "function":
        message["role"] = "tool"
    message["tool_call_id"] = open_calls.take(given) or given or f"call_{position}"


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
