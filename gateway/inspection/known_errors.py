"""The known error messages of servers (known_errors.toml), and what they mean."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

POOL_FULL = "Context size has been exceeded."  # llama-server, to every request, when the memory they share is full
_PART = re.compile(r"\{([a-z]+)\}")
# The message of a server that could not read a body; it contains values of the body.
_VALIDATION = re.compile(r"\s*(?:[0-9]+ validation errors?\b|\[?\{)|.*(?:'input':|\"input\":|input_value=)", re.DOTALL)
_QUOTED = re.compile(r"(?<!\w)'[^']*'(?!\w)|\"[^\"]*\"|`[^`]*`|“[^”]*”")

Table = tuple[tuple[re.Pattern[str], Mapping[str, str]], ...]
"""The texts of one table, each with the other keys of its row."""


@cache
def _tables() -> Mapping[str, Table]:
    """Read for the first error that comes: that takes a fiftieth of a start."""
    data = tomllib.loads(Path(__file__).with_name("known_errors.toml").read_text(encoding="utf-8"))
    parts: dict[str, str] = {}
    for name, text in data.pop("parts").items():
        parts[name] = _PART.sub(lambda found: parts[found[1]], text)

    def compiled(text: str) -> re.Pattern[str]:
        return re.compile(_PART.sub(lambda found: parts[found[1]], text))

    return {name: tuple((compiled(text), row) for row in rows for text in row["texts"]) for name, rows in data.items()}


def whole(table: str, message: str) -> tuple[re.Match[str], Mapping[str, str]] | None:
    """(match, row) of the text of this table that the message is as a whole."""
    for text, row in _tables()[table]:
        if (found := text.fullmatch(message)) is not None:
            return found, row
    return None


def within(table: str, message: str) -> re.Match[str] | None:
    """The first place in the message where a text of this table stands."""
    found = [found for text, _ in _tables()[table] if (found := text.search(message)) is not None]
    return min(found, key=re.Match.start, default=None)


def is_validation(message: str) -> bool:
    """Is it the message of a server that could not read a body, with values of the body?"""
    return _VALIDATION.match(message) is not None


def without_quotations(message: str) -> str:
    """The message with its quotations taken out."""
    return _QUOTED.sub(" ", message)


def read_lack(message: str) -> str | None:
    """The missing capability, in a message that is as a whole a known text."""
    found = whole("lacks", message)
    return None if found is None else found[1]["lack"]


def guess_lack(message: str) -> tuple[str, str] | None:
    """(phrase, missing capability) of any other message that names one outside of its quotations."""
    if is_validation(message):
        return None
    plain = without_quotations(message)
    for text, row in _tables()["like_lacks"]:
        if (found := text.search(plain)) is not None:
            return found[0], row["lack"]
    return None


def read_batch_limit(message: str) -> int | None:
    """The inputs that a server takes in one request, in a message that is as a whole a known text."""
    found = whole("batch_limits", message)
    return None if found is None else int(found[0][1]) or None


def read_missing_model(message: str) -> str | None:
    """The name of a model that is not served, in a message that is as a whole a known text."""
    found = whole("no_such_model", message)
    return None if found is None else found[0]["name"]


def like_missing_model(message: str) -> bool:
    """Does the message mention, outside of its quotations, a model that does not exist?"""
    return within("like_no_model", without_quotations(message)) is not None


def is_missing_path(message: str) -> bool:
    """Is this a known message of a server or a proxy for an unknown path? An empty message counts too."""
    return not message or whole("not_there", message) is not None


def is_missing_use(message: str) -> bool:
    """Is this a known message of a server whose model does not do what the endpoint is for?"""
    return whole("no_such_use", message) is not None


def is_unsupported(message: str) -> bool:
    """Is this a known message of a server that cannot do what this one request asks for?"""
    return whole("unsupported", message) is not None


def is_busy(message: str) -> bool:
    """Is this a known message for a full queue?"""
    return whole("busy", message) is not None


class ServerFault(NamedTuple):
    """What a 5xx means, by the keys of the table `faults`."""

    kind: str
    lack: str | None = None
    says: str = ""


def read_server_fault(message: str) -> ServerFault | None:
    """The meaning of a 5xx with this message; None = it is a failure, as a 5xx says."""
    found = whole("faults", message)
    return None if found is None else ServerFault(found[1]["kind"], found[1].get("lack"), found[1].get("says", ""))


def is_unreadable(message: str) -> bool:
    """Does a server say that it cannot read what its own model wrote?"""
    fault = read_server_fault(message)
    return fault is not None and fault.kind == "empty"


def is_pool_full(message: object) -> bool:
    """Is this llama-server's message to every request that it runs when the memory that they share is full?"""
    return message == POOL_FULL


# -- a prompt, or the limit of its answer, beyond the window, and the numbers in the message ---------------------------
# A window is learned only from a message that is one of the texts as a whole (`Overflow.sound`). Any other message
# counts for the refused request alone (`guess_overflow`).

LEAST_WINDOW = 256  # tokens; no server is started with less, so smaller numbers are not believed


class Overflow(NamedTuple):
    """The window and the prompt that a refusal names, in tokens. `least`: the prompt has at least so many, and was not
    counted further. `limit_only`: the prompt fits, the answer's limit does not. `sound`: the message is one of
    the texts and its numbers are consistent."""

    window: int | None = None
    prompt: int | None = None
    least: bool = False
    limit_only: bool = False
    sound: bool = False


def read_overflow(message: str) -> Overflow | None:
    """The numbers of a message that is, as a whole, a known text about a prompt or a limit beyond the window."""
    found = whole("overflows", message)
    return None if found is None else _numbers(found[0])


def _numbers(found: re.Match[str]) -> Overflow:
    read = {name: int(value) for name, value in found.groupdict().items() if value and name != "least"}
    if "most" in read:
        return Overflow(read["most"], read["prompt"])
    window, prompt, limit, total = read["window"], read.get("prompt"), read.get("limit", 0), read.get("total")
    prompt = prompt and prompt + read.get("more", 0)
    least = bool(found.groupdict().get("least"))
    asked = (prompt or 0) + limit
    sound = window >= LEAST_WINDOW and (asked > window or (not limit and asked == window))
    sound = sound and (total is None or total == asked)
    return Overflow(window, prompt, least, limit_only=prompt is None or (prompt < window and limit > 0), sound=sound)


def guess_overflow(message: str) -> tuple[str, Overflow] | None:
    """(phrase, numbers) of any other message that mentions a window outside of its quotations."""
    if is_validation(message):
        return None
    plain = without_quotations(message)
    found = within("like_overflows", plain)
    if found is None:
        return None
    window, prompt = _number("like_windows", plain), _number("like_prompts", plain)
    fits = window is not None and prompt is not None and prompt < window
    least = "at least" in plain
    return found[0], Overflow(window, prompt, least, limit_only=fits or "cannot be greater than max_model_len" in plain)


def _number(table: str, text: str) -> int | None:
    found = within(table, text)
    return None if found is None else int(found[1])
