"""A request's fields as arguments of litellm's functions. Only listed fields are passed on, because those functions
also take addresses, keys, callbacks and fallbacks, and send unknown arguments to the cloud. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Raw

from gateway.engines.base import InexpressibleRequest, RequestFields, UnmetDemand

# Fields that decide the answer's meaning are always passed on; litellm answers 400 if the cloud does not support one.
DEMANDS = (
    "messages", "tools", "tool_choice", "response_format", "n", "stop", "logprobs", "top_logprobs", "modalities",
    "max_tokens", "max_completion_tokens", "thinking",
)  # fmt: skip
# Fields that only influence the answer are left out if the cloud does not support them.
HINTS = (
    "temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "user",
    "parallel_tool_calls", "reasoning_effort", "service_tier",
)  # fmt: skip
EFFORTS = {"enabled": "medium", "disabled": "none"}
_PARTS = ("text", "refusal", "thinking", "redacted_thinking", "input_audio")


def chat_arguments(raw: Mapping[str, Raw], supported: frozenset[str], *, stream: bool) -> dict[str, Any]:
    """The arguments for `acompletion`. `supported`: the parameters that the provider takes. Raises Refused."""
    arguments = _chosen(raw, (*DEMANDS, *(name for name in HINTS if name in supported)))
    _refuse_remote_parts(arguments.get("messages"))
    if "thinking" in arguments and "thinking" not in supported:
        arguments = _without_thinking(arguments, supported)
    if stream:
        # The request path always needs the usage.
        arguments |= {"stream": True, "stream_options": {"include_usage": True}}
    return arguments


def _without_thinking(arguments: dict[str, Any], supported: frozenset[str]) -> dict[str, Any]:
    """The arguments for a provider that does not know Anthropic's `thinking`: it becomes `reasoning_effort`. If the
    provider lacks that too, a demand to think stays, and litellm refuses it. `adaptive` is dropped, being a model's
    default."""
    thinking = arguments["thinking"]
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    others = {name: value for name, value in arguments.items() if name != "thinking"}
    if kind == "adaptive":
        return others
    if kind in EFFORTS and "reasoning_effort" in supported:
        return {"reasoning_effort": EFFORTS[kind], **others}
    return others if kind == "disabled" else arguments


def embeddings_arguments(raw: Mapping[str, Raw]) -> dict[str, Any]:
    """The arguments for `aembedding`. Raises Refused."""
    return _chosen(raw, ("input", "dimensions", "user"))


def _chosen(raw: Mapping[str, Raw], names: tuple[str, ...]) -> dict[str, Any]:
    fields = RequestFields(raw)
    return {name: value for name in names if (value := fields[name]) is not None}


def _data_of(part: dict[str, Any]) -> Any:
    """Where the picture or the file of a part is; None if it is neither, or has a `file_id`, which litellm fetches."""
    kind = part.get("type")
    if kind == "file":
        file = part.get("file")
        return file.get("file_data") if isinstance(file, dict) and not file.get("file_id") else None
    image = part.get("image_url") if kind == "image_url" else None
    return image.get("url") if isinstance(image, dict) else image


def _refuse_remote_parts(messages: Any) -> None:
    """Refuse a part with a URL: litellm would fetch it from inside the LAN for any client. Data URLs pass."""
    if not isinstance(messages, list) or not messages:
        raise InexpressibleRequest("`messages` must be a list with at least one message.", "messages")
    for index, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if kind in _PARTS:
                continue
            url = _data_of(part) if isinstance(part, dict) else None
            if not (isinstance(url, str) and url.startswith("data:")):
                raise UnmetDemand(
                    f"`messages[{index}].content`: send pictures and PDFs as data URLs (data:image/png;base64,...), "
                    f"everything else as text; a part of type {kind!r} with an address is not fetched.",
                    "messages",
                )
