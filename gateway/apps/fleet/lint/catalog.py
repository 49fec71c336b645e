"""The catalogue: what operators learned about models, images, variables, drafts and memory, as rows of catalog.yaml.

An operator may keep rows of their own in a second file (`catalog:` of routes.yaml). Their rows are looked at first.
Several rows may take one model or image: for every field the first row that has it counts, so that a general row
("Qwen3.6") stands behind a special one ("Qwen3.6-35B-A3B").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from gateway.apps.control.memory import model_catalog
from gateway.apps.control.memory.model_catalog import ModelCatalog
from gateway.apps.fleet.lint.catalog_rows import DraftMethod, FamilyRow, Image, Publisher, Row, Variable, read_row
from gateway.config.document import read_document
from gateway.config.problems import Report
from gateway.config.snapshot import Snapshot
from gateway.config.suggest import did_you_mean

R = TypeVar("R", bound=Row)
Version = tuple[int, int]

SECTIONS: Mapping[str, type[Row]] = {
    "families": FamilyRow,
    "publishers": Publisher,
    "images": Image,
    "variables": Variable,
    "drafts": DraftMethod,
}
ALL_SECTIONS = (*SECTIONS, *model_catalog.SECTIONS)  # with those that the planner of memory asks


@dataclass(frozen=True)
class Catalog:
    """The rows by section and name, the operator's own first. `memory`: the models' sizes and the reports from the
    field. `own`: dotted names of the operator's rows ("families.my-model")."""

    families: Mapping[str, FamilyRow] = field(default_factory=dict)
    publishers: Mapping[str, Publisher] = field(default_factory=dict)
    images: Mapping[str, Image] = field(default_factory=dict)
    variables: Mapping[str, Variable] = field(default_factory=dict)
    drafts: Mapping[str, DraftMethod] = field(default_factory=dict)
    memory: ModelCatalog = field(default_factory=ModelCatalog)
    own: frozenset[str] = frozenset()

    def family(self, names: Iterable[str]) -> FamilyRow | None:
        """The facts about a model by its names (repository, path, served name); None if no row takes any of them."""
        wanted = [catalog_name(name) for name in names]
        rows = [r for r in self.families.values() if any(re.search(r.match, name) for name in wanted)]
        return merged(rows)

    def of_class(self, architecture: str) -> FamilyRow | None:
        """The row of the class that a config.json names, whose expression begins with `^class-`."""
        name, rows = f"class-{catalog_name(architecture)}", self.families.values()
        return next((row for row in rows if row.match.startswith("^class-") and re.search(row.match, name)), None)

    def publisher(self, model: str) -> Publisher | None:
        return next((row for row in self.publishers.values() if re.search(row.match, catalog_name(model))), None)

    def image(self, image: str) -> Image | None:
        """The facts about an image by its name with its tag. A digest behind it is not looked at; with a digest alone
        it is no tag that has a row."""
        name = image.partition("@")[0].removeprefix("docker.io/")
        if ":" not in name.rsplit("/", 1)[-1]:
            name += ":"
        return merged([row for row in self.images.values() if fnmatchcase(name, row.match)])

    def draft(self, method: str) -> DraftMethod | None:
        return next((row for row in self.drafts.values() if re.fullmatch(row.match, method)), None)

    def drafter_target(self, drafter: str) -> str | None:
        """The models (an expression over plain names) that a published drafter was trained for; None if not known."""
        name = catalog_name(drafter)
        return next(
            (target for draft in self.drafts.values() for d, target in draft.drafters.items() if d == name), None
        )


def catalog_name(name: str) -> str:
    """A model's name as the expressions of the catalogue see it: small letters, "-" between words."""
    return re.sub(r"[_\s:]+", "-", name.strip().lower().rstrip("/"))


def merged(rows: list[R]) -> R | None:
    """Rows merged; for each field the first row that sets it wins. `stated`: where each is from."""
    if not rows:
        return None
    values: dict[str, Any] = {}
    stated: dict[str, Row] = {}
    for row in rows:
        for key in row.written - values.keys():
            values[key] = getattr(row, key)
            stated[key] = row
    known = {f.name for f in fields(rows[0])}
    return replace(rows[0], **{k: v for k, v in values.items() if k in known}, stated=stated, written=frozenset(values))


def version_of(text: str) -> Version | None:
    """`0.23.0`, `v0.23`, `0.23.x` -> (0, 23); None if it names no version."""
    found = re.match(r"v?(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


# -- reading ----------------------------------------------------------------------------------------------------------


def catalog_of(snapshot: Snapshot) -> Catalog:
    """The catalogue with the rows of the file that routes.yaml names. Raises ConfigError."""
    return load_catalog(model_catalog.own_catalog(snapshot))


def load_catalog(extra: Path | None = None) -> Catalog:
    """The gateway's rows, with those of the file `extra` before them. Raises ConfigError with every mistake in it."""
    shipped = _shipped()
    if extra is None:
        return shipped
    return _joined(_read_catalog(model_catalog.text_of(extra), str(extra)), shipped)


@cache
def _shipped() -> Catalog:
    return replace(_read_catalog(model_catalog.shipped_text(), "catalog.yaml"), own=frozenset())


def _read_catalog(text: str, name: str) -> Catalog:
    report = Report(name)
    data = read_document(text, report) or {}
    found: dict[str, dict[str, Any]] = {}
    for section, rows in data.items():
        if section in model_catalog.SECTIONS:
            continue
        if section not in SECTIONS:
            hint = did_you_mean(section, ALL_SECTIONS) or "there are " + ", ".join(ALL_SECTIONS)
            report.error((section,), f"unknown section '{section}'", hint)
        elif rows is not None and not isinstance(rows, dict):
            report.error((section,), "must be a mapping of names to rows")
        else:
            read = {key: read_row(SECTIONS[section], row, (section, key), report) for key, row in (rows or {}).items()}
            found[section] = {key: row for key, row in read.items() if row is not None}
    memory = model_catalog.read_models(data, report)
    report.finish()
    own = frozenset(f"{section}.{key}" for section, rows in found.items() for key in rows)
    return Catalog(**found, memory=memory, own=own)


def _joined(own: Catalog, shipped: Catalog) -> Catalog:
    """The operator's rows first; a row of the same name takes the place of the gateway's."""
    sections: dict[str, Any] = {}
    for name in SECTIONS:
        first, rest = getattr(own, name), getattr(shipped, name)
        sections[name] = {**first, **{key: row for key, row in rest.items() if key not in first}}
    return Catalog(**sections, memory=own.memory.before(shipped.memory), own=own.own)
