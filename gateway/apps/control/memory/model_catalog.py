"""The catalogue's models and the reports from the field: `catalog.yaml`, sections `models` and `field`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path as FilePath
from typing import Any, TypeVar

from gateway.apps.control.memory.arithmetic import GIB
from gateway.apps.control.memory.geometry import Geometry, read_geometry
from gateway.config.document import read_document
from gateway.config.problems import ConfigError, Path, Problem, Report
from gateway.config.snapshot import Snapshot
from gateway.config.sources import read_file
from gateway.config.suggest import did_you_mean
from gateway.config.units import parse_size
from gateway.launch.families import name_in_cache

SPARK_GIB = 119.67
"""Memory of the machines that the reports come from."""
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class MeasuredMemory:
    """Per node of an engine over `nodes` nodes: GiB of `weights`, GiB of all `besides` them and the cache, and bytes of
    a `token` in the cache; of both the least and the most that was seen. It holds for checkpoints of these `names`
    (none = all of the row), types of the cache and at least so many batched tokens."""

    nodes: int
    weights: float
    besides: tuple[float, float]
    token: tuple[float, float]
    names: tuple[str, ...] = ()
    cache_dtypes: tuple[str, ...] = ()
    batched_tokens: int = 0

    def holds(self, model: str, nodes: int, cache_dtype: str, batched_tokens: int) -> bool:
        """Whether it was measured of such a launch."""
        return (
            nodes == self.nodes
            and batched_tokens >= self.batched_tokens
            and (not self.cache_dtypes or cache_dtype in self.cache_dtypes)
            and (not self.names or any(_is_named(model, glob) for glob in self.names))
        )


@dataclass(frozen=True, slots=True)
class ModelRow:
    """`geometry`: or the sentence why it is not known. `weights`: checkpoint (a glob) -> GiB; `quantized`: value of
    --quantization -> GiB. `window` in tokens, where the geometry does not tell it."""

    name: str
    match: tuple[str, ...]
    geometry: Geometry | str
    weights: Mapping[str, float] = field(default_factory=dict)
    quantized: Mapping[str, float] = field(default_factory=dict)
    measured: tuple[MeasuredMemory, ...] = ()
    window: int | None = None
    source: str = ""

    @property
    def own_window(self) -> int | None:
        """The longest context in tokens that the model was made for; None if not known."""
        own = self.geometry.window if isinstance(self.geometry, Geometry) else None
        return own or self.window


@dataclass(frozen=True, slots=True)
class FieldReport:
    """An operator's report of one launch. GiB; `target`: utilization x memory of the machine."""

    model: str
    target: float
    window: int
    sequences: int
    cache_dtype: str
    works: bool
    reason: str
    resident: float | None
    overhead: float | None
    source: str

    def takes(self, model: str, cache_dtype: str) -> bool:
        return self.cache_dtype == cache_dtype and fnmatchcase(plain_name(model), self.model)

    def is_of(self, target: float, window: int, sequences: int) -> bool:
        """Whether the report is of just this launch."""
        return abs(target - self.target) < 0.2 and (window, sequences) == (self.window, self.sequences)

    def decides(self, target: float, window: int, sequences: int) -> bool:
        """Whether the report's verdict holds for this launch: it asks for no less where that one failed, or for no more
        where that one worked."""
        if self.works:
            return target >= self.target - 0.2 and window <= self.window and sequences <= self.sequences
        return target <= self.target + 0.2 and window >= self.window and sequences >= self.sequences


@dataclass(frozen=True, slots=True)
class ModelCatalog:
    """Rows in the order in which they are asked."""

    models: tuple[ModelRow, ...] = ()
    field: tuple[FieldReport, ...] = ()

    def row(self, model: str) -> ModelRow | None:
        name = plain_name(model)
        return next((row for row in self.models if any(fnmatchcase(name, glob) for glob in row.match)), None)

    def own_window(self, names: Iterable[str]) -> tuple[int, str] | None:
        """(the window that a model of one of these names was made for, who says so); None if not known."""
        rows = (row for name in names if (row := self.row(name)) is not None)
        return next(((row.own_window, row.source) for row in rows if row.own_window), None)

    def before(self, other: ModelCatalog) -> ModelCatalog:
        """These rows, and behind them those of the other."""
        return ModelCatalog((*self.models, *other.models), (*self.field, *other.field))

    def reports(self, model: str, cache_dtype: str) -> tuple[FieldReport, ...]:
        return tuple(report for report in self.field if report.takes(model, cache_dtype))


