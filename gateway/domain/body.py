"""The body of a request as JSON: its fields, each as its own bytes, and their values, as lenient as servers read them.
Sizes are bounded before anything is decoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from gateway.errors import GatewayError

VALUES_MOST = 8_000_000  # a value takes two bytes in the body and 64 when it is decoded: 64 MB could become 2 GB
STRINGS_MOST = 1_000_000  # each name and each text is looked at, in every message; numbers are not
_STEP = 4 * 1024 * 1024  # bytes that are counted in a millisecond
# Raised when a part of a body is decoded or encoded that is nested too deeply or is not valid text.
UNREADABLE = (RecursionError, msgspec.MsgspecError, UnicodeError, OverflowError)

_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_any = msgspec.json.Decoder(Any).decode


def read_fields(body: bytes) -> dict[str, Raw]:
    """The body's fields, each as its own bytes. Raises `invalid_request_body`, `request_too_large`."""
    if len(body) > VALUES_MOST and _marks(body) > VALUES_MOST:
        raise GatewayError("request_too_large", f"The request body holds more than {VALUES_MOST:,} values.")
    if len(body) > 3 * STRINGS_MOST and _strings(body) > STRINGS_MOST:  # the shortest one and its comma are three bytes
        raise GatewayError("request_too_large", f"The request body holds more than {STRINGS_MOST:,} strings.")
    try:
        return _decode_fields(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid_body(_body_problem(body, error)) from None
    except RecursionError:
        raise invalid_body("The request body is nested too deeply.") from None


def _marks(body: bytes) -> int:
    """At least the number of values in the JSON: a comma precedes each but the first of a list or object."""
    return sum(_count(body, mark) for mark in (b",", b"[", b"{"))


def _strings(body: bytes) -> int:
    """The number of strings in the JSON, names included."""
    quotes = _count(body, b'"')
    return (quotes if quotes <= 2 * STRINGS_MOST else quotes - body.count(b'\\"')) // 2


def _count(body: bytes, mark: bytes) -> int:
    """How often a byte occurs. In steps, between which other threads run: a large body is read apart."""
    return sum(body.count(mark, at, at + _STEP) for at in range(0, len(body), _STEP))


def unreadable(error: Exception) -> GatewayError:
    """The client's error for an exception of UNREADABLE."""
    if isinstance(error, RecursionError):
        return invalid_body("The request body is nested too deeply.")
    return invalid_body(f"The request body cannot be read: {error}")


def _body_problem(body: bytes, error: Exception) -> str:
    if not body.strip():
        return "The request body is empty: send a JSON object."
    if isinstance(error, msgspec.ValidationError):
        return "The request body must be a JSON object."
    return f"The request body is not valid JSON: {error}"


def invalid_body(message: str, param: str | None = None) -> GatewayError:
    return GatewayError("invalid_request_body", message, param=param)


def value_of(raw: Raw | bytes | str | None) -> Any:
    """The value of JSON, or None where it is absent or does not parse (the backend's own error is more exact)."""
    if raw is None:
        return None
    try:
        return _decode_any(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


_ON, _OFF = ("true", "1", "1.0", "yes", "on", "y", "t"), ("false", "0", "0.0", "no", "off", "n", "f")
_SWITCHES = {**dict.fromkeys(_ON, True), **dict.fromkeys(_OFF, False)}  # as pydantic reads a bool
_DIGITS_MOST = 20


def as_switch(value: Any) -> bool | None:
    """The bool that servers read from this value; None = it is none."""
    if isinstance(value, bool):
        return value
    return _SWITCHES.get(str(value).lower()) if isinstance(value, (str, int, float)) else None


def as_number(value: Any) -> int | None:
    """The whole number that servers read from this value; None = it is none."""
    if type(value) is int:
        return value
    if isinstance(value, str) and value.isdecimal() and len(value) <= _DIGITS_MOST:
        return int(value)
    return int(value) if isinstance(value, float) and value.is_integer() else None


THINKING_SWITCHES = ("enable_thinking", "thinking")  # of chat_template_kwargs, as clients know them


class AskedThinking(NamedTuple):
    """`wish`: a wish, not a demand."""

    on: bool
    wish: bool = False


def _by_think(think: Any) -> AskedThinking | None:
    """Ollama's field: true, false, or a level, which is a wish."""
    if isinstance(think, bool):
        return AskedThinking(think)
    return AskedThinking(think != "none", wish=True) if isinstance(think, str) else None


def _by_template_kwargs(switches: Any) -> AskedThinking | None:
    found = [switches.get(name) for name in THINKING_SWITCHES] if isinstance(switches, dict) else []
    return next((AskedThinking(value) for value in found if isinstance(value, bool)), None)


def _by_thinking(thinking: Any) -> AskedThinking | None:
    """Anthropic's field."""
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if kind in ("enabled", "disabled"):
        return AskedThinking(kind == "enabled")
    return AskedThinking(True, wish=True) if kind == "adaptive" else None


def _by_effort(effort: Any) -> AskedThinking | None:
    if isinstance(effort, dict):  # `reasoning` of the Responses API and of OpenRouter
        effort = effort.get("effort")
    return AskedThinking(effort != "none", wish=True) if isinstance(effort, str) else None


# Field -> what its value asks for. The first field counts, except that a demand overrides a wish.
THINKING_FIELDS: Mapping[str, Callable[[Any], AskedThinking | None]] = MappingProxyType(
    {
        "think": _by_think,
        "chat_template_kwargs": _by_template_kwargs,
        "thinking": _by_thinking,
        "reasoning_effort": _by_effort,
        "reasoning": _by_effort,
    }
)
