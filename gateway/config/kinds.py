"""The kinds of values in routes.yaml.

A kind says how a value is read, what it looks like in the JSON schema, how the reference page names it and shows a
default, and, as the message of its ValueError, what is wrong with a value of another kind ("message; what to write").
"""

from __future__ import annotations

import ipaddress
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from gateway.config.problems import Read, each
from gateway.config.secret import ExpandedText, Secret, shown
from gateway.config.units import (
    BUDGET_PATTERN,
    DURATION_PATTERN,
    SIZE_PATTERN,
    Budget,
    format_duration,
    format_size,
    parse_budget,
    parse_duration,
    parse_size,
)

Parsed = TypeVar("Parsed")
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

VARIABLE = r"\$\{"  # in the schema every scalar may also be a ${VAR}
DURATIONS = "write 250ms, 5s, 15m or 2h"
SIZES = "write 64MiB or 119.67GiB"
HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*", re.ASCII)


def as_written(value: Any) -> str:
    """A default as routes.yaml would have it; a list or mapping as default is explained by the help of its key."""
    if value is None or isinstance(value, tuple | Mapping):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, eq=False)
class Kind:
    """One kind of value.

    `read` turns a value of the YAML into the snapshot's value, or raises ValueError. `schema` is its JSON schema, and
    `words` name it on the reference page. `write` is the reverse of `read`, for showing a default ("" = none is shown).
    `holds_any`: a mapping whose keys are not the gateway's. `private`: text of the operator's, which may hold a
    variable.
    """

    read: Callable[[Any], Any]
    schema: Mapping[str, Any]
    words: str
    write: Callable[[Any], str] = as_written
    holds_any: bool = False
    private: bool = False


def read_text(value: Any) -> str:
    if not isinstance(value, str):
        as_text = as_written(value)
        hint = f'write "{as_text}"' if isinstance(value, int | float) else "write it as text, in quotes"
        raise ValueError(f"{shown(value)} is not text; {hint}")
    if not value.strip():
        raise ValueError("is empty")
    refuse_control_characters(value)
    return value.strip() if isinstance(value, ExpandedText) else str(value).strip()


def refuse_control_characters(text: str) -> None:
    if any(ord(c) < 32 or ord(c) == 127 for c in text):
        raise ValueError("holds a line break or another control character")


def _secret(value: Any) -> Secret:
    """As `read_text`, and no message shows the value."""
    if not isinstance(value, str):
        raise ValueError("must be text, in quotes")
    text = read_text(value)
    if match := re.fullmatch(r"\$([A-Za-z_]\w*)", text):
        raise ValueError(
            f"would be taken literally; write ${{{'NAME' if isinstance(text, ExpandedText) else match[1]}}}"
        )
    if text.startswith("os.environ/"):
        raise ValueError("'os.environ/' is LiteLLM's word; write ${NAME}")
    return Secret(str(text))


def _header_secret(value: Any) -> Secret | None:
    """As `_optional_secret`, for what travels in a header: only printable ASCII can."""
    secret = _optional_secret(value)
    if secret is not None and not secret.reveal().isascii():
        raise ValueError("holds a character outside ASCII; no header can carry it")
    return secret


def _optional_secret(value: Any) -> Secret | None:
    empty = isinstance(value, ExpandedText) and not value.strip()
    return None if empty or value == "none" else _secret(value)


def _secrets(value: Any) -> tuple[Secret, ...]:
    if not isinstance(value, list):
        raise ValueError("is not a list; write [...]")
    return tuple(each(enumerate(value), _secret))


def _yes(value: Any) -> bool:
    if isinstance(value, ExpandedText) and value in ("true", "false"):
        return value == "true"
    if not isinstance(value, bool):
        meant = {"on": "true", "yes": "true", "off": "false", "no": "false", "true": "true", "false": "false"}
        given = meant.get(value) if isinstance(value, str) and not isinstance(value, ExpandedText) else None
        hint = "" if given is None else f"; drop the quotes: {given}" if given == value else f"; write {given}"
        raise ValueError(f"{shown(value)} is not true or false{hint}")
    return value


