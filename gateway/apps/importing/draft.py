"""A routes.yaml in the making: plain data with comments, and notes for the person who asked for it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.config.problems import ConfigError, Path, Problem
from gateway.config.units import is_further_name

NOTES_MOST = 5_000
NAMES_MOST = 1_000  # backends, nodes or aliases of one draft
TEXT_MOST = 1024 * 1024  # characters of a script or a unit
STEPS_MOST = 2_000_000  # words that are read, and characters that variables put in

Kind = Literal["left_out", "changed", "to_do"]


@dataclass(frozen=True, slots=True)
class ImportNote:
    """A setting of the source that differs here. `left_out`: it has no counterpart; `changed`: it works in another way;
    `to_do`: the file cannot be used before the user acts. The problem's hint says what to do."""

    kind: Kind
    problem: Problem


@dataclass(slots=True)
class DraftEntry:
    """A backend, an alias or a client: its keys as routes.yaml has them. `comment`: lines before it;
    `remarks`: key -> comment behind it. `origins`: further name of an alias -> where the source has it."""

    keys: dict[str, Any]
    comment: list[str] = field(default_factory=list)
    remarks: dict[str, str] = field(default_factory=dict)
    origins: dict[str, Path] = field(default_factory=dict)


@dataclass(slots=True)
class Draft:
    """The file to be written. `modes`: name -> backends. `head`: comment lines without `#`. `after` (section -> lines
    behind it) and `tail`: lines that are written as they are, `#` included."""

    head: list[str] = field(default_factory=list)
    server: dict[str, Any] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    nodes: dict[str, DraftEntry] = field(default_factory=dict)
    backends: dict[str, DraftEntry] = field(default_factory=dict)
    aliases: dict[str, DraftEntry] = field(default_factory=dict)
    modes: dict[str, list[str]] = field(default_factory=dict)
    clients: dict[str, DraftEntry] = field(default_factory=dict)
    after: dict[str, list[str]] = field(default_factory=dict)
    tail: list[str] = field(default_factory=list)
    notes: list[ImportNote] = field(default_factory=list)

    def data(self) -> dict[str, Any]:
        """The written file as plain data. An alias with nothing but `use` has its short form."""
        sections: dict[str, Any] = {"server": self.server, "defaults": self.defaults}
        for name in ("nodes", "backends", "aliases", "clients"):
            sections[name] = {key: entry.keys for key, entry in getattr(self, name).items()}
        sections["aliases"] = {n: k["use"] if list(k) == ["use"] else k for n, k in sections["aliases"].items()}
        sections["modes"] = self.modes
        return {name: section for name, section in sections.items() if section}


@dataclass(slots=True)
class Notes:
    """Collects notes about one source; `line_of` finds the line of a path in it. `steps`: how much of the work is left
    that one source may cost."""

    file: str
    line_of: Any  # (Path) -> int | None
    found: dict[ImportNote, None] = field(default_factory=dict)
    steps: int = STEPS_MOST

    def check_size(self, text: str) -> None:
        if len(text) > TEXT_MOST:
            raise too_large(self.file, f"it has more than {TEXT_MOST:,} characters")

    def spend(self, steps: int, line: int | None = None) -> None:
        """Raises ConfigError when the source costs too much."""
        self.steps -= steps
        if self.steps < 0:
            raise too_large(self.file, "its variables and commands come to more text than a real one", line)

    def add(self, kind: Kind, path: Path, message: str, hint: str | None = None) -> None:
        note = ImportNote(kind, Problem(self.file, self.line_of(path), shown_path(path), message, hint))
        self.found[note] = None
        if len(self.found) > NOTES_MOST:
            raise too_large(self.file, f"it has more than {NOTES_MOST:,} settings that differ here", note.problem.line)

    def left_out(self, path: Path, message: str = "has no counterpart here", hint: str | None = None) -> None:
        self.add("left_out", path, message, hint)

    def changed(self, path: Path, message: str, hint: str | None = None) -> None:
        self.add("changed", path, message, hint)

    def to_do(self, path: Path, message: str, hint: str | None = None) -> None:
        self.add("to_do", path, message, hint)

    def in_order(self) -> list[ImportNote]:
        return sorted(self.found, key=lambda note: note.problem.line or 0)


def too_large(file: str, why: str, line: int | None = None) -> ConfigError:
    return ConfigError([Problem(file, line, "", f"too large to be imported: {why}", "import a part of it")])


def shown_path(path: Path) -> str:
    """`("model_list", 0, "model_name")` -> `model_list[0].model_name`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


# -- names ------------------------------------------------------------------------------------------------------------


def backend_name(text: str) -> str:
    """`text` with `-` for each character that a backend's name must not have: `meta/Llama 3.1:8b` ->
    `meta-Llama-3.1:8b`."""
    return _slug(text, r"[^A-Za-z0-9._:@-]+") or "backend"


def alias_name(text: str) -> str:
    """The same for an alias, whose name may also have `/` and `+`."""
    return _slug(text, r"[^A-Za-z0-9._:@/+-]+") or "alias"


def _slug(text: str, unwanted: str) -> str:
    return re.sub(r"^[^A-Za-z0-9]+", "", re.sub(unwanted, "-", text)).rstrip("-")[:100]


def tail_of(model: str) -> str:
    """The last part of a model's name: `RedHatAI/Qwen3.6-35B` -> `Qwen3.6-35B`."""
    return model.rstrip("/").rsplit("/", 1)[-1]


def unique(name: str, taken: Iterable[str], *further: str) -> str:
    """`name`, or when it is taken `name-SUFFIX` with the first free suffix of `further`, or `name-NUMBER`."""
    taken = set(taken)
    if len(taken) >= NAMES_MOST:
        raise too_large("", f"it would have more than {NAMES_MOST:,} names of one kind")
    tried = [name, *(f"{name}-{word}" for word in further if word)]
    numbered = (f"{name}-{number}" for number in range(2, len(taken) + 3))
    return next(one for one in (*tried, *numbered) if one not in taken)


def short_steps(steps: Iterable[list[str]]) -> list[Any]:
    """The steps as routes.yaml writes them: one with a single backend is its name."""
    return [step[0] if len(step) == 1 else step for step in steps]


def check_further_names(draft: Draft, notes: Notes) -> None:
    """Removes further names of aliases (`also`) that are not valid or that another alias has, each with a note."""
    claimed = {name: name for name in draft.aliases}
    for name, entry in draft.aliases.items():
        kept = []
        for word in entry.keys.get("also", ()):
            path = entry.origins.get(word, ())
            if not is_further_name(word):
                notes.left_out(path, f"'{word}' cannot be a further name of alias '{name}'", "no spaces or quotes")
            elif (owner := claimed.setdefault(word, name)) != name:
                hint = "a name leads to one alias"
                notes.left_out(path, f"'{word}' is alias '{owner}' already, and no further name of '{name}'", hint)
            elif word != name and word not in kept:
                kept.append(word)
        if kept:
            entry.keys["also"] = kept
        else:
            entry.keys.pop("also", None)
