"""The attributes of the spans of a request and of its attempts. Pure.

Attributes are named by OpenTelemetry's semantic conventions for generative AI where these have a name
(github.com/open-telemetry/semantic-conventions-genai, in development), else under `gateway.`.

Only attempts have token attributes. So a sum over a trace counts each token once, those of a discarded answer included.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.accounting.record import AttemptRecord, RequestRecord
from gateway.config.snapshot import Backend
from gateway.domain.engine_traits import traits_of
from gateway.domain.request import InferenceRequest
from gateway.domain.request_timer import ReaderStalled, Stopping
from gateway.domain.tokens import read_usage
from gateway.errors import CATALOGUE
from gateway.inspection.stream_track import StreamTrack
from gateway.inspection.whole import WholeAnswer
from gateway.proxy.exchange import ClientGone
from gateway.proxy.failures import AttemptFailed, StreamBroken
from gateway.routing.alias_status import public_reason
from gateway.transport.sse import read_chunk

Value = str | bool | int | float | tuple[str, ...]
Attributes = dict[str, Value]

PROMPT_MOST = 64 * 1024  # bytes of messages in one span; of a longer conversation the latest messages

_OPERATIONS = {"completions": "text_completion", "responses": "chat", "messages": "chat"}  # else the endpoint's name
_WORDS: dict[type[BaseException], str] = {
    ClientGone: "client_gone",
    ReaderStalled: "client_stalled",
    Stopping: "stopping",
}
_CANCELLED = ("client_gone", "client_stalled")  # ended by the client: not a failure


def operation(endpoint: str) -> str:
    """`gen_ai.operation.name` of an endpoint's name."""
    return _OPERATIONS.get(endpoint, endpoint)


# -- the request ------------------------------------------------------------------------------------------------------


def request_name(record: RequestRecord) -> str:
    """The span's name, with the alias' own name, not the client's `model`, so that there are few different names."""
    name = operation(record.endpoint.name)
    return f"{name} {record.alias}" if record.alias else name


def request_attributes(record: RequestRecord) -> Attributes:
    """The attributes of a request that has ended."""
    request, served, outcome = record.request, record.served_by(), record.outcome
    found: dict[str, Value | None] = {
        "gen_ai.operation.name": operation(record.endpoint.name),
        "http.request.method": "POST",
        "url.path": "/v1" + record.endpoint.path,
        "gateway.request_id": record.id,
        "gateway.client": record.client_label,
        "gateway.outcome": outcome,
        "gateway.attempts": len(record.attempts),
        "gen_ai.request.model": request.model if request is not None else None,
        "gen_ai.request.stream": request.stream if request is not None else None,
        "gateway.alias": record.alias or None,
        "gateway.queue_seconds": record.queued,
        "http.response.status_code": http_status(record),
        "error.type": None if outcome in ("200", *_CANCELLED) else outcome,
    }
    if served is not None:
        found["gateway.backend"] = served.state.name
        found["gateway.adapted"] = tuple(served.adapted) or None
        if served.detour is not None:
            found[f"gateway.{served.detour[0]}"] = served.detour[1]
    return _known(found)


def _known(found: dict[str, Value | None]) -> Attributes:
    return {name: value for name, value in found.items() if value is not None}


def http_status(record: RequestRecord) -> int | None:
    """The HTTP status that the client got; None if it got none."""
    outcome = record.outcome
    if outcome == "200" or record.committed:
        return 200
    code = CATALOGUE.get(outcome)
    return code.status if code is not None else int(outcome) if outcome.isdigit() else None


# -- an attempt -------------------------------------------------------------------------------------------------------


def attempt_name(attempt: AttemptRecord) -> str:
    name = operation(attempt.request.endpoint.name)
    model = attempt.state.model
    return f"{name} {model}" if model is not None else name


def attempt_attributes(attempt: AttemptRecord, outcome: str, waited: float | None) -> Attributes:
    """`outcome`: "ok" or a word of `outcome_of`; `waited`: seconds until its first content, None without content."""
    state, request = attempt.state, attempt.request
    usage, (model, reasons) = attempt.usage or attempt.unused, answer_of(attempt.answer)
    found: dict[str, Value | None] = {
        "gen_ai.operation.name": operation(request.endpoint.name),
        "gen_ai.provider.name": provider(state.backend),
        "gen_ai.request.stream": request.stream,
        "gateway.backend": state.name,
        "gateway.attempt": attempt.number,
        "gateway.outcome": outcome,
        "gen_ai.request.model": state.model,
        "gen_ai.request.max_tokens": request.limit(),
        "gen_ai.request.choice.count": request.choices if request.choices != 1 else None,
        "gen_ai.response.time_to_first_chunk": waited if request.stream else None,
        "gen_ai.response.model": model,
        "gen_ai.response.finish_reasons": reasons or None,
        "error.type": None if outcome in ("ok", *_CANCELLED) else outcome,
    }
    if state.backend.url is not None:
        _, found["server.address"], found["server.port"] = state.backend.origin
    return _known(found) | (usage_attributes(usage) if usage is not None else {})