def weights_of(row: ModelRow, model: str) -> float | None:
    """GiB of the checkpoint of that name, or None."""
    return next((gib for glob, gib in row.weights.items() if _is_named(model, glob)), None)


def _is_named(model: str, glob: str) -> bool:
    """Whether a glob takes the model: `publisher/name` that of this publisher, `/name` a folder of that name, `name`
    everybody's."""
    model, last = name_in_cache(model), plain_name(model)
    if "/" not in glob:
        return fnmatchcase(last, glob)
    folder = model.startswith(("/", ".", "~"))
    parts = [part for part in model.lower().split("/") if part]
    return fnmatchcase(f"/{last}" if folder else "/".join([*parts[:-1][-1:], last]), glob)


def plain_name(model: str) -> str:
    """The last part of a model's name, in small letters: `RedHatAI/Qwen3.6-35B-A3B-NVFP4`, `/models/DeepSeek-V4-Flash`
    and `qwen3:8b` become `qwen3.6-35b-a3b-nvfp4`, `deepseek-v4-flash` and `qwen3:8b`."""
    return re.sub(r"\s+", "-", name_in_cache(model).rstrip("/").rsplit("/", 1)[-1].lower())


def host_path(model: str, mounts: Iterable[str]) -> str:
    """Where a model's folder in a container lies on the host, by its mounts (`HOST:CONTAINER`); another name stays."""
    for volume in mounts if model.startswith("/") else ():
        host, _, inside = volume.partition(":")
        target = inside.partition(":")[0].rstrip("/")
        if target and host.startswith(("/", "~", ".")) and f"{model}/".startswith(f"{target}/"):
            return host.rstrip("/") + model[len(target) :]
    return model


# -- reading ----------------------------------------------------------------------------------------------------------


def models_of(snapshot: Snapshot) -> ModelCatalog:
    """The operator's rows (`catalog:` of routes.yaml) before the gateway's. Raises ConfigError."""
    file = own_catalog(snapshot)
    return shipped_models() if file is None else _read(text_of(file), str(file)).before(shipped_models())


@cache
def shipped_models() -> ModelCatalog:
    return _read(shipped_text(), "catalog.yaml")


def _read(text: str, name: str) -> ModelCatalog:
    report = Report(name)
    found = read_models(read_document(text, report) or {}, report)
    report.finish()
    return found


def own_catalog(snapshot: Snapshot) -> FilePath | None:
    """The file that `catalog:` names, whose path is relative to routes.yaml."""
    own = snapshot.own_catalog
    return None if own is None else FilePath(snapshot.source).parent / own


def shipped_text() -> str:
    return files("gateway.apps.control.memory").joinpath("catalog.yaml").read_text(encoding="utf-8")


def text_of(file: FilePath) -> str:
    """The operator's catalogue. Raises ConfigError."""
    try:
        return read_file(file).decode("utf-8-sig")
    except FileNotFoundError:
        hint = "write its path relative to routes.yaml, or take `catalog` out"
        raise ConfigError([Problem(str(file), None, "", "there is no such catalogue", hint)]) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError([Problem(str(file), None, "", "the catalogue cannot be read", str(why))]) from None


SECTIONS = ("models", "field")
MODEL_FIELDS = ("match", "config", "weights", "quantized", "measured", "window", "source")
REPORT_FIELDS = (
    *("model", "utilization", "memory", "window", "sequences", "cache_dtype"),
    *("verdict", "reason", "resident", "overhead", "source"),
)
_MISTAKES = (KeyError, TypeError, ValueError, AttributeError, OverflowError)


