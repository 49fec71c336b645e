"""The needs of a request, which of them a backend lacks, and how the request is adapted to it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

from gateway.config.snapshot import Alias, Client, OnUnsupported
from gateway.domain.capabilities import Capabilities, OnDemand
from gateway.domain.request import NO_MEDIA, InferenceRequest

Switch = Literal["on", "off"]
Resort = Literal["mend", "strip"]
Lack = Literal[
    "tools", "tool_choice", "json_schema", "images", "audio", "pdf", "continues", "thinking", "logprobs", "hosted"
]
ADAPTED_BY_MODE: dict[Resort, str] = {"mend": "tools_as_text", "strip": "tools_stripped"}
THINKING_UNAVAILABLE = "thinking_unavailable"
FORCED = "tool_call_forced"
CLAMPED = "max_tokens_clamped"
SERVER_FIELDS = "server_fields_stripped"
ADAPTED = (*ADAPTED_BY_MODE.values(), THINKING_UNAVAILABLE, FORCED, CLAMPED, SERVER_FIELDS)
"""Every word of x-gateway-adapted, and the kinds of gateway_adapted_total."""
MARK = "### Task:"  # how Open WebUI's side calls begin: titles, tags, follow-up questions
_decode = msgspec.json.Decoder(Any).decode


class Needs(NamedTuple):
    """The demands of a request. `thinking` is required, or with `wish` only preferred. `hosted`: tools that the server
    runs itself, or other things that no chat can carry."""

    tools: Literal["auto", "required", "named"] | None = None
    json_schema: bool = False
    images: bool = False
    audio: bool = False
    thinking: Switch | None = None
    wish: bool = False
    logprobs: bool = False
    pdf: bool = False
    continues: bool = False
    hosted: bool = False

    @property
    def on_demand(self) -> bool:
        """Does the request demand a tool call?"""
        return self.tools in ("required", "named")


NO_NEEDS = Needs()


@dataclass(frozen=True, slots=True)
class Adaptation:
    """How a request is changed for one backend. `mode`: "mend" = its tools stay, with tool_choice none, and calls
    are extracted from the text; "strip" = its tools are left out. `thinking`: sent as the backend's own switch.
    `verify`: the request requires a call that the backend does not enforce, so no content is sent before the first
    call. `emulate`: the call is made from structured output. `force`: tool_choice becomes required. `kinds`: the
    values of x-gateway-adapted."""

    mode: Resort | None = None
    thinking: Switch | None = None
    verify: bool = False
    emulate: bool = False
    force: bool = False
    kinds: tuple[str, ...] = ()


NO_ADAPTATION = Adaptation()


def needs_of(request: InferenceRequest, alias: Alias, client: Client | None = None) -> Needs:
    """The needs of this request, except pictures, sound and a chat's files, which are expensive to find (`with_media`).
    For thinking, the client's `tasks` win over the alias, and the alias over the request."""
    forced = alias.thinking
    if client is not None and client.tasks is not None and client.tasks.thinking and is_task(request):
        forced = client.tasks.thinking
    if request.continues and request.thinking == "off":  # behind the beginning of an answer there are no thoughts
        forced = None
    wanted = forced or request.thinking
    hosted = request.own is not None and request.own.untranslatable is not None
    rare = hosted or request.continues or request.file_at
    if not (request.tools or request.json_schema or wanted or request.logprobs or rare):
        return NO_NEEDS
    if "tools" not in request.endpoint.prompt:
        return Needs(logprobs=True) if request.logprobs else NO_NEEDS
    choice = request.tool_choice if request.tools else "none"
    return Needs(
        tools=None if choice == "none" else choice,
        json_schema=request.json_schema,
        pdf=bool(request.file_at),
        continues=request.continues,
        thinking=wanted,
        wish=forced is None and request.thinking_wish,
        logprobs=request.logprobs,
        hosted=hosted,
    )


