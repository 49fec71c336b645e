"""The catalogue's models and what was reported from the field: `catalog.yaml`, sections `models` and `field`.

Other sections of the file are none of this module's business. Rows of the operator's own file come first, so they win.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from gateway.config.document import read_document
from gateway.config.problems import Report
from gateway.config.sources import read_file
from gateway.config.units import parse_size
from gateway.fleet.memory.arithmetic import GIB
from gateway.fleet.memory.geometry import Geometry, read_geometry

SPARK_GIB = 119.67
"""Memory of the machines that the reports come from."""
_SHIPPED = Path(__file__).parents[1] / "catalog.yaml"


class CatalogError(Exception):
    """A file of the catalogue cannot be used; the message names the file and the place in it."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Per node of an engine over `nodes` nodes: GiB of `weights`, GiB of all `besides` them and the cache, and bytes of
    a `token` in the cache."""

    nodes: int
    weights: float
    besides: float
    token: float


@dataclass(frozen=True, slots=True)
class ModelRow:
    """`geometry`: or the sentence why it is not known. `weights`: glob over the name -> GiB; `quantized`: value of
    --quantization -> GiB."""

    name: str
    match: tuple[str, ...]
    geometry: Geometry | str
    weights: Mapping[str, float] = field(default_factory=dict)
    quantized: Mapping[str, float] = field(default_factory=dict)
    measured: Measured | None = None
    window: int | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class FieldReport:
    """What an operator reported of one launch. GiB; `target`: utilization x memory of the machine."""

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

    def reports(self, model: str, cache_dtype: str) -> tuple[FieldReport, ...]:
        return tuple(report for report in self.field if report.takes(model, cache_dtype))


def weights_of(row: ModelRow, model: str) -> float | None:
    """GiB of the checkpoint of that name, or None."""
    name = plain_name(model)
    return next((gib for glob, gib in row.weights.items() if fnmatchcase(name, glob)), None)


def plain_name(model: str) -> str:
    """The last part of a model's name, in small letters: `RedHatAI/Qwen3.6-35B-A3B-NVFP4`, `/models/DeepSeek-V4-Flash`
    and `qwen3:8b` become `qwen3.6-35b-a3b-nvfp4`, `deepseek-v4-flash` and `qwen3:8b`."""
    return re.sub(r"\s+", "-", model.rstrip("/").rsplit("/", 1)[-1].lower())


# -- reading ----------------------------------------------------------------------------------------------------------


def load_models(extra: Path | None = None) -> ModelCatalog:
    """The shipped rows, behind those of the operator's file. Raises CatalogError."""
    files = [extra, _SHIPPED] if extra is not None else [_SHIPPED]
    read = [_read(path) for path in files]
    models = [row for one in read for row in one.models]
    return ModelCatalog(tuple(models), tuple(report for one in read for report in one.field))


def _read(path: Path) -> ModelCatalog:
    report = Report(str(path))
    try:
        document = read_document(read_file(path, patience=0.0).decode("utf-8-sig"), report)
    except (OSError, ValueError) as error:
        raise CatalogError(f"{path} cannot be read: {error}") from error
    if document is None or report.errors:
        raise CatalogError("\n".join(str(problem) for problem in report.errors))
    return _catalog(document, str(path))


def _catalog(document: Mapping[str, Any], path: str) -> ModelCatalog:
    models, reports = document.get("models", {}), document.get("field", [])
    if not isinstance(models, Mapping) or not isinstance(reports, list):
        raise CatalogError(f"{path}: `models` is a mapping of rows, `field` a list of reports")
    read_models = _each(models.items(), lambda item: _model(str(item[0]), item[1]), f"{path}: models")
    return ModelCatalog(read_models, _each(reports, _report, f"{path}: field"))


def _each(rows: Iterable[Any], read: Any, where: str) -> tuple[Any, ...]:
    found = []
    for at, row in enumerate(rows, 1):
        try:
            found.append(read(row))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CatalogError(f"{where}, row {at}: {_why(error)}") from error
    return tuple(found)


def _why(error: Exception) -> str:
    return f"`{error.args[0]}` is missing" if isinstance(error, KeyError) else str(error)


def _model(name: str, row: Mapping[str, Any]) -> ModelRow:
    config, measured = row.get("config"), row.get("measured")
    return ModelRow(
        name,
        tuple(str(glob).lower() for glob in row.get("match", [name])),
        read_geometry(config) if config else "its layers are not known here",
        _sizes(row.get("weights")),
        _sizes(row.get("quantized")),
        _measured(measured) if measured else None,
        int(row["window"]) if row.get("window") else None,
        str(row.get("source", "")),
    )


def _measured(row: Mapping[str, Any]) -> Measured:
    token = float(parse_size(str(row["token"])))
    if token < 1:
        raise ValueError("`token` is a size of at least one byte")
    return Measured(int(row["nodes"]), _gib(row["weights"]), _gib(row["besides"]), token)


def _report(row: Mapping[str, Any]) -> FieldReport:
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
