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
from pathlib import Path as FilePath
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from gateway.apps.control.memory import model_catalog
from gateway.apps.control.memory.model_catalog import ModelCatalog
from gateway.config.document import read_document
from gateway.config.problems import Path, Report
from gateway.config.snapshot import Snapshot
from gateway.config.suggest import did_you_mean

R = TypeVar("R", bound="Row")
_INTERNAL = ("stated", "written")


@dataclass(frozen=True, kw_only=True)
class Row:
    """`source`: who reported it. `versions`: of vLLM, the first and the last for which the row's errors hold; one alone
    = from it on, none = all. `written`: the fields that the row has; `stated`: of a merged row, field -> the row that
    says it."""

    match: str
    source: str = ""
    versions: tuple[str, ...] = ()
    stated: Mapping[str, Row] = field(default_factory=dict)
    written: frozenset[str] = frozenset()

    def source_of(self, key: str) -> str:
        return self.stated.get(key, self).source

    def versions_of(self, key: str) -> tuple[str, ...]:
        return self.stated.get(key, self).versions


@dataclass(frozen=True, kw_only=True)
class FamilyRow(Row):
    """Models of one kind; `match` is an expression over the plain name. Parsers: the first is the best one; omitted =
    as the gateway's own table of families says (gateway/launch/families.py).

    `reported_parsers`: work for somebody, so they are no error. `likely_parsers`: of tools, by the name of vLLM's own
    parsers or the architecture; another one is a warning at most. `auto_calls`: False = with tool_choice auto the model
    ends its turn without a call. `media`: what it takes besides text; () = nothing. `mamba_block`: block size in tokens
    that prefix caching asks of its Mamba layers. `tensor_parallel`: the most. `..._until`: the first version of vLLM of
    which it is not true, or not known. `flags`, `variables`: what it needs; `helpful_flags`: what makes it better
    ("true" = a switch). `scrambled_checkpoints`: expression over names whose output is scrambled on a Spark.
    `draft_kv`: the KV cache dtype that its paired draft needs. `draft_counts`: [fewest, most] tokens per step,
    `draft_count` the best. `drafts_by`: the method of its own drafts where it has no MTP heads."""

    tool_parsers: tuple[str, ...] | None = None
    reported_parsers: tuple[str, ...] = ()
    likely_parsers: tuple[str, ...] = ()
    reasoning_parsers: tuple[str, ...] | None = None
    parser_plugin: str | None = None
    auto_calls: bool = True
    hybrid: bool = False
    mamba: bool = False
    moe: bool | None = None
    media: tuple[str, ...] | None = None
    mamba_block: int | None = None
    mamba_block_until: str | None = None
    tensor_parallel: int | None = None
    least_batched_tokens: int | None = None
    crashing_attention: tuple[str, ...] = ()
    unsupported_attention: tuple[str, ...] = ()
    scrambled_kv: tuple[str, ...] = ()
    scrambled_checkpoints: str | None = None
    draft_kv: str | None = None
    drafts_by: str | None = None
    mtp: Literal["built_in", "paired", "none"] | None = None
    draft_counts: tuple[int, ...] = ()
    draft_count: int | None = None
    quantization_free: bool = False
    flags: Mapping[str, str] = field(default_factory=dict)
    helpful_flags: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    images: tuple[str, ...] = ()
    draft_images: tuple[str, ...] = ()
    patched_file: str | None = None


@dataclass(frozen=True, kw_only=True)
class Publisher(Row):
    """Checkpoints of one publisher; `match` is an expression over the plain name with its organisation.

    `quantization`: the value of --quantization that they need, or "none" = it is found by itself, as every vLLM from
    `found_from` on does. `fails_with`: values that contradict the checkpoint's own configuration, so that vLLM refuses
    to start."""

    quantization: str = "none"
    found_from: str | None = None
    fails_with: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Image(Row):
    """Container images; `match` is a glob over name:tag.

    `entrypoint`: "vllm serve" = the image runs it already, so the command is its arguments; "vllm" = the command begins
    with `serve`; "none" = the command is the whole line; "own" = it is configured by variables. `stock`: it is vLLM as
    it is released, so what holds for a version holds for the image. `moving`: the tag will point elsewhere one day.
    `broken`: why it does not run on a Spark, `doubtful`: why it may not; `instead`: the image to use. `lacks`: what is
    not in it."""

    vllm: str | None = None
    entrypoint: Literal["vllm serve", "vllm", "none", "own"] | None = None
    stock: bool = False
    moving: bool = False
    broken: str | None = None
    doubtful: str | None = None
    instead: str | None = None
    lacks: tuple[str, ...] = ()
    rejects_mixed_precision: bool = False


