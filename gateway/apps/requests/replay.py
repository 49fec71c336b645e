"""A captured request, sent again, and what its two answers say."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from gateway.admission.access import Identity, find_alias
from gateway.admission.memory import Share
from gateway.api.admin import backend_of
from gateway.apps.requests.store import CapturedRequest
from gateway.config.snapshot import OPEN, Alias, Snapshot
from gateway.domain.endpoints import ENDPOINTS
from gateway.domain.privacy import Privacy
from gateway.errors import GatewayError
from gateway.proxy.inner_exchange import InnerExchange, OnBehalf
from gateway.runtime.gateway import Gateway

SHOWN_MOST = 256 * 1024  # characters of one part of an answer


async def replay(gateway: Gateway, captured: CapturedRequest, on: str | None) -> dict[str, Any]:
    """Send it again for its client, by that client's rules as they are now; `on`: to this backend alone. `{id, backend,
    status, then, now}`, the answers as `said`. Raises GatewayError where it cannot be sent."""
    if not captured.whole:
        raise GatewayError("operation_refused", "Its body was longer than what is captured: it cannot be sent again.")
    endpoint = next((one for one in ENDPOINTS if one.name == captured.endpoint), None)
    if endpoint is None:
        raise GatewayError("operation_refused", f"This gateway does not serve {captured.endpoint}.")
    snapshot = gateway.snapshot
    client = snapshot.clients_by_owner.get(captured.client)
    if client is None and (snapshot.clients or captured.client != OPEN):
        raise GatewayError("operation_refused", f"Client '{captured.client}' is not in routes.yaml any more.")
    identity = Identity("replay" if client is None else client.name, captured.client, client)
    alias = _alias(gateway, snapshot, identity, captured, on)
    id = f"replay-{secrets.token_hex(8)}"
    headers = {b"content-type": b"application/json", b"x-request-id": id.encode()}
    held, kept = Share(gateway.memory), Share(gateway.memory)
    privacy = Privacy(local_only=captured.local_only)
    exchange = InnerExchange(headers, "replay", captured.request, held, kept, privacy)
    try:
        translated = gateway.apps.translated(endpoint, exchange)
        await gateway.handle(endpoint, translated, OnBehalf(identity, alias))
        backend = exchange.fields.get(b"x-gateway-backend", b"").decode("latin-1")
        answers = {"then": said(captured.answer), "now": said(bytes(exchange.body))}
        return {"id": id, "backend": backend, "status": exchange.status, **answers}
    finally:
        kept.close()


def _alias(
    gateway: Gateway, snapshot: Snapshot, identity: Identity, captured: CapturedRequest, on: str | None
) -> Alias:
    """The alias that the request names, or of it the one step `on`."""
    try:
        model = msgspec.json.decode(captured.request, type=dict[str, Any])["model"]
        if not isinstance(model, str):
            raise TypeError
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        raise GatewayError("operation_refused", "Its body names no `model`.") from None
    alias = find_alias(snapshot, identity, model)
    if on is None:
        return alias
    backend = backend_of(gateway, on).backend
    if backend.cloud and not any(on in step for step in alias.steps):
        message = f"'{on}' is a cloud, and alias '{alias.name}' does not name it: the request stays in the LAN."
        raise GatewayError("operation_refused", message)
    return replace(alias, steps=((on,),), ask_all=())


# -- what an answer says ----------------------------------------------------------------------------------------------


class AnswerText:
    """The parts of one answer, of any of the APIs that clients speak, as a whole or as a stream; whatever does not look
    like an answer says nothing. `calls`: name and arguments of each tool call; `end`: why it ended; `error`: its
    message."""

    def __init__(self) -> None:
        self.text = self.thoughts = self.end = self.error = ""
        self.calls: dict[Any, list[str]] = {}

    def fields(self) -> dict[str, Any]:
        calls = [f"{name}({arguments})"[:SHOWN_MOST] for name, arguments in self.calls.values()]
        said = {"text": self.text[:SHOWN_MOST], "thoughts": self.thoughts[:SHOWN_MOST], "calls": calls}
        return {**said, "end": self.end, "error": self.error}

    def add(self, event: Mapping[str, Any]) -> None:
        """A whole answer, or an event of a stream."""
        if isinstance(error := event.get("error"), Mapping):
            self.error = _text(error.get("message"))
        if isinstance(whole := event.get("response"), Mapping):  # a Responses stream ends with the whole answer
            if str(event.get("type")).endswith(("completed", "incomplete", "failed")):
                self.add({**whole, "response": None})
            return
        for choice in _all(event.get("choices")):
            self._choice(choice)
        for item in _all(event.get("output")):
            self._item(item)
        for number, block in enumerate(_all(event.get("content"))):
            self._block(number, block)
        if isinstance(begun := event.get("content_block"), Mapping):
            self._block(event.get("index"), begun)
        if isinstance(delta := event.get("delta"), Mapping):
            self._block(event.get("index"), delta)
        if isinstance(message := event.get("message"), Mapping) and "role" in message:  # Ollama's
            self._choice({"message": message, "finish_reason": event.get("done_reason")})
        self.end = _text(event.get("stop_reason")) or self.end

    def _choice(self, choice: Mapping[str, Any]) -> None:
        delta = choice.get("delta") or choice.get("message") or {}
        if isinstance(delta, Mapping):
            self.text += _text(delta.get("content"))
            self.thoughts += _text(delta.get("reasoning_content")) or _text(delta.get("reasoning"))
            for number, call in enumerate(_all(delta.get("tool_calls"))):
                function = call.get("function")
                if isinstance(function, Mapping):
                    arguments = function.get("arguments")
                    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
                    self._call(call.get("index", number), _text(function.get("name")), written)
        self.text += _text(choice.get("text"))
        self.end = _text(choice.get("finish_reason")) or self.end

    def _item(self, item: Mapping[str, Any]) -> None:
        for part in _all(item.get("content")) + _all(item.get("summary")):
            if item.get("type") == "reasoning":
                self.thoughts += _text(part.get("text"))
            else:
                self.text += _text(part.get("text"))
        if item.get("type") == "function_call":
            self._call(len(self.calls), _text(item.get("name")), _text(item.get("arguments")))

    def _block(self, number: Any, block: Mapping[str, Any]) -> None:
        self.text += _text(block.get("text"))
        self.thoughts += _text(block.get("thinking"))
        if block.get("type") == "tool_use":
            given = block.get("input")
            self._call(number, _text(block.get("name")), json.dumps(given) if given else "")
        elif partial := _text(block.get("partial_json")):
            self._call(number, "", partial)
        self.end = _text(block.get("stop_reason")) or self.end

    def _call(self, number: Any, name: str, arguments: str) -> None:
        call = self.calls.setdefault(str(number), ["", ""])
        call[0] += name
        call[1] += arguments


def said(answer: bytes) -> dict[str, Any]:
    """`{text, thoughts, calls, end, error}`."""
    found = AnswerText()
    for event in _events(answer):
        if isinstance(event, Mapping):
            found.add(event)
    return found.fields()


def _events(answer: bytes) -> Iterator[Any]:
    whole = _json(answer)
    if whole is not None:
        yield whole
        return
    for line in answer.splitlines():  # server-sent events, or Ollama's lines
        yield _json(line.removeprefix(b"data:").strip())


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _all(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
