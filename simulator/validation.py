"""Validates requests as vLLM 0.32 does before they reach its engine, with its status codes and texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from simulator.formats import Schemas
from simulator.server import Exchange

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
MOST_CHOICES = 16384  # VLLM_MAX_N_SEQUENCES
ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class ApiError(Exception):
    """An answer in vLLM's error shape."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


def invalid(message: str, param: str | None) -> ApiError:
    """A body that FastAPI's validation refuses."""
    return ApiError(400, f"1 validation error:\n  {message}", "Bad Request", param)


def _bad_field(kind: str, where: str, message: str, shown: str) -> ApiError:
    return invalid(f"{{'type': '{kind}', 'loc': '{where}', 'msg': '{message}', 'input': {shown}}}", where)


def decode_body(exchange: Exchange) -> dict[str, Any]:
    """The request object. Raises ApiError."""
    if exchange.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise invalid("Unsupported Media Type: Only 'application/json' is allowed", None)
    try:
        body = json.loads(exchange.body)
    except RecursionError:
        raise ApiError(400, "There was an error parsing the body", "Bad Request") from None
    except UnicodeDecodeError:
        raise ApiError(400, "There was an error parsing the body", "Bad Request") from None
    except json.JSONDecodeError as error:
        where = f"body.{error.pos}"
        context = f"'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {{'error': '{error.msg}'}}"
        raise invalid(f"{{'type': 'json_invalid', 'loc': '{where}', {context}}}", where) from None
    if not isinstance(body, dict):
        shown = f"<{type(body).__name__}>"
        raise _bad_field("model_attributes_type", "body", "Input should be a valid dictionary", f"'{shown}'")
    return body


_OBJECT = (dict, "dict_type", "Input should be a valid dictionary")
_LIST = (list, "list_type", "Input should be a valid list")
_INTEGER = (int, "int_type", "Input should be a valid integer")
_TYPES: Mapping[str, tuple[type | tuple[type, ...], str, str]] = {
    **dict.fromkeys(("stream_options", "chat_template_kwargs", "response_format", "vllm_xargs"), _OBJECT),
    **dict.fromkeys(("structured_outputs", "logit_bias", "metadata"), _OBJECT),
    **dict.fromkeys(("tools",), _LIST),
    **dict.fromkeys(("n", "seed", "min_tokens", "top_logprobs"), _INTEGER),
    "stop": ((str, list), "string_type", "Input should be a valid string"),
    "prompt": ((str, list), "string_type", "Input should be a valid string"),
    "tool_choice": ((str, dict), "string_type", "Input should be a valid string"),
}


def check_types(body: Mapping[str, Any]) -> None:
    """Fields of a wrong JSON type, as the request's validation refuses them."""
    for field, (wanted, kind, message) in _TYPES.items():
        value = body.get(field)
        if value is not None and not isinstance(value, wanted):
            raise _bad_field(kind, f"body.{field}", message, repr(value))


def check_model(body: Mapping[str, Any], served: Sequence[str], chat: bool = True) -> None:
    model = body.get("model")
    if model in (None, "") or model in served:
        return
    hint = f" Valid aliases: {', '.join(served)}." if chat and len(served) > 1 else ""
    raise ApiError(404, f"The model `{model}` does not exist.{hint}", "NotFoundError", "model" if chat else None)


def check_sampling(body: Mapping[str, Any], window: int) -> None:
    """The fields that chat and completions share."""
    temperature = body.get("temperature")
    if temperature is not None and not isinstance(temperature, int | float):
        text = "Input should be a valid number, unable to parse string as a number"
        raise _bad_field("float_parsing", "body.temperature", text, repr(temperature))
    if temperature is not None and temperature < 0:
        raise _parameter(
            "temperature", f"temperature must be non-negative, got {float(temperature)}.", float(temperature)
        )
    top_p = body.get("top_p")
    if isinstance(top_p, int | float) and not 0 < top_p <= 1:
        raise _parameter("top_p", f"top_p must be in (0, 1], got {float(top_p)}.", float(top_p))
    if body.get("stream_options") and not body.get("stream"):
        text = "Stream options can only be defined when `stream=True`. (parameter=stream_options)"
        raise ApiError(400, text, param="stream_options")
    count = body.get("n")
    if isinstance(count, int) and count < 1:
        raise ApiError(400, f"n must be at least 1, got {count}.")
    if isinstance(count, int) and count > MOST_CHOICES:
        raise ApiError(400, f"n must be at most {MOST_CHOICES}, got {count}.")
    for field in ("max_completion_tokens", "max_tokens"):
        value = body.get(field)
        if value is None:
            continue
        if not isinstance(value, int):
            text = "Input should be a valid integer, unable to parse string as an integer"
            raise _bad_field("int_parsing", f"body.{field}", text, repr(value))
        if value < 1:
            raise _parameter("max_tokens", f"max_tokens must be at least 1, got {value}.", value)
        if value > window:
            text = f"{field}={value} cannot be greater than max_model_len={window}. Please request fewer output tokens."
            raise _parameter(field, text, value)


def _parameter(name: str, text: str, value: object) -> ApiError:
    return ApiError(400, f"{text} (parameter={name}, value={value})", param=name)


