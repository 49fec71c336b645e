"""A routes.yaml that is being made: plain data with comments, and notes for the person who asked for it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.config.problems import Path, Problem

Kind = Literal["left_out", "changed", "to_do"]


@dataclass(frozen=True, slots=True)
class Note:
    """One thing of the source that is not the same here. `left_out` = it has no counterpart, `changed` = it works in
    another way, `to_do` = somebody has to act before the file can be used. The problem's hint says what to do."""

    kind: Kind
    problem: Problem


@dataclass(slots=True)
class Entry:
    """A backend, an alias or a client: its keys as routes.yaml has them. `comment` stands on lines of its own before
    it, `remarks` behind single keys."""

    keys: dict[str, Any]
    comment: list[str] = field(default_factory=list)
    remarks: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Draft:
    """The file to be. `head` are comment lines. `after` (a section's name -> lines behind it) and `tail` stand there as
    they are, `#` included."""

    head: list[str] = field(default_factory=list)
    server: dict[str, Any] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    nodes: dict[str, Entry] = field(default_factory=dict)
    backends: dict[str, Entry] = field(default_factory=dict)
    aliases: dict[str, Entry] = field(default_factory=dict)
    clients: dict[str, Entry] = field(default_factory=dict)
    after: dict[str, list[str]] = field(default_factory=dict)
    tail: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def data(self) -> dict[str, Any]:
        """What the written file says, as plain data: an alias that only says `use` has its short form."""
        sections: dict[str, Any] = {"server": self.server, "defaults": self.defaults}
        for name in ("nodes", "backends", "aliases", "clients"):
            sections[name] = {key: entry.keys for key, entry in getattr(self, name).items()}
        sections["aliases"] = {n: k["use"] if list(k) == ["use"] else k for n, k in sections["aliases"].items()}
        return {name: section for name, section in sections.items() if section}


@dataclass(slots=True)
class Notes:
    """Collects notes about one source; `line` finds the line of a path in it."""

    file: str
    line_of: Any  # (Path) -> int | None
    found: list[Note] = field(default_factory=list)

    def add(self, kind: Kind, path: Path, message: str, hint: str | None = None) -> None:
        note = Note(kind, Problem(self.file, self.line_of(path), shown_path(path), message, hint))
        if note not in self.found:
            self.found.append(note)

    def left_out(self, path: Path, message: str = "has no counterpart here", hint: str | None = None) -> None:
        self.add("left_out", path, message, hint)

    def changed(self, path: Path, message: str, hint: str | None = None) -> None:
        self.add("changed", path, message, hint)

    def to_do(self, path: Path, message: str, hint: str | None = None) -> None:
        self.add("to_do", path, message, hint)

    def in_order(self) -> list[Note]:
        return sorted(self.found, key=lambda note: note.problem.line or 0)


def shown_path(path: Path) -> str:
    """`("model_list", 0, "model_name")` -> `model_list[0].model_name`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


# -- names ------------------------------------------------------------------------------------------------------------


def backend_name(text: str) -> str:
    """`text` with what no backend's name may hold made `-`: `meta/Llama 3.1:8b` -> `meta-Llama-3.1:8b`."""
    return _slug(text, r"[^A-Za-z0-9._:@-]+") or "backend"


def alias_name(text: str) -> str:
    """The same for an alias, which may also have `/` and `+`."""
    return _slug(text, r"[^A-Za-z0-9._:@/+-]+") or "alias"


def _slug(text: str, unwanted: str) -> str:
    return re.sub(r"^[^A-Za-z0-9]+", "", re.sub(unwanted, "-", text)).rstrip("-")[:100]


def tail_of(model: str) -> str:
    """The last part of a model's name: `RedHatAI/Qwen3.6-35B` -> `Qwen3.6-35B`."""
    return model.rstrip("/").rsplit("/", 1)[-1]


def unique(name: str, taken: Iterable[str], *further: str) -> str:
    """`name`, else with one of `further` behind it, else with a number."""
    taken = set(taken)
    tried = [name, *(f"{name}-{word}" for word in further if word)]
    numbered = (f"{name}-{number}" for number in range(2, len(taken) + 3))
    return next(one for one in (*tried, *numbered) if one not in taken)
