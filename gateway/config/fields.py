"""The kinds of values in routes.yaml: each says how it is read, what it looks like in the JSON schema, and, as the
message of its ValueError, what is wrong with a value of another kind."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainValidator, WithJsonSchema

from gateway.config.expand import Expanded
from gateway.config.snapshot import Budget, Network, Secret
from gateway.config.units import (
    BUDGET_PATTERN,
    DURATION_PATTERN,
    SIZE_PATTERN,
    parse_budget,
    parse_duration,
    parse_size,
)

VARIABLE = r"\$\{"  # in the schema every scalar may also be a ${VAR}
DURATIONS = "write 250ms, 5s, 15m or 2h"
_HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*", re.ASCII)
_USERINFO = re.compile(r"//[^/@\s]*@")


def shown(value: Any) -> str:
    """A value as an error may show it: never what a variable held, never the credentials of a URL."""
    if isinstance(value, bool):
        return f"'{str(value).lower()}'"
    if isinstance(value, Expanded):
        return f"{value.source!r} (as expanded)"
    if isinstance(value, str):
        text = _USERINFO.sub("//***@", value)
        return repr(text if len(text) <= 60 else text[:57] + "...")
    if isinstance(value, int | float):
        return f"'{value}'" if abs(value) < 1e18 else "that number"
    return {list: "a list", dict: "a mapping", type(None): "nothing"}.get(type(value), "that")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        hint = f': write "{value}"' if isinstance(value, int | float) and not isinstance(value, bool) else ""
        raise ValueError(f"{shown(value)} is not text{hint}")
    if not value.strip():
        raise ValueError("is empty")
    if any(ord(c) < 32 or ord(c) == 127 for c in value):
        raise ValueError("holds a line break or another control character")
    return str(value).strip()


def _secret(value: Any) -> Secret:
    """As `_text`, and no message shows the value."""
    if not isinstance(value, str):
        raise ValueError("must be text, in quotes")
    text = _text(value)
    if match := re.fullmatch(r"\$([A-Za-z_]\w*)", text):
        raise ValueError(f"would be taken literally; write ${{{match[1]}}}")
    if text.startswith("os.environ/"):
        raise ValueError("'os.environ/' is LiteLLM's word; write ${NAME}")
    return Secret(text)


def _header_secret(value: Any) -> Secret | None:
    """As `_optional_secret`, for what travels in a header: only printable ASCII can."""
    secret = _optional_secret(value)
    if secret is not None and not secret.reveal().isascii():
        raise ValueError("holds a character outside ASCII; no header can carry it")
    return secret


def _optional_secret(value: Any) -> Secret | None:
    empty = isinstance(value, Expanded) and not value.strip()
    return None if empty or value == "none" else _secret(value)


def _yes(value: Any) -> bool:
    if isinstance(value, Expanded) and value in ("true", "false"):
        return value == "true"
    if not isinstance(value, bool):
        hint = {"on": "; write true", "yes": "; write true", "off": "; write false", "no": "; write false"}
        given = value if isinstance(value, str) else ""
        raise ValueError(f"{shown(value)} is not true or false{hint.get(given, '')}")
    return value


def _whole(minimum: int, maximum: int = 10**12) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, Expanded) and re.fullmatch(r"\d{1,18}", value, re.ASCII):
            number = int(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            number = value
        else:
            raise ValueError(f"{shown(value)} is not a whole number")
        if not minimum <= number <= maximum:
            raise ValueError(f"{shown(value)} is out of range ({minimum} to {maximum:,})")
        return number

    return check


def _whole_or_none(minimum: int) -> Callable[[Any], int | None]:
    check = _whole(minimum)

    def checked(value: Any) -> int | None:
        if value == "none":
            return None
        try:
            return check(value)
        except ValueError as error:
            raise ValueError(f"{error}; write a number or none") from None

    return checked


def _usd(value: Any) -> float:
    try:
        number = float(value) if isinstance(value, Expanded) else value
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < math.inf:
        raise ValueError(f"{shown(value)} is not a price; write USD per million tokens, e.g. 0.50")
    return float(number)


def _share(value: Any) -> float:
    try:
        number = float(value) if isinstance(value, Expanded) else value
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= 1:
        raise ValueError(f"{shown(value)} is not a share; write a number from 0 to 1, e.g. 0.1")
    return float(number)


def _duration(value: Any) -> float:
    if isinstance(value, str):
        try:
            return parse_duration(value.strip())
        except ValueError:
            pass
    unit = " (a number needs its unit)" if isinstance(value, int | float) and not isinstance(value, bool) else ""
    raise ValueError(f"{shown(value)} is not a duration{unit}; {DURATIONS}")


def _positive_duration(value: Any) -> float:
    seconds = _duration(value)
    if not seconds:
        raise ValueError(f"{shown(value)} is too short; {DURATIONS}")
    return seconds


def _duration_or(words: Mapping[str, float | None]) -> Callable[[Any], float | None]:
    """A duration in seconds, or what one of these words stands for."""

    def check(value: Any) -> float | None:
        if isinstance(value, str) and value in words:
            return words[value]
        try:
            return _positive_duration(value)
        except ValueError as error:
            raise ValueError(f"{error}, or {' or '.join(words)}") from None

    return check


def _size(value: Any) -> int:
    if isinstance(value, str):
        try:
            if size := parse_size(value.strip()):
                return size
        except ValueError:
            pass
    unit = " (a number needs its unit)" if isinstance(value, int | float) and not isinstance(value, bool) else ""
    raise ValueError(f"{shown(value)} is not a size{unit}; write 64MiB or 119.67GiB")


def _size_or_none(value: Any) -> int | None:
    if value == "none":
        return None
    try:
        return _size(value)
    except ValueError as error:
        raise ValueError(f"{error}, or none") from None


def _budget(value: Any) -> Budget | None:
    if value == "none":
        return None
    if isinstance(value, str):
        try:
            return Budget(*parse_budget(value.strip()))
        except ValueError:
            pass
    raise ValueError(f"{shown(value)} is not a budget; write 5 USD/day, 5 USD/week, 5 USD/month or none")


def _listen(value: Any) -> tuple[str, int]:
    """`0.0.0.0:4000`, `[::]:4000`, `:4000` → (host, port)."""
    text = str(value) if isinstance(value, str) else ""
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    wrong = not colon or (":" in host and not bracketed) or not re.fullmatch(r"[\w.:-]*", host, re.ASCII)
    if wrong or not re.fullmatch(r"\d{1,5}", port, re.ASCII) or int(port) > 65535:
        raise ValueError(f"{shown(value)} is not an address to listen on; write 0.0.0.0:4000 or 127.0.0.1:4000")
    return host or "0.0.0.0", int(port)


def _one_or_many(value: Any) -> list[str]:
    members = value if isinstance(value, list) else [value]
    if not members:
        raise ValueError("is an empty list")
    return [_text(member) for member in members]


def _many(value: Any) -> list[str]:
    if not isinstance(value, list):
        hint = f": write [{value}]" if isinstance(value, str) and not isinstance(value, Expanded) else ""
        raise ValueError(f"{shown(value)} is not a list{hint}")
    return [_text(member) for member in value]


def _host_names(value: Any) -> list[str]:
    """Names as a Host header has them, in lower case: no scheme, no port, no wildcard."""
    names = [name.lower().removesuffix(".") for name in _many(value)]
    for name in names:
        if not _HOST_NAME.fullmatch(name):
            raise ValueError(f"{shown(name)} is not the name of a host; write it without scheme and port: sparkgw.lan")
    return names


def _networks(value: Any) -> list[Network]:
    return [_network(member) for member in _many(value)]


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        pass
    try:
        meant = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"{shown(text)} is no address or network; write 172.17.0.1 or 10.0.0.0/8") from None
    raise ValueError(f"{shown(text)} is an address inside a network; write {meant}, or the address alone")


def _steps(value: Any) -> list[list[str]]:
    if not isinstance(value, list):
        hint = f": write [{value}]" if isinstance(value, str) and not isinstance(value, Expanded) else ""
        raise ValueError(f"{shown(value)} is not a list of steps{hint}")
    return [_one_or_many(step) for step in value]


def _params(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{shown(value)} is not a mapping of request fields, e.g. {{temperature: 0.2}}")
    return value


def _pattern(pattern: str, *words: str) -> dict[str, Any]:
    alternatives = "|".join([*words, pattern])
    return {"type": "string", "pattern": f"^({alternatives})$|{VARIABLE}"}


def _number(minimum: int, *, none: bool = False) -> dict[str, Any]:
    words = f"^none$|{VARIABLE}" if none else VARIABLE
    return {"type": ["integer", "string"], "minimum": minimum, "pattern": words}


_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
_TEXTS = {"type": "array", "items": _TEXT}
_ONE_OR_MANY = {"anyOf": [_TEXT, {**_TEXTS, "minItems": 1}]}

Text = Annotated[str, BeforeValidator(_text), WithJsonSchema(_TEXT)]
SecretText = Annotated[Secret, PlainValidator(_secret), WithJsonSchema(_TEXT)]
OptionalSecret = Annotated[Secret | None, PlainValidator(_optional_secret), WithJsonSchema(_TEXT)]
HeaderSecret = Annotated[Secret | None, PlainValidator(_header_secret), WithJsonSchema(_TEXT)]
Yes = Annotated[bool, BeforeValidator(_yes), WithJsonSchema({"type": ["boolean", "string"], "pattern": VARIABLE})]
Count = Annotated[int, BeforeValidator(_whole(1)), WithJsonSchema(_number(1))]
CountFromZero = Annotated[int, BeforeValidator(_whole(0)), WithJsonSchema(_number(0))]
CountOrNone = Annotated[int | None, PlainValidator(_whole_or_none(1)), WithJsonSchema(_number(1, none=True))]
Usd = Annotated[
    float, PlainValidator(_usd), WithJsonSchema({"type": ["number", "string"], "minimum": 0, "pattern": VARIABLE})
]
Share = Annotated[
    float,
    PlainValidator(_share),
    WithJsonSchema({"type": ["number", "string"], "minimum": 0, "maximum": 1, "pattern": VARIABLE}),
]
Duration = Annotated[float, PlainValidator(_positive_duration), WithJsonSchema(_pattern(DURATION_PATTERN))]
DurationFromZero = Annotated[float, PlainValidator(_duration), WithJsonSchema(_pattern(DURATION_PATTERN))]
DurationOrNone = Annotated[
    float | None, PlainValidator(_duration_or({"none": None})), WithJsonSchema(_pattern(DURATION_PATTERN, "none"))
]
DurationOrAuto = Annotated[
    float | None,
    PlainValidator(_duration_or({"auto": None, "none": math.inf})),
    WithJsonSchema(_pattern(DURATION_PATTERN, "auto", "none")),
]
Size = Annotated[int, PlainValidator(_size), WithJsonSchema(_pattern(SIZE_PATTERN))]
SizeOrNone = Annotated[int | None, PlainValidator(_size_or_none), WithJsonSchema(_pattern(SIZE_PATTERN, "none"))]
BudgetText = Annotated[Budget | None, PlainValidator(_budget), WithJsonSchema(_pattern(BUDGET_PATTERN, "none"))]
Listen = Annotated[
    tuple[str, int], PlainValidator(_listen), WithJsonSchema(_pattern(r"(\[[0-9a-fA-F:.]*\]|[\w.-]*):\d{1,5}"))
]
Names = Annotated[list[str], PlainValidator(_many), WithJsonSchema(_TEXTS)]
HostNames = Annotated[list[str], PlainValidator(_host_names), WithJsonSchema(_TEXTS)]
Networks = Annotated[list[Network], PlainValidator(_networks), WithJsonSchema(_TEXTS)]
OneOrMany = Annotated[list[str], PlainValidator(_one_or_many), WithJsonSchema(_ONE_OR_MANY)]
Steps = Annotated[
    list[list[str]],
    PlainValidator(_steps),
    WithJsonSchema({"type": "array", "minItems": 1, "items": _ONE_OR_MANY}),
]
Params = Annotated[dict[str, Any], PlainValidator(_params), WithJsonSchema({"type": "object"})]
Free = Annotated[Any, WithJsonSchema({})]
