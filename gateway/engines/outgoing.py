"""The request that one attempt sends to a backend: the body's fields and the headers. They are built from the client's
request, which is not changed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from gateway.config.snapshot import Alias
from gateway.domain.backend import BackendState
from gateway.domain.body import value_of
from gateway.domain.capabilities import at_least
from gateway.domain.endpoints import CHAT
from gateway.domain.forms import LEARNED, Forms, learned_forms
from gateway.domain.request import NO_MEDIA, InferenceRequest, is_limit
from gateway.domain.tokens import Estimate, answer_most, clamp, clamp_again, surely_fits
from gateway.engines.forms import put_in_form
from gateway.engines.thinking import set_thinking
from gateway.launch.families import loses_marks
from gateway.routing.needs import CLAMPED, NO_ADAPTATION, SERVER_FIELDS, THINKING_UNAVAILABLE, Adaptation
from gateway.routing.window import pool_prompt, prompt_estimate, refusal_of, text_estimate, window_for

_encode = msgspec.json.Encoder(enc_hook=str).encode  # a string of routes.yaml may be of a class of its own

# The client's headers that are passed on. They are listed one by one, not by prefix: `anthropic-api-key` and
# `openai-organization` must not reach a backend.
_PASSED_ON = tuple(
    (name.encode(), name)
    for name in ("accept", "traceparent", "tracestate", "anthropic-version", "anthropic-beta", "openai-beta")
)
JSON = ("content-type", "application/json")
# Ids for the request that vLLM and SGLang take from its body. Two clients with one id would get each other's answers or
# end each other's requests.
CHOSEN_IDS = ("request_id", "rid")
# What a server would do for the others too, or with what is theirs. Only the alias' params may say so.
OF_THE_SERVER = (
    "priority",  # vLLM and SGLang let the request go before others
    *("keep_alive", "ttl"),  # Ollama and LM Studio unload the model then
    *("adapters", "draft_model"),  # MLX and LM Studio load another model beside it or in its place
    *("models", "fallbacks"),  # OpenRouter and LiteLLM let another model answer than the alias'
    *("kv_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room"),  # vLLM, SGLang: whose cache is read
    "id_slot",  # llama-server drops what that slot has kept of another prompt
)
# Null means what absence does, and some clients write it. vLLM 0.33 drops what looks like a call where `tool_choice` is
# null, with tools and without; older ones keep only the first call where `parallel_tool_calls` is.
UNSAID = ("tool_choice", "parallel_tool_calls")
NOT_THE_CLIENTS = frozenset({*CHOSEN_IDS, *OF_THE_SERVER})
_AUTO, _NONE, _REQUIRED, _FALSE = Raw(b'"auto"'), Raw(b'"none"'), Raw(b'"required"'), Raw(b"false")
_INCLUDE_USAGE = Raw(b'{"include_usage":true}')


def outgoing_headers(headers: Mapping[bytes, bytes], request_id: str) -> list[tuple[str, str]]:
    """The headers of the attempt. Of the client's headers only listed ones are passed on, never its credentials and
    cookies. The content type is always JSON, since the gateway encodes the body."""
    return [JSON, ("x-request-id", request_id), *passed_on(headers)]


def passed_on(headers: Mapping[bytes, bytes]) -> list[tuple[str, str]]:
    """The client's headers that are sent to backends."""
    return [(text, headers[name].decode("latin-1")) for name, text in _PASSED_ON if name in headers]