@dataclass(frozen=True, kw_only=True)
class Variable(Row):
    """Environment variables of the engine; `match` is their name.

    `no_op_from`: version of vLLM from which it does nothing; `never`: it never existed. `crashes_with`: the value under
    which the engine dies. `instead`: the flag or the variable to use. `local`: to be set in the launch only, never for
    the whole machine."""

    no_op_from: str | None = None
    never: bool = False
    crashes_with: str | None = None
    instead: str = ""
    local: bool = False
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class DraftMethod(Row):
    """Methods of speculative decoding; `match` is an expression over the whole name of the method.

    `counts`: [fewest, most] tokens per step that make sense. `attention`: what the target needs; `crashing_attention`:
    what it cannot run with. `kv_cache`: "not fp8". `drafters`: plain name of a drafter -> expression over its targets.
    """

    vllm: str | None = None
    counts: tuple[int, ...] = ()
    attention: str | None = None
    crashing_attention: tuple[str, ...] = ()
    kv_cache: Literal["any", "not fp8"] = "any"
    variables: Mapping[str, str] = field(default_factory=dict)
    drafters: Mapping[str, str] = field(default_factory=dict)
    quantized: str | None = None


# -- reading ----------------------------------------------------------------------------------------------------------


def read_row(kind: type[R], data: Any, path: Path, report: Report) -> R | None:
    """The row, or None where something in it is wrong (reported). Without `match`, the row's name is it."""
    hints = {key: hint for key, hint in get_type_hints(kind).items() if key not in _INTERNAL}
    known = "there are " + ", ".join(hints)
    if not isinstance(data, dict):
        report.error(path, "must be a mapping of fields", known)
        return None
    before = len(report.errors)
    values: dict[str, Any] = {"match": str(path[-1])}
    for key, value in data.items():
        if key not in hints:
            report.error((*path, key), f"unknown field '{key}'", did_you_mean(key, hints) or known)
            continue
        try:
            values[key] = _typed(hints[key], value)
        except ValueError as error:
            report.error((*path, key), str(error))
    _check_values(kind, values, path, report)
    if len(report.errors) > before:
        return None
    return kind(**values, written=frozenset(values) - {"match", "source", "versions"})


def _check_values(kind: type[Row], values: Mapping[str, Any], path: Path, report: Report) -> None:
    written = {key: values[key] for key in ("match", "scrambled_checkpoints") if key in values}
    if kind is Image or kind is Variable:  # a glob, a name
        del written["match"]
    written |= {f"drafters.{name}": target for name, target in values.get("drafters", {}).items()}
    for key, expression in written.items():
        try:
            re.compile(expression)
        except re.error as error:
            report.error((*path, *key.split(".", 1)), f"is no regular expression: {error}")
    for key in ("counts", "draft_counts"):
        if key in values and len(values[key]) != 2:
            report.error((*path, key), "must be two numbers", "write [1, 3]: the fewest and the most")


def _typed(hint: Any, value: Any) -> Any:
    """`value` as the field has it. Raises ValueError in words."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return _typed(next(part for part in get_args(hint) if part is not type(None)), value)
    if origin is Literal:
        if value not in get_args(hint):
            raise ValueError("must be one of " + ", ".join(map(str, get_args(hint))))
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError("must be a list")
        return tuple([_typed(get_args(hint)[0], member) for member in value])
    if origin is not None:  # a mapping
        if not isinstance(value, dict):
            raise ValueError("must be a mapping of names to text")
        return {str(key): _text(inner) for key, inner in value.items()}
    if hint is str:
        return _text(value)
    if type(value) is not hint:
        raise ValueError(_SCALARS[hint])
    return value


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        raise ValueError(_SCALARS[str])
    return str(value)


_SCALARS = {str: "must be text (write it in quotes)", bool: "must be true or false", int: "must be a whole number"}


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
    field."""

    families: Mapping[str, FamilyRow] = field(default_factory=dict)
    publishers: Mapping[str, Publisher] = field(default_factory=dict)
    images: Mapping[str, Image] = field(default_factory=dict)
    variables: Mapping[str, Variable] = field(default_factory=dict)
    drafts: Mapping[str, DraftMethod] = field(default_factory=dict)
    memory: ModelCatalog = field(default_factory=ModelCatalog)

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


def load_catalog(extra: FilePath | None = None) -> Catalog:
    """The gateway's rows, with those of the file `extra` before them. Raises ConfigError with every mistake in it."""
    shipped = _shipped()
    if extra is None:
        return shipped
    return _joined(_read_catalog(model_catalog.text_of(extra), str(extra)), shipped)


@cache
def _shipped() -> Catalog:
    return _read_catalog(model_catalog.shipped_text(), "catalog.yaml")


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
    return Catalog(**found, memory=memory)


def _joined(own: Catalog, shipped: Catalog) -> Catalog:
    """The operator's rows first; a row of the same name takes the place of the gateway's."""
    sections: dict[str, Any] = {}
    for name in SECTIONS:
        first, rest = getattr(own, name), getattr(shipped, name)
        sections[name] = {**first, **{key: row for key, row in rest.items() if key not in first}}
    return Catalog(**sections, memory=own.memory.before(shipped.memory))