def check_messages(body: Mapping[str, Any], model: str, vision: bool) -> None:
    messages = body.get("messages")
    if "messages" not in body:
        shown = f"'<dict of {len(body)} items>'"
        raise _bad_field("missing", "body.messages", "Field required", shown)
    if not isinstance(messages, list):
        raise _bad_field("list_type", "body.messages", "Input should be a valid list", repr(messages))
    if not messages:
        text = "Cannot apply chat template to an empty conversation. Provide at least one message."
        raise ApiError(400, text)
    if body.get("continue_final_message") and body.get("add_generation_prompt"):
        text = "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
        raise ApiError(400, text)
    effort = body.get("reasoning_effort")
    if effort is not None and effort not in EFFORTS:
        expected = "'none', 'minimal', 'low', 'medium', 'high', 'xhigh' or 'max'"
        detail = f"'msg': \"Input should be {expected}\", 'input': {effort!r}, 'ctx': {{'expected': \"{expected}\"}}"
        where = "body.reasoning_effort"
        raise invalid(f"{{'type': 'literal_error', 'loc': '{where}', {detail}}}", where)
    if body.get("top_logprobs") and not body.get("logprobs"):
        text = "when using `top_logprobs`, `logprobs` must be set to true. (parameter=top_logprobs)"
        raise ApiError(400, text, param="top_logprobs")
    if (body.get("top_logprobs") or 0) > 20:
        asked = body["top_logprobs"]
        text = f"Requested sample logprobs of {asked}, which is greater than max allowed: 20"
        raise _parameter("logprobs", text, asked)
    if "chat_template" in body and body["chat_template"] is not None:
        raise ApiError(
            400,
            "Chat template is passed with request, but --trust-request-chat-template is not set. "
            "Refused request with untrusted chat template.",
        )
    kinds = {part["type"] for message in messages for part in _parts(message) if isinstance(part.get("type"), str)}
    if "file" in kinds:
        text = "Unsupported chat content part type: 'file'. Supported types: audio_url, image_url, input_audio, text."
        raise _parameter("type", text, "file")
    if not vision and any(_has_media(m) for m in messages):
        raise ApiError(400, f"{model} is not a multimodal model")


def _has_media(message: Any) -> bool:
    return any(part.get("type", "text") != "text" for part in _parts(message))


def _parts(message: Any) -> list[dict[str, Any]]:
    content = message.get("content") if isinstance(message, dict) else None
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def check_tools(body: Mapping[str, Any], parser: str | None, auto: bool) -> Schemas:
    """The schemas of the offered tools by name (empty without tools). Raises ApiError."""
    tools, choice = body.get("tools"), body.get("tool_choice")
    if tools == []:
        text = "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."
        raise ApiError(400, f"{text} (parameter=tools)", param="tools")
    if not tools:
        if choice not in (None, "none"):
            text = "When using `tool_choice`, `tools` must be set. (parameter=tool_choice)"
            raise ApiError(400, text, param="tool_choice")
        return {}
    schemas: dict[str, Mapping[str, Any]] = {}
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or "name" not in function:
            items = len(function) if isinstance(function, dict) else 0
            where = f"body.tools.{index}.function.name"
            raise _bad_field("missing", where, "Field required", f"'<dict of {items} items>'")
        if not isinstance(function["name"], str):
            where, shown = f"body.tools.{index}.function.name", repr(function["name"])
            raise _bad_field("string_type", where, "Input should be a valid string", shown)
        schemas[function["name"]] = function.get("parameters") or {}
    _check_choice(choice, schemas, parser, auto)
    return schemas


def _check_choice(choice: Any, schemas: Schemas, parser: str | None, auto: bool) -> None:
    if isinstance(choice, dict):
        name = (choice.get("function") or {}).get("name")
        if name is None:
            text = (
                "Invalid value for `function`: `None` in `tool_choice`! Correct usage: "
                '`{"type": "function", "function": {"name": "my_function"}}` (parameter=tool_choice.function)'
            )
            raise ApiError(400, text, param="tool_choice.function")
        if name not in schemas:
            text = "The tool specified in `tool_choice` does not match any of the specified `tools`"
            raise ApiError(400, f"{text} (parameter=tool_choice)", param="tool_choice")
        if parser is None or not auto:
            raise ApiError(400, f'tool_choice=function "{name}" requires --tool-call-parser to be set')
    elif choice not in (None, "auto", "required", "none"):
        text = (
            f'Invalid value for `tool_choice`: {choice}! Only named tools, "none", "auto" or "required" are supported.'
        )
        raise ApiError(400, f"{text} (parameter=tool_choice)", param="tool_choice")
    elif choice == "required" and (parser is None or not auto):
        raise ApiError(400, 'tool_choice="required" requires --tool-call-parser to be set')
    elif choice in (None, "auto") and (parser is None or not auto):
        raise ApiError(400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')


def check_format(body: Mapping[str, Any]) -> None:
    wanted = body.get("response_format")
    if isinstance(wanted, dict) and wanted.get("type") == "json_schema" and not wanted.get("json_schema"):
        text = "When response_format type is 'json_schema', the 'json_schema' field must be provided."
        raise ApiError(400, f"{text} (parameter=response_format)", param="response_format")


def check_window(prompt: int, window: int) -> None:
    if prompt >= window:
        over = window + 1
        raise ApiError(
            400,
            f"This model's maximum context length is {window} tokens. However, your prompt contains at least {over} "
            "input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the "
            f"input prompt. (parameter=input_tokens, value={over})",
            param="input_tokens",
        )
