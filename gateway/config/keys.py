"""All key paths of routes.yaml, read off the models: `backends.*.timeouts.idle`; `*` is a name the operator chose."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel

from gateway.config.models import RoutesFile
from gateway.config.problems import Path


def _section_in(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """(the model inside an annotation, whether it is the value of a mapping)."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is dict:
        return _section_in(arguments[1])[0], True
    for argument in arguments:
        if (found := _section_in(argument))[0]:
            return found
    return None, False


def _walk(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        yield path
        section, named = _section_in(field.annotation)
        if section:
            yield from _walk(section, f"{path}.*." if named else f"{path}.")


@cache
def all_keys() -> tuple[str, ...]:
    return tuple(_walk(RoutesFile, ""))


def keys_of(section: str) -> tuple[str, ...]:
    """The keys allowed in `section` (`""` = the top level, `backends.*`)."""
    prefix = f"{section}." if section else ""
    rest = (path.removeprefix(prefix) for path in all_keys() if path.startswith(prefix))
    return tuple(key for key in rest if "." not in key)


def pattern_of(path: Path) -> str:
    """`("backends", "qwen36", "url")` → `backends.*.url`."""
    words = [part for part in path if isinstance(part, str)]
    if len(words) > 1 and words[0] in ("nodes", "backends", "aliases", "clients"):
        words[1] = "*"
    return ".".join(words)


def is_free(path: Path) -> bool:
    """True inside values whose keys are not ours: `params`, `launch`, `profiles`, `modes`."""
    pattern = pattern_of(path)
    free = ("aliases.*.params", "backends.*.launch", "launch", "profiles", "modes")
    return any(pattern == key or pattern.startswith(f"{key}.") for key in free)
