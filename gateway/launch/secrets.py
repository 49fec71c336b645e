"""Secrets that are written out in a launch block: the flags and variables that hold them, and words that look like one.

A misspelt flag is no flag of the engine, and the word behind it is a secret all the same. So names that are only near
to a secret's count too, where they are none that the engine has."""

from __future__ import annotations

import difflib
import re

MASK = "********"
SECRET_FLAGS = ("api-key", "hf-token")
# In names of variables: HF_TOKEN and APIKEY, but neither TOKENIZERS_PARALLELISM nor MAX_TOKENS.
SECRET = re.compile(
    r"(?:(?<![a-z])token|secrets?|passw(?:or)?d|api_?key|credentials?|private_?key)(?![a-z])", re.IGNORECASE
)
_NEAR = 0.7  # of 1: how much of its letters a misspelt name has in common with a secret's
_ASSIGNMENT = re.compile(r"(\w+)=(.+)", re.ASCII | re.DOTALL)
# The forms in which well-known services give out keys, and a long word of letters and digits without any sign.
_KEY = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:sk|pk|rk|nvapi|glpat|xox[a-z])-[\w-]{6,}|(?:hf|gh[a-z]|gsk|github_pat)_\w{6,}|AKIA[A-Z0-9]{12,}"
    r"|AIza[\w-]{20,}|eyJ[\w-]{8,}\.[\w.-]+|(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{24,})(?![A-Za-z0-9])",
    re.ASCII,
)


def is_secret_flag(name: str) -> bool:
    """Whether a flag that the engine does not have, by its name without dashes, may be meant for one with a secret."""
    name = name.lower().replace("_", "-")
    if any(difflib.SequenceMatcher(None, name, flag).ratio() >= _NEAR for flag in SECRET_FLAGS):
        return True
    return SECRET.search(name.replace("-", "_")) is not None


def masked_keys(text: str) -> str:
    """The text with `********` for every word that looks like a key, and for the value of `NAME=value` where the name
    speaks of a secret. References such as `${KEY}` are none."""
    words = re.split(r"(\s+)", text)
    return "".join(_KEY.sub(MASK, _masked_value(word)) for word in words)


def _masked_value(word: str) -> str:
    match = _ASSIGNMENT.fullmatch(word)
    hides = match is not None and SECRET.search(match[1]) and not match[2].startswith("$")
    return f"{match[1]}={MASK}" if match is not None and hides else word