def _whole(minimum: int, maximum: int = 10**12) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, ExpandedText) and re.fullmatch(r"\d{1,18}", value, re.ASCII):
            number = int(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            number = value
        else:
            raise ValueError(f"{shown(value)} is not a whole number{_as_digits(value)}")
        if not minimum <= number <= maximum:
            raise ValueError(f"{shown(value)} is out of range ({minimum} to {maximum:,})")
        return number

    return check


def _as_digits(value: Any) -> str:
    """What to write for a number in quotes, or with a unit; "" where there is neither."""
    if not isinstance(value, str) or isinstance(value, ExpandedText):
        return ""
    if re.fullmatch(r"\s*\d{1,18}(\.\d+)?\s*", value, re.ASCII):
        return f"; drop the quotes: {value.strip()}"
    return "; write all its digits, as in 131072" if re.fullmatch(r"\d[\d_.,]*\s*([kKmM]i?)?", value, re.ASCII) else ""


def _number(noun: str, most: float, hint: str) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        try:
            number = float(value) if isinstance(value, ExpandedText) else value
        except ValueError:
            number = None
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= most:
            raise ValueError(f"{shown(value)} is not a {noun}{_as_digits(value) or f'; write {hint}'}")
        return float(number)

    return check


def _parsed(value: Any, parse: Callable[[str], Parsed], noun: str, hint: str) -> Parsed:
    """Text as `parse` reads it; a number alone needs its unit."""
    if isinstance(value, str):
        try:
            return parse(value.strip())
        except ValueError:
            pass
    unit = " (a number needs its unit)" if isinstance(value, int | float) and not isinstance(value, bool) else ""
    raise ValueError(f"{shown(value)} is not a {noun}{unit}; {hint}")


def _duration(value: Any) -> float:
    return _parsed(value, parse_duration, "duration", DURATIONS)


def _positive_duration(value: Any) -> float:
    seconds = _duration(value)
    if not seconds:
        raise ValueError(f"{shown(value)} is too short; {DURATIONS}")
    return seconds


def _size(value: Any) -> int:
    size = _parsed(value, parse_size, "size", SIZES)
    if not size:
        raise ValueError(f"{shown(value)} is not a size; {SIZES}")
    return size


def _or(read: Callable[[Any], Read], words: Mapping[str, Any], hint: str = "") -> Callable[[Any], Any]:
    """As `read`, or what one of these words stands for. `hint`: what to write where `read` says nothing of it."""

    def check(value: Any) -> Any:
        if isinstance(value, str) and value in words:
            return words[value]
        try:
            return read(value)
        except ValueError as error:
            more = f", or {' or '.join(words)}" if not hint else "" if "; " in str(error) else f"; {hint}"
            raise ValueError(f"{error}{more}") from None

    return check


def _per_hour(value: Any) -> int:
    found = re.fullmatch(r"([0-9]{1,4})(?: *per hour)?", str(value).strip())
    if found is None or not int(found[1]):
        raise ValueError(f"{shown(value)} is not a number per hour; write 3 per hour")
    return int(found[1])


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


def _one_or_many(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        return (read_text(value),)
    if not value:
        raise ValueError("is an empty list")
    return tuple(each(enumerate(value), read_text))


def _list_of(read: Callable[[Any], Read], noun: str = "list", *, once: bool = False) -> Callable[[Any], Any]:
    """A list, each member as `read` takes it. `once`: one that is repeated counts once."""

    def check(value: Any) -> tuple[Read, ...]:
        if not isinstance(value, list):
            hint = f"; write [{value}]" if isinstance(value, str) and not isinstance(value, ExpandedText) else ""
            raise ValueError(f"{shown(value)} is not a {noun}{hint}")
        found = each(enumerate(value), read)
        return tuple(dict.fromkeys(found) if once else found)

    return check


def mapping_of(value: Any, what: str) -> dict[Any, Any]:
    """A mapping. `what`: of what, and behind "; " what to write."""
    if not isinstance(value, dict):
        raise ValueError(f"{shown(value)} is not a mapping of {what}")
    return value


def _host_name(value: Any) -> str:
    """A name as a Host header has it, in lower case: no scheme, no port, no wildcard."""
    text = read_text(value)
    name = text.lower().removesuffix(".")
    if not HOST_NAME.fullmatch(name):
        raise ValueError(f"{shown(text)} is not the name of a host; write it without scheme and port: sparkgw.lan")
    return name


def _picture_source(value: Any) -> str:
    """The beginning of an address with scheme, host and path: "https://" (any host) or "https://host/path"."""
    text = read_text(value)
    parts = urlsplit(text)
    if parts.scheme not in ("https", "http") or "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            f"{shown(text)} is no beginning of an address; write https://images.example.com/path or https://"
        )
    return f"{parts.scheme}://{parts.netloc.lower()}{parts.path if parts.netloc else ''}"


def _network(value: Any) -> Network:
    text = read_text(value)
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        pass
    try:
        meant = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"{shown(text)} is no address or network; write 172.17.0.1 or 10.0.0.0/8") from None
    network = "the network" if isinstance(text, ExpandedText) else meant
    raise ValueError(f"{shown(text)} is an address inside a network; write {network}, or the address alone")


