"""Which names operators may choose: they travel in headers, metric labels and paths."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gateway.config.problems import Report

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")
_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,127}")
_GLOB = re.compile(r"[A-Za-z0-9*?\[][A-Za-z0-9._:@/+*?\[\]!-]{0,127}")


def check_names(section: str, names: Iterable[str], report: Report) -> None:
    pattern = _ALIAS if section == "aliases" else _PLAIN
    for name in names:
        if section == "aliases" and any(c in name for c in "*?["):
            report.error((section, name), "a glob is no name", "globs go into `also` of an alias")
        elif not pattern.fullmatch(name):
            allowed = "letters, digits and . _ : @ -" + (" / +" if section == "aliases" else "")
            report.error((section, name), "a name that cannot be used", f"allowed are {allowed}, at most 128")


def is_further_name(name: str) -> bool:
    """True for what may stand in `also`: an alias name, or a glob over alias names."""
    return bool(_GLOB.fullmatch(name))
