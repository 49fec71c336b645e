"""A simulated `vllm serve` 0.33 with VLLM_USE_RUST_FRONTEND=1: the engine of SimVllm behind `vllm-rs`, which serves
less, reads its requests more strictly and words its refusals otherwise. As seen running; answers with thoughts and
calls are those of the Python front end."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from simulator.faults import Fault
from simulator.server import Exchange
from simulator.validation import ApiError
from simulator.vllm import SimVllm

_METRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
# Metrics that its page lacks, beside the times at which counters were made.
_ABSENT = re.compile(
    rb"(?m)^(?:# (?:HELP|TYPE) )?"
    rb"(?:process_start_time_seconds|vllm:cache_config_info|vllm:engine_sleep_state|vllm:admission_rejections_total"
    rb"|[\w:]+_created\b|vllm:spec_decode_num_accepted_tokens_per_pos)[^\n]*\n"
)
_NOT_YET = ("/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions/batch", "/tokenizer_info")
_READS = "Failed to deserialize the JSON body into the target type: "
_CONTENT = "data did not match any variant of untagged enum MessageContent"
_INTEGERS = ("max_tokens", "max_completion_tokens", "n", "seed", "top_k", "min_tokens", "top_logprobs")
_NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_SWITCHES = ("stream", "skip_special_tokens", "ignore_eos", "add_special_tokens", "use_beam_search")
_PARTS = ("text", "image_url", "video_url", "input_audio", "audio_url")


class SimRustFrontEnd(SimVllm):
    """A vLLM behind its Rust front end."""

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "front_end": "rust"}

    async def route(self, exchange: Exchange, faults: Mapping[str, Fault]) -> None:
        path = exchange.path
        if path in _NOT_YET and exchange.method == "POST":
            text = f"POST {path} is not supported by the Rust frontend yet. Set VLLM_USE_RUST_FRONTEND=0 to use the "
            error = ApiError(501, text + "Python frontend.", "NotImplementedError")
            await exchange.send_json(error.status, error.body)
        elif exchange.method not in self._methods(path):
            await exchange.send(405 if self._methods(path) else 404, b"", None)
        else:
            await super().route(exchange, faults)

    def _methods(self, path: str) -> tuple[str, ...]:
        return () if path == "/ping" or self.pooling else super()._methods(path)

    def _card(self, name: str) -> dict[str, Any]:
        card = super()._card(name)
        del card["permission"]
        return {**card, "owned_by": "vllm-frontend-rs"}

    async def _get(self, exchange: Exchange, path: str, faults: Mapping[str, Fault]) -> None:
        if path == "/version":
            await exchange.send_json(200, {"version": self.version, "rust_frontend_version": self.version})
        elif path == "/metrics":
            await exchange.send(200, _ABSENT.sub(b"", self.metrics_page()) + b"# EOF\n", _METRICS_TYPE)
        else:
            await super()._get(exchange, path, faults)

    async def _post(self, exchange: Exchange, path: str, faults: Mapping[str, Fault]) -> None:
        if path in ("/v1/chat/completions", "/v1/completions"):
            check(json.loads(exchange.body), self)
        await super()._post(exchange, path, faults)


# -- what it refuses ---------------------------------------------------------------------------------------------------


def _bad(message: str) -> ApiError:
    return ApiError(400, f"{_READS}{message} at line 1 column 84", "Bad Request")


def check(body: dict[str, Any], sim: SimVllm) -> None:
    """Raises the ApiError with which it refuses this request."""
    for name in (*_INTEGERS, *_NUMBERS):
        value = body.get(name)
        if isinstance(value, str):
            raise _bad(f"{name}: invalid type: string {json.dumps(value)}, expected u32")
        if isinstance(value, float) and name in _INTEGERS:
            raise _bad(f"{name}: invalid type: floating point `{value}`, expected u32")
        if isinstance(value, bool):
            raise _bad(f"{name}: invalid type: boolean `{json.dumps(value)}`, expected u32")
    for name in _SWITCHES:
        if name in body and not isinstance(body[name], bool):
            raise _bad(f"{name}: invalid type: {json.dumps(body[name])}, expected a boolean")
    names = [tool["function"]["name"] for tool in body.get("tools") or [] if isinstance(tool.get("function"), dict)]
    if twice := [name for at, name in enumerate(names) if name in names[:at]]:
        raise ApiError(400, f"duplicate tool name `{twice[0]}`")
    if body.get("use_beam_search"):
        raise ApiError(400, "use_beam_search is not supported.")
    prompt = body.get("prompt")
    if isinstance(prompt, list) and not all(type(token) is int for token in prompt):
        raise _bad("prompt: data did not match any variant of untagged enum Prompt")
    for index, message in enumerate(body.get("messages") or []):
        _check_shape(message, f"messages[{index}]: ")
    for message in body.get("messages") or []:
        _check_meaning(message, sim)
    if (count := body.get("n")) is not None and not (isinstance(count, int) and count > 0):
        raise _bad(f"n: invalid value: {json.dumps(count)}, expected u32")
    if (count or 1) > 1:
        raise ApiError(400, "Only n=1 is supported.", param="n")
    if body.get("tools") and body.get("tool_choice") != "none" and sim.tool_parser is None:
        text = "failed to submit chat request: tool parsing is disabled by frontend configuration"
        raise ApiError(500, text, "InternalServerError")


def _check_shape(message: Any, where: str) -> None:
    """What cannot be read at all."""
    content, role = message.get("content"), message.get("role")
    if "reasoning" in message and "reasoning_content" in message:
        raise _bad(f"{where}duplicate field `reasoning`")
    if role != "assistant" and "content" not in message:
        raise _bad(f"{where}missing field `content`")
    if content is None and role != "assistant":
        raise _bad(where + _CONTENT)
    parts = content if isinstance(content, list) else []
    if not isinstance(content, str | list | None) or any(_unreadable(part) for part in parts):
        raise _bad(where + _CONTENT)
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        raise _bad(f"{where}missing field `tool_call_id`")
    for call in message.get("tool_calls") or []:
        for name in ("id", "type", "function"):
            if call.get(name) is None:
                raise _bad(f"{where}missing field `{name}`")
        if not isinstance(call["function"].get("arguments", ""), str):
            raise _bad(f"{where}invalid type: map, expected a string")


def _unreadable(part: Any) -> bool:
    if not isinstance(part, dict) or part.get("type") not in _PARTS:
        return True
    return part["type"] == "text" and not isinstance(part.get("text"), str)


def _check_meaning(message: Any, sim: SimVllm) -> None:
    content, role = message.get("content"), message.get("role")
    if role == "function":
        raise ApiError(400, "Function messages are not supported.")
    thoughts = message.get("reasoning") or message.get("reasoning_content")
    if role == "assistant" and content in (None, []) and not (message.get("tool_calls") or thoughts):
        raise ApiError(400, "Assistant messages must contain text, reasoning content, or tool_calls.")
    if content == [] and role != "tool":
        text = "messages: Validation error: message content parts cannot be empty"
        raise ApiError(400, f'{text} [{{"value": Array [Object {{"role": String("user"), "content": Array []}}]}}]')
    if content == "" and role == "user":
        raise ApiError(400, "messages: Validation error: message content cannot be empty [{}]")
    for part in content if isinstance(content, list) else []:
        if part["type"] != "text" and not (sim.vision and part["type"] == "image_url"):
            named = "audio" if part["type"] == "input_audio" else part["type"]
            raise ApiError(400, f"unsupported multimodal content: {named}")
    for call in message.get("tool_calls") or []:
        try:
            json.loads(call["function"].get("arguments") or "{}")
        except ValueError:
            text = "failed to submit chat request: chat template error: assistant tool call "
            text += f"`{call['id']}` has invalid JSON arguments: key must be a string at line 1 column 2"
            raise ApiError(500, text, "InternalServerError") from None