def with_media(needs: Needs, request: InferenceRequest) -> Needs:
    """The needs, those for pictures and sound included. Reads the whole body the first time."""
    media = request.media
    if media is NO_MEDIA:
        return needs
    return needs._replace(images=bool(media.images), audio=media.audio, pdf=needs.pdf or media.pages > 0)


def lacking(needs: Needs, able: Capabilities) -> tuple[Lack, ...]:
    """The needs of the request that the backend is known not to meet. An unknown ability does not count as lacking."""
    lacks: list[Lack] = []
    if needs.tools == "auto":
        if able.tools is False:
            lacks.append("tools")
    elif needs.tools is not None and on_demand(needs, able) == "no":
        lacks.append("tool_choice")
    if needs.json_schema and able.json_schema is False:
        lacks.append("json_schema")
    if needs.images and able.images is False:
        lacks.append("images")
    if needs.audio and able.audio is False:
        lacks.append("audio")
    if needs.pdf and able.pdf is False:
        lacks.append("pdf")
    if needs.continues and able.continues is False:
        lacks.append("continues")
    if needs.thinking is not None and not needs.wish and not can_switch_thinking(needs, able):
        lacks.append("thinking")
    if needs.logprobs and able.logprobs is False:
        lacks.append("logprobs")
    if needs.hosted and not able.hosted:
        lacks.append("hosted")
    return tuple(lacks)


def on_demand(needs: Needs, able: Capabilities) -> OnDemand:
    return able.named if needs.tools == "named" else able.required


def can_switch_thinking(needs: Needs, able: Capabilities) -> bool:
    """Can thinking be switched as the request requires or prefers?"""
    if needs.thinking is None:
        return True
    return (able.thinks if needs.thinking == "on" else able.silent) is not False


def adapt(needs: Needs, able: Capabilities, mode: Resort | None = None) -> Adaptation:
    """The changes to a request for a backend that may serve it."""
    if mode is None and needs.thinking is None and not needs.on_demand:
        return NO_ADAPTATION
    kinds: tuple[str, ...] = () if mode is None else (ADAPTED_BY_MODE[mode],)
    thinking = None if needs.wish else needs.thinking
    if not can_switch_thinking(needs, able):
        kinds += (THINKING_UNAVAILABLE,)
    if able.thinking in ("always", "never"):  # this backend has no switch
        thinking = None
    way = on_demand(needs, able) if needs.on_demand else None
    verify = way is not None and (way in ("tried", "emulated") or mode == "mend")
    emulate = way == "emulated"
    if not (kinds or thinking or verify or emulate):
        return NO_ADAPTATION
    return Adaptation(mode, thinking, verify, emulate, kinds=kinds)


def rescued(able: Capabilities, lacks: tuple[Lack, ...], mode: Resort) -> bool:
    """Can a backend that lacks only tools serve the request in that mode?"""
    if mode == "mend":
        return able.mendable and lacks in (("tools",), ("tool_choice",))
    return lacks == ("tools",)


def resort_of(alias: Alias, client: Client | None) -> Resort | None:
    """The mode to turn to when no step can serve: `on_unsupported` of the client, else of the alias; None: an
    error."""
    of_client: OnUnsupported | None = client.on_unsupported if client is not None else None
    chosen = of_client or alias.on_unsupported
    return None if chosen == "refuse" else chosen


# -- side calls -------------------------------------------------------------------------------------------------------


def is_task(request: InferenceRequest) -> bool:
    """True for a request without tools whose last user message begins with the mark of a side call. Streams are chats:
    Open WebUI puts the mark before a question to documents too, and side calls do not stream."""
    messages = request.fields.get("messages")
    if request.tools or request.stream or messages is None or MARK.encode() not in bytes(messages):
        return False
    try:
        parsed = _decode(messages)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    for message in reversed(parsed if isinstance(parsed, list) else []):
        if isinstance(message, dict) and message.get("role") == "user":
            return _text(message.get("content")).lstrip().startswith(MARK)
    return False


def _text(content: Any) -> str:
    """A message's content as text: a string, or the first text among its parts."""
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text")
        content = next(texts, None)
    return content if isinstance(content, str) else ""