def read_models(document: Mapping[str, Any], report: Report) -> ModelCatalog:
    """The rows of a catalogue's `models` and `field`. A row with a mistake is reported, and left out."""
    models, reports = document.get("models"), document.get("field")
    if models is not None and not isinstance(models, Mapping):
        report.error(("models",), "must be a mapping of names to rows")
        models = None
    if reports is not None and not isinstance(reports, list):
        report.error(("field",), "must be a list of reports")
        reports = None
    rows = (_checked(("models", str(name)), row, MODEL_FIELDS, _model, report) for name, row in (models or {}).items())
    found = (_checked(("field", at), row, REPORT_FIELDS, _report, report) for at, row in enumerate(reports or ()))
    return ModelCatalog(tuple(row for row in rows if row), tuple(one for one in found if one))


def _checked(
    path: Path, row: Any, known: Sequence[str], read: Callable[[Path, Mapping[str, Any]], R], report: Report
) -> R | None:
    if not isinstance(row, Mapping):
        report.error(path, "must be a mapping of fields", "there are " + ", ".join(known))
        return None
    unknown = [str(key) for key in row if key not in known]
    for key in unknown:
        hint = did_you_mean(key, known) or "there are " + ", ".join(known)
        report.error((*path, key), f"unknown field '{key}'", hint)
    try:
        return read(path, row) if not unknown else None
    except _MISTAKES as error:
        report.error(path, f"`{error.args[0]}` is missing" if isinstance(error, KeyError) else str(error))
        return None


def _model(path: Path, row: Mapping[str, Any]) -> ModelRow:
    name, config, measured = str(path[-1]), row.get("config"), row.get("measured")
    globs = row.get("match", [name])
    if not isinstance(globs, list):
        raise ValueError("`match` must be a list")
    return ModelRow(
        name,
        tuple(str(glob).lower() for glob in globs),
        read_geometry(config) if config else "its layers are not known here",
        _sizes(row.get("weights")),
        _sizes(row.get("quantized")),
        tuple(map(_measured, measured if isinstance(measured, list) else [measured] if measured else [])),
        int(row["window"]) if row.get("window") else None,
        str(row.get("source", "")),
    )


def _measured(row: Mapping[str, Any]) -> MeasuredMemory:
    token = _span(row["token"], lambda size: float(parse_size(str(size))))
    if token[0] < 1:
        raise ValueError("`token` is a size of at least one byte")
    return MeasuredMemory(
        int(row["nodes"]),
        _gib(row["weights"]),
        _span(row["besides"], _gib),
        token,
        tuple(str(glob).lower() for glob in row.get("names", ())),
        tuple(map(str, row.get("cache_dtypes", ()))),
        int(row.get("batched_tokens", 0)),
    )


def _span(written: object, read: Callable[[object], float]) -> tuple[float, float]:
    """One figure, or the least and the most of it."""
    if isinstance(written, list):
        least, most = map(read, written)
        return min(least, most), max(least, most)
    return read(written), read(written)


def _report(_: Path, row: Mapping[str, Any]) -> FieldReport:
    if row["verdict"] not in ("yes", "no"):
        raise ValueError("`verdict` is yes or no")
    return FieldReport(
        str(row["model"]).lower(),
        float(row["utilization"]) * (_gib(row["memory"]) if "memory" in row else SPARK_GIB),
        int(row["window"]),
        int(row["sequences"]),
        str(row.get("cache_dtype", "auto")),
        row["verdict"] == "yes",
        str(row.get("reason", "")),
        _gib(row["resident"]) if "resident" in row else None,
        _gib(row["overhead"]) if "overhead" in row else None,
        str(row.get("source", "")),
    )


def _sizes(sizes: Mapping[str, Any] | None) -> dict[str, float]:
    return {str(glob).lower(): _gib(size) for glob, size in (sizes or {}).items()}


def _gib(size: object) -> float:
    try:
        return parse_size(str(size)) / GIB
    except ValueError:
        raise ValueError(f"{str(size)[:40]!r} is not a size as 21.94GiB or 76GB") from None