def outgoing_fields(
    request: InferenceRequest,
    alias: Alias,
    state: BackendState,
    adapt: Adaptation = NO_ADAPTATION,
    messages: Raw | None = None,
) -> tuple[dict[str, Raw], list[str]]:
    """(the body's fields for this backend, the adaptations: values of ADAPTED). The request itself is not changed.
    `messages`: where they have this backend's form already."""
    fields, now = dict(request.fields), time.monotonic()
    adapted: list[str] = []
    if not NOT_THE_CLIENTS.isdisjoint(fields):
        strip_server_fields(fields, adapted)
    traits = state.traits
    if state.backend.cloud and request.endpoint.pools:
        fields.pop("truncate_prompt_tokens", None)  # vLLM's, written here for Ollama's clients; no cloud reads it
    if state.model is not None:
        fields["model"] = Raw(_encode(state.model))
    elif traits.model_optional:
        # The model's name is not known yet. Without `model` vLLM uses its first one; the alias' name would be a 404.
        del fields["model"]
    if alias.params:
        fill_in(fields, alias.params, request.endpoint.limits)
    for name in UNSAID:
        if name in fields and bytes(fields[name]) == b"null":
            del fields[name]
    if adapt is not NO_ADAPTATION:
        adapted.extend(adapt.kinds)
        adapt_tools(fields, adapt)
    if traits.assumes_no_calls and "tools" in fields:
        fields.setdefault("tool_choice", _AUTO)
    if request.tool_choice == "named" and traits.named_calls == "only_tool" and adapt.mode is None:
        offer_named_tool(fields)
    if adapt.thinking is not None or request.thinking is not None:
        written = set_thinking(fields, request, state, adapt, now)
        if not written and THINKING_UNAVAILABLE not in adapted:
            adapted.append(THINKING_UNAVAILABLE)
    if traits.short_answers:
        fill_limit(fields, request, state, now)
    clamped = False
    for name in request.endpoint.limits:
        if name in fields and (limit := send_limit(name, fields, request, alias, state, now)) is not None:
            fields[name] = Raw(_encode(limit))
            clamped = clamped or limit < request.limits.get(name, limit)
    if state.pool is not None:
        fields.pop("n_predict", None)  # llama-server's own name of the limit, which would override the other
    if state.pool is not None and not any(is_limit(value_of(fields.get(name))) for name in request.endpoint.limits):
        clamped = bound_in_pool(fields, request, state, state.pool) or clamped
    if clamped:
        adapted.append(CLAMPED)
    if traits.launch_flags and request.endpoint is CHAT:
        backend, tools = state.backend, request.tools and request.tool_choice != "none"
        parsers = backend.tool_parser, backend.reasoning_parser
        if loses_marks(state.model, *parsers, tools=tools, silent=traits.silent_parsers):
            fields.setdefault("skip_special_tokens", _FALSE)
    if request.stream and not request.own_usage and traits.streams_usage == "asked":
        fields["stream_options"] = with_usage(fields.get("stream_options"))
    if request.endpoint is CHAT or request.corrected is not None:
        put_in_form(fields, forms_for(request, state, now), messages)
    return fields, adapted


def forms_for(request: InferenceRequest, state: BackendState, now: float) -> Forms:
    """The forms in which the backend gets this request: with those that are tried after a refusal."""
    forms, corrected = state.forms(now), request.corrected
    return forms if corrected is None else learned_forms(forms, map(LEARNED.__add__, corrected.get(state.name, ())))


def strip_server_fields(fields: dict[str, Raw], adapted: list[str]) -> None:
    """Take out the fields no client may decide, because they change the server for the others too."""
    for name in CHOSEN_IDS:
        fields.pop(name, None)
    stated = [value for name in OF_THE_SERVER if (value := fields.pop(name, None)) is not None]
    if any(bytes(value) != b"null" for value in stated):
        adapted.append(SERVER_FIELDS)


def adapt_tools(fields: dict[str, Raw], adapt: Adaptation) -> None:
    """Reduce the tools in `fields` to those this backend can serve."""
    if adapt.mode == "strip":
        for name in ("tools", "tool_choice", "parallel_tool_calls"):
            fields.pop(name, None)
    elif adapt.mode == "mend":
        fields["tool_choice"] = _NONE  # a vLLM without a parser renders the tools into the prompt all the same
        # vLLM removes special tokens from the text, and some models mark calls with them (Gemma, Kimi, Mistral).
        fields.setdefault("skip_special_tokens", _FALSE)
    elif adapt.force:
        fields["tool_choice"] = _REQUIRED


def fill_limit(fields: dict[str, Raw], request: InferenceRequest, state: BackendState, now: float) -> None:
    """Add a limit of the answer where none is set: the whole window, which `send_limit` reduces by the prompt."""
    names, window = request.endpoint.limits, window_for(state, request, now)
    if names and window is not None and all(value_of(fields.get(name)) is None for name in names):
        fields[names[-1]] = Raw(_encode(window))


def offer_named_tool(fields: dict[str, Raw]) -> None:
    """Offer the named tool alone, and require a call: the server does not know how to force one of several. A name that
    is none of the tools' is left to the server."""
    choice, tools = value_of(fields.get("tool_choice")), value_of(fields.get("tools"))
    named = [tool for tool in tools if tool_name(tool) == tool_name(choice)] if isinstance(tools, list) else []
    if named and tool_name(choice) is not None:
        fields["tools"], fields["tool_choice"] = Raw(_encode(named[:1])), _REQUIRED