def _pattern(pattern: str, *words: str) -> dict[str, Any]:
    alternatives = "|".join([*words, pattern])
    return {"type": "string", "pattern": f"^({alternatives})$|{VARIABLE}"}


def _number_schema(minimum: int, **more: Any) -> dict[str, Any]:
    return {"type": ["integer", "string"], "minimum": minimum, "pattern": VARIABLE, **more}


def _duration_or(words: Mapping[str, Any], name: str) -> Kind:
    """A duration, or one of these words, the first of which stands for None."""
    none = next(iter(words))

    def write(seconds: float | None) -> str:
        return none if seconds is None else "none" if math.isinf(seconds) else format_duration(seconds)

    return Kind(_or(_positive_duration, words), _pattern(DURATION_PATTERN, *words), name, write)


def _count_or(words: Mapping[str, Any], name: str) -> Kind:
    pattern = f"^({'|'.join(words)})$|{VARIABLE}"
    return Kind(_or(_whole(1), words, "write a number or none"), _number_schema(1, pattern=pattern), name)


def _size_as_written(size: int | None) -> str:
    return "" if size is None else format_size(size)


_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
_TEXTS = {"type": "array", "items": _TEXT}
_ONE_OR_MANY = {"anyOf": [_TEXT, {**_TEXTS, "minItems": 1}]}
_YES = {"type": ["boolean", "string"], "pattern": VARIABLE}
_PRICE = {"type": ["number", "string"], "minimum": 0, "pattern": VARIABLE}
_DURATION = _pattern(DURATION_PATTERN)
_LISTEN = _pattern(r"(\[[0-9a-fA-F:.]*\]|[\w.-]*):\d{1,5}")

