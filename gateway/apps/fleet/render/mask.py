"""Texts of rendered files as they may be shown: without the secrets that are written out in them.

References without a default (`${NAME}`) are shown. A secret of an installed file need not be the one of routes.yaml, so
secrets are found by their place too: the value of a variable whose name speaks of one, and of a flag that takes one."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable

from gateway.launch.secrets import MASK, SECRET, SECRET_FLAGS

_FLAGS = "|".join(SECRET_FLAGS)
_NO_REFERENCE = r"(?!\"?\$\{\w+(?:\}|:\?))"  # `:?` = compose asks for it
_PLACES = (
    # NAME=value of the script and of units, NAME: "value" of compose; two words name no secret
    re.compile(
        rf"(?im)(?<![\w-])(?!NOPASSWD: |LoadCredential=)(\w*(?:{SECRET.pattern})\w*(?:=|: ))"
        rf"{_NO_REFERENCE}(\S.*?)( \\)?$"
    ),
    re.compile(rf"(?m)^(\s*--(?:{_FLAGS})[ =]){_NO_REFERENCE}(\S.*?)( \\)?$"),
    re.compile(rf"(?m)^(\s*- \"--(?:{_FLAGS})\"\n\s*- ){_NO_REFERENCE}(\S.*)()$"),
    re.compile(rf"(?m)^(\s*- \"--(?:{_FLAGS})=){_NO_REFERENCE}(.*)(\")$"),
    re.compile(rf"(?m)(Bearer %s\\n' ){_NO_REFERENCE}(\S.*?)( \|)$"),
)


def _is_long(secret: str) -> bool:
    """Whether the value hardly is anywhere by chance. A shorter one is found by its place alone."""
    return len(secret) >= 6


def masked(text: str, secrets: Iterable[str] = ()) -> str:
    """The text with `********` in the place of every secret. `secrets`: values known to be in it."""
    for secret in sorted(filter(_is_long, secrets), key=len, reverse=True):
        for written in (shlex.quote(secret), json.dumps(secret)[1:-1], secret.replace("$", "$$"), secret):
            text = text.replace(written, MASK)
    for place in _PLACES:
        text = place.sub(lambda match: f"{match[1]}{MASK}{match[3] or ''}", text)
    return text
