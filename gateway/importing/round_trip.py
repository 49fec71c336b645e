"""Loads what was written as the gateway would, and compares it with what was meant."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gateway.config.document import read_document
from gateway.config.load import Loaded, load_text
from gateway.config.problems import Report
from gateway.importing.draft import Draft
from gateway.importing.keys import variable_name

_REFERENCE = re.compile(r"(?<!\$)\$\{([A-Za-z_]\w*)\}", re.ASCII)
_FILE = re.compile(r"(?<!\$)\$\{file:([^{}]*)\}")
_STAND_IN_URL = "http://127.0.0.1:9"


class NotWhatWasMeant(Exception):
    """The text says something else than the draft: a mistake of ours, told rather than written to a file."""


def variables(text: str) -> list[str]:
    """The names that stand as `${NAME}` in the text's values, in order."""
    report = Report("routes.yaml")
    return list(dict.fromkeys(_named(read_document(text, report))))


def prove(text: str, draft: Draft, environ: Mapping[str, str], source: str = "routes.yaml") -> Loaded:
    """What the gateway makes of `text`. Variables that `environ` does not have get a stand-in, and so do files
    of secrets, which may be on another machine.

    Raises ConfigError when it would not be loaded, NotWhatWasMeant when it is not what the draft says.
    """
    report = Report(source)
    read = read_document(text, report)
    report.finish()
    if read != draft.data():
        raise NotWhatWasMeant(f"{source} would not say what was meant: {_difference(read, draft.data())}")
    stand_ins = {name: _stand_in(name, draft) for name in variables(text) if not environ.get(name)}
    without_files = _FILE.sub(lambda match: f"stands-for-{variable_name(match[1])}", text)
    return load_text(without_files, source, {**environ, **stand_ins})


def _stand_in(name: str, draft: Draft) -> str:
    """A value of the kind that is wanted: a URL where it is a backend's, else text that no other key equals."""
    in_url = any(f"${{{name}}}" in str(entry.keys.get("url", "")) for entry in draft.backends.values())
    return _STAND_IN_URL if in_url else f"stands-for-{name}"


def _named(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [name for inner in value.values() for name in _named(inner)]
    if isinstance(value, list):
        return [name for inner in value for name in _named(inner)]
    return _REFERENCE.findall(value) if isinstance(value, str) else []


def _difference(read: Any, meant: Any, path: str = "") -> str:
    """The first path at which the two differ."""
    if isinstance(read, dict) and isinstance(meant, dict):
        for key in [*meant, *(key for key in read if key not in meant)]:
            if read.get(key) != meant.get(key):
                return _difference(read.get(key), meant.get(key), f"{path}.{key}")
    return path.removeprefix(".") or "its top level"