def provider(backend: Backend) -> str:
    """`gen_ai.provider.name`: the provider's name in litellm, else the kind of server."""
    if traits_of(backend).library:
        return (backend.model or backend.engine).partition("/")[0]
    return backend.engine


def usage_attributes(usage: Mapping[str, Any]) -> Attributes:
    """Tokens as the backend reported them; `input_tokens` includes the cached ones."""
    used = read_usage(usage)
    return _known(
        {
            "gen_ai.usage.input_tokens": used.prompt,
            "gen_ai.usage.output_tokens": used.completion,
            "gen_ai.usage.cache_read.input_tokens": used.cached or None,
            "gen_ai.usage.reasoning.output_tokens": used.reasoning or None,
        }
    )


def answer_of(answer: WholeAnswer | StreamTrack | None) -> tuple[str | None, tuple[str, ...]]:
    """(the model named in the answer, its finish reasons)."""
    if answer is None:
        return None, ()
    if isinstance(answer, StreamTrack):
        model, reasons = answer.model, list(answer.finished.values())
    else:
        model, whole = answer.model, read_chunk(answer.body)
        reasons = [choice.finish_reason for choice in whole.choices or ()] if whole is not None else []
    return (model if isinstance(model, str) else None), tuple(str(reason) for reason in reasons if reason is not None)


def outcome_of(error: BaseException) -> tuple[str, str]:
    """Why an attempt ended without an answer: (a word of a fixed list, a reason for people without the backend's own
    text, which may repeat the prompt)."""
    if isinstance(error, AttemptFailed):
        return ("timeout" if error.timeout else error.verdict.kind), public_reason(error.verdict.reason)
    if isinstance(error, StreamBroken):
        return "stream_interrupted", public_reason(error.args[0])
    return _WORDS.get(type(error), type(error).__name__), ""


# -- prompts, if they are enabled -------------------------------------------------------------------------------------


def input_messages(request: InferenceRequest) -> str | None:
    """`gen_ai.input.messages` as JSON: the latest PROMPT_MOST bytes of a chat's messages, without pictures and
    sound; for other endpoints the prompt or input. None if it has none that can be read."""
    name = request.endpoint.prompt[0]
    if name not in request.fields:
        return None
    try:
        value = msgspec.json.decode(request.fields[name])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if name != "messages":
        value = [{"role": "user", "content": value if isinstance(value, str) else msgspec.json.encode(value).decode()}]
    if not isinstance(value, list):
        return None
    kept: list[bytes] = []
    room = PROMPT_MOST
    for message in reversed(value):
        encoded = msgspec.json.encode(_message(message))
        room -= len(encoded) + 1
        if room < 0:
            break
        kept.append(encoded)
    return "[" + b",".join(reversed(kept)).decode() + "]"


def _message(message: Any) -> dict[str, Any]:
    """A message of OpenAI's API in the form of the conventions: a role and parts."""
    if not isinstance(message, dict):
        return {"role": "user", "parts": [_text(message)]}
    role, content = str(message.get("role", "user")), message.get("content")
    parts = [_part(part) for part in content] if isinstance(content, list) else []
    if isinstance(content, str) and content:
        if role == "tool":
            parts.append({"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content})
        else:
            parts.append(_text(content))
    calls = message.get("tool_calls")
    parts += [_call(call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return {"role": role, "parts": parts}


def _part(part: Any) -> dict[str, Any]:
    if not isinstance(part, dict):
        return _text(part)
    text = part.get("text")
    return _text(text) if isinstance(text, str) else {"type": str(part.get("type")), "left_out": True}


def _text(content: object) -> dict[str, Any]:
    return {"type": "text", "content": content if isinstance(content, str) else str(content)}


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    called = function if isinstance(function, dict) else {}
    return {
        "type": "tool_call",
        "id": call.get("id"),
        "name": called.get("name"),
        "arguments": called.get("arguments"),
    }
