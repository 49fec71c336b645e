"""The kinds of rows in catalog.yaml, and how one is read from plain data with a message for every mistake."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from gateway.config.problems import Path, Report
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


def _hints(kind: type[Row]) -> Mapping[str, Any]:
    return {key: hint for key, hint in get_type_hints(kind).items() if key not in _INTERNAL}


def read_row(kind: type[R], data: Any, path: Path, report: Report) -> R | None:
    """The row, or None where something in it is wrong (reported). Without `match`, the row's name is it."""
    if not isinstance(data, dict):
        report.error(path, "must be a mapping of fields", "there are " + ", ".join(_hints(kind)))
        return None
    before = len(report.errors)
    values: dict[str, Any] = {"match": str(path[-1])}
    for key, value in data.items():
        hint = _hints(kind).get(key)
        if hint is None:
            report.error((*path, key), f"unknown field '{key}'", did_you_mean(key, _hints(kind)) or _known(kind))
            continue
        try:
            values[key] = _typed(hint, value)
        except ValueError as error:
            report.error((*path, key), str(error))
    _check_values(kind, values, path, report)
    if len(report.errors) > before:
        return None
    written = frozenset(values) - {"match", "source", "versions"}
    return kind(**values, written=written)


def _known(kind: type[Row]) -> str:
    return "there are " + ", ".join(_hints(kind))


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
    return _SCALARS[hint](value)


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        raise ValueError("must be text (write it in quotes)")
    return str(value)


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("must be a whole number")
    return value


_SCALARS: Mapping[Any, Callable[[Any], Any]] = {str: _text, bool: _switch, int: _count}