def tool_name(tool: Any) -> str | None:
    """The name of a tool, or of a choice of one."""
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def bound_in_pool(fields: dict[str, Raw], request: InferenceRequest, state: BackendState, pool: int) -> bool:
    """Limit an answer that nobody limited, or only with what is no limit (-1): it must not fill the memory that it
    shares with other answers. False = this endpoint has no limits."""
    if not request.endpoint.limits:
        return False
    for name in request.endpoint.limits:
        fields.pop(name, None)
    limit = answer_most(pool_prompt(state, request), pool, state.slots)
    fields[request.endpoint.limits[0]] = Raw(_encode(limit))
    return True


def send_limit(
    name: str, fields: Mapping[str, Raw], request: InferenceRequest, alias: Alias, state: BackendState, now: float
) -> int | None:
    """The limit (tokens) for field `name`, at least the alias' least and clamped to the window; None: as it is sent."""
    asked = request.limits.get(name)
    if asked is None:  # from the alias' params, or no valid limit: then the backend refuses it
        asked = value_of(fields[name])
        if not is_limit(asked):
            return None
    limit = max(asked, alias.min_max_tokens or 0)
    window = window_for(state, request, now)
    if window is not None and (request.refused is not None or not surely_fits(request.prompt_bytes, limit, window)):
        bounded = _bounded(limit, request, state, window, text_estimate(state, request), request.prompt_bytes)
        if bounded < limit and request.media is not NO_MEDIA:
            text_bytes = request.prompt_bytes - request.media.bytes
            bounded = _bounded(limit, request, state, window, prompt_estimate(state, request), text_bytes)
        limit = bounded
    return limit if limit != asked or name not in request.limits else None


def _bounded(
    limit: int, request: InferenceRequest, state: BackendState, window: int, estimate: Estimate, prompt_bytes: int
) -> int:
    """`limit` clamped by the rule of the server's version, or, after it has refused this request, by its refusal."""
    refused = refusal_of(state, request)
    if refused is None or not refused.sums:
        return clamp(limit, estimate, window, server_clamps=clamps_itself(state))
    exact = state.name in request.exact
    return clamp_again(limit, estimate, window, prompt_bytes=prompt_bytes, exact=exact)


def outgoing_limits(request: InferenceRequest, alias: Alias, state: BackendState) -> list[object]:
    """The limits of the answer that `outgoing_fields` sends."""
    names, now = request.endpoint.limits, time.monotonic()
    fields = {name: request.fields[name] for name in names if name in request.fields}
    fill_in(fields, {name: value for name, value in alias.params.items() if name in names}, names)
    sent = {name: send_limit(name, fields, request, alias, state, now) for name in fields}
    return [value_of(fields[name]) if limit is None else limit for name, limit in sent.items()]


def clamps_itself(state: BackendState) -> bool:
    """Does the server itself shorten the answer to the rest of the window? A server that does not answers 400."""
    since = state.traits.clamps_since
    return since is not None and at_least(state.reported.version, *since) is True


def fill_in(fields: dict[str, Raw], params: Mapping[str, Any], limits: tuple[str, ...]) -> None:
    """Add the alias' params that the client did not send; nested maps are merged, and the client's values win. The
    names of the answer's limit count as one setting: if the client sent one of them, none is added. A limit that is
    null, which some clients always send, is none."""
    limited = any(name in fields and bytes(fields[name]) != b"null" for name in limits)
    for name, value in params.items():
        if name in limits and limited:
            continue
        if name not in fields or name in limits:
            fields[name] = Raw(_encode(value))
        elif isinstance(value, Mapping):
            sent = value_of(fields[name])
            if isinstance(sent, dict):
                fields[name] = Raw(_encode(merged(sent, value)))


def merged(sent: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """`defaults` overridden by the client's values `sent`; nested maps are merged."""
    result = dict(defaults)
    for name, value in sent.items():
        default = result.get(name)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            value = merged(value, default)
        result[name] = value
    return result


def with_usage(options: Raw | None) -> Raw:
    """`stream_options` with include_usage; the client's other options are kept."""
    if options is None:
        return _INCLUDE_USAGE
    sent = value_of(options)
    return Raw(_encode({**sent, "include_usage": True})) if isinstance(sent, dict) else _INCLUDE_USAGE
