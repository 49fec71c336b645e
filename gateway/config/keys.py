"""The key paths of routes.yaml, read off the definitions: `backends.*.timeouts.idle`; `*` is a name that the operator
chose. Also here: which key a misspelt one was meant to be."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from gateway.config.problems import Path, Report
from gateway.config.setting import Setting, settings_of, walk
from gateway.config.snapshot import RoutesFile
from gateway.config.suggest import for_unknown_key


@cache
def definitions() -> Mapping[str, Setting]:
    """Every key of the file by its path, in the file's order."""
    return dict(walk(RoutesFile))


@cache
def all_keys() -> tuple[str, ...]:
    return tuple(definitions())


def keys_of(section: str) -> tuple[str, ...]:
    """The keys allowed in `section` (`""` = the top level, `backends.*`)."""
    prefix = f"{section}." if section else ""
    rest = (path.removeprefix(prefix) for path in all_keys() if path.startswith(prefix))
    return tuple(key for key in rest if "." not in key)


def pattern_of(path: Path) -> str:
    """`("backends", "qwen36", "url")` → `backends.*.url`."""
    words = [part for part in path if isinstance(part, str)]
    if len(words) > 1 and words[0] in names_of_entries():
        words[1] = "*"
    return ".".join(words)


@cache
def names_of_entries() -> tuple[str, ...]:
    """The sections whose entries have names that the operator chose: `nodes`, `backends`, `aliases`, `clients`."""
    return tuple(key for key, found in settings_of(RoutesFile).items() if found.named)


def was_tried(key: str, section: Path, report: Report) -> bool:
    """Whether `key` of the section was written but wrong, under its own name or misspelt: it has been reported, and
    that it is missing is no second mistake."""
    if report.lost(*section, key):
        return True
    pattern = pattern_of(section)
    siblings = keys_of(pattern)
    unknown = {str(one[-1]) for one in report.dropped if one[:-1] == section and one[-1] not in siblings}
    return any(for_unknown_key(word, pattern, siblings, ()) == f"did you mean '{key}'?" for word in unknown)


def is_free(path: Path) -> bool:
    """True inside values whose keys are not the gateway's: `params`, `launch`, `profiles`, `modes`."""
    pattern = pattern_of(path)
    return any(pattern == key or pattern.startswith(f"{key}.") for key in _free())


@cache
def _free() -> tuple[str, ...]:
    return tuple(key for key, found in definitions().items() if found.kind is not None and found.kind.free)