Text = Annotated[str, Kind(read_text, _TEXT, "text", private=True)]
SecretText = Annotated[Secret, Kind(_secret, _TEXT, "text", private=True)]
OptionalSecret = Annotated[Secret | None, Kind(_optional_secret, _TEXT, "text or none", private=True)]
Secrets = Annotated[tuple[Secret, ...], Kind(_secrets, _TEXTS, "list of texts", private=True)]
HeaderSecret = Annotated[Secret | None, Kind(_header_secret, _TEXT, "text or none", private=True)]
Yes = Annotated[bool, Kind(_yes, _YES, "true or false")]
Count = Annotated[int, Kind(_whole(1), _number_schema(1), "count")]
CountFromZero = Annotated[int, Kind(_whole(0), _number_schema(0), "count or 0")]
CountToMillion = Annotated[int, Kind(_whole(0, 10**6), _number_schema(0, maximum=10**6), "count to a million, or 0")]
CountOrNone = Annotated[int | None, _count_or({"none": None}, "count or none")]
AUTO = 0  # the word `auto` for a count
SlotCount = Annotated[int | None, _count_or({"none": None, "auto": AUTO}, "count, auto or none")]
Usd = Annotated[float, Kind(_number("price", sys.float_info.max, "USD per million tokens, e.g. 0.50"), _PRICE, "USD")]
_SHARE = _number("share", 1, "a number from 0 to 1, e.g. 0.1")
Share = Annotated[float, Kind(_SHARE, {**_PRICE, "maximum": 1}, "0 to 1")]
Number = Annotated[float, Kind(_number("number", sys.float_info.max, "e.g. 7.18"), _PRICE, "number")]
Duration = Annotated[float, Kind(_positive_duration, _DURATION, "duration", format_duration)]
DurationFromZero = Annotated[float, Kind(_duration, _DURATION, "duration", format_duration)]
DurationOrNone = Annotated[float | None, _duration_or({"none": None}, "duration or none")]
DurationOrAuto = Annotated[float | None, _duration_or({"auto": None, "none": math.inf}, "duration, auto or none")]
Size = Annotated[int, Kind(_size, _pattern(SIZE_PATTERN), "size", _size_as_written)]
SizeOrNone = Annotated[
    int | None, Kind(_or(_size, {"none": None}), _pattern(SIZE_PATTERN, "none"), "size or none", _size_as_written)
]
PerHour = Annotated[int, Kind(_per_hour, _pattern(r"[0-9]+ per hour"), "number per hour", lambda n: f"{n} per hour")]
_BUDGETS = "write 5 USD/day, 5 USD/week, 5 USD/month or none"
_BUDGET = _or(partial(_parsed, parse=parse_budget, noun="budget", hint=_BUDGETS), {"none": None}, _BUDGETS)
BudgetText = Annotated[Budget | None, Kind(_BUDGET, _pattern(BUDGET_PATTERN, "none"), "budget or none")]
Listen = Annotated[tuple[str, int], Kind(_listen, _LISTEN, "HOST:PORT", lambda at: f"{at[0]}:{at[1]}")]
_LISTENS = {"type": "array", "items": _LISTEN}
Listens = Annotated[tuple[tuple[str, int], ...], Kind(_list_of(_listen), _LISTENS, "list of HOST:PORT")]
Names = Annotated[tuple[str, ...], Kind(_list_of(read_text), _TEXTS, "list of names", private=True)]
HostNames = Annotated[tuple[str, ...], Kind(_list_of(_host_name, once=True), _TEXTS, "list of names")]
_PICTURES = _list_of(_picture_source, once=True)
PictureSources = Annotated[tuple[str, ...], Kind(_PICTURES, _TEXTS, "list of beginnings of addresses")]
Networks = Annotated[tuple[Network, ...], Kind(_list_of(_network), _TEXTS, "list of addresses or networks")]
OneOrMany = Annotated[tuple[str, ...], Kind(_one_or_many, _ONE_OR_MANY, "name or list of names")]
_STEPS = {"type": "array", "minItems": 1, "items": _ONE_OR_MANY}
Steps = Annotated[tuple[tuple[str, ...], ...], Kind(_list_of(_one_or_many, "list of steps"), _STEPS, "list of steps")]
_PARAMS = partial(mapping_of, what="request fields, e.g. {temperature: 0.2}")
Params = Annotated[Mapping[str, Any], Kind(_PARAMS, {"type": "object"}, "mapping", holds_any=True, private=True)]
