"""Messages bodies and what they become, for the tests of the translation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.apps.dialects.anthropic.request import to_chat
from gateway.apps.dialects.responses.request import RequestEcho, chat_request_of
from gateway.domain.endpoints import CHAT
from gateway.domain.request import parse
from gateway.errors import GatewayError
from tests.envelope import TRIGGERS

DATA = Path(__file__).parents[2] / "data" / "anthropic"
PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0K"}
PICTURE = {"type": "image", "source": PNG}
SEEN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0K"}}  # what it becomes


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content[0] if content and isinstance(content[0], str) else list(content)}


def assistant(*content: Any) -> dict[str, Any]:
    return user(*content) | {"role": "assistant"}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


def call(id_: str, name: str = "now", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": name, "input": arguments}


def result(id_: str, content: Any = None, **more: Any) -> dict[str, Any]:
    said = {} if content is None else {"content": content}
    return {"type": "tool_result", "tool_use_id": id_, **said, **more}


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": f"{name} it", "input_schema": {"type": "object"}, **more}


def response_to_chat(body: bytes) -> tuple[bytes, RequestEcho]:
    """The chat body of a request for a response, and what its answer needs. Raises what no chat can carry."""
    became, asked, own = chat_request_of(body)
    if own is not None and own.untranslatable is not None:
        raise own.untranslatable
    return became, asked


def chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The chat body that these messages and fields become, which the request path accepts."""
    body = to_chat(json.dumps({"model": "main", "messages": messages or [user("hi")], **fields}).encode())
    assert parse(CHAT, body).model == "main"
    became: dict[str, Any] = json.loads(body)
    return became


def turns(*messages: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = chat(*messages, **fields)["messages"]
    return found


def refused(field: str, *messages: dict[str, Any], code: str = "invalid_request_body", **fields: Any) -> str:
    """The message of the error that names `field`."""
    with pytest.raises(GatewayError) as caught:
        chat(*messages, **fields)
    error = caught.value
    assert (error.code, error.param, error.status) == (code, field, 400)
    assert error.message.startswith(f"`{field}` ")
    assert harmless(error)
    return error.message


def harmless(error: GatewayError) -> bool:
    """Does it say nothing that an agent would act on (docs/errors.md)?"""
    said = error.message.lower()
    return not any(word in said for word in (*TRIGGERS, "does not exist", "not found", "overloaded", "at capacity"))


def recorded(name: str) -> bytes:
    """A request of Claude Code 2.1.329, its texts cut short."""
    return (DATA / f"claude_code_{name}.json").read_bytes()
