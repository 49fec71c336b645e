"""A request body of any API that the gateway speaks, as `explain` is given it: without its path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.dialects.anthropic.request import to_chat
from gateway.domain.request import ENDPOINTS, Endpoint, InferenceRequest, parse
from gateway.errors import GatewayError


def read_request(alias: str, body: Any) -> InferenceRequest:
    """A request body (decoded JSON) for this alias; its endpoint is told by the field of its prompt. Raises
    `invalid_request_body`."""
    if not isinstance(body, dict):
        raise GatewayError("invalid_request_body", "The request must be a JSON object.", param="request")
    encoded = msgspec.json.encode({**body, "model": alias})
    return parse(_endpoint_of(body), to_chat(encoded) if _is_message(body) else encoded)


def _is_message(body: Mapping[str, Any]) -> bool:
    """Is it one of Anthropic's API? Told by what a chat has not; where there is none of it, both mean the same."""
    tools = body.get("tools")
    listed = tools if isinstance(tools, list) else []
    return "system" in body or any(isinstance(tool, dict) and "input_schema" in tool for tool in listed)


def _endpoint_of(body: Mapping[str, Any]) -> Endpoint:
    return next((e for e in ENDPOINTS if e.prompt and e.prompt[0] in body), ENDPOINTS[0])
