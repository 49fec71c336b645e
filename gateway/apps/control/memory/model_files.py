"""Looks for a model on this machine's disk: its `config.json` and the size of its weights.

Looked at, in this order: the directories that the caller names (`--models DIR`), the host's side of the launch block's
volumes, and what `fleet pull` has kept in `server.data`. A directory may be a tree DIR/ORG/NAME, or the cache of
Hugging Face. A model that is not here is no error: the gateway usually runs on another machine than the engines.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gateway.apps.control.memory.arithmetic import GIB
from gateway.apps.control.memory.geometry import Geometry, read_geometry
from gateway.config.snapshot import Backend, Launch, Snapshot
from gateway.config.sources import read_file

KEPT = "models"  # folder in server.data with the config.json and the size of what `fleet pull` has put on the nodes
_MOST_CONFIG = 1024 * 1024
_MOST_INDEX = 64 * 1024 * 1024
_MOST_FILES = 4096
_PART = re.compile(r"[\w.+@-]+")  # of a path; ".." is refused apart from it


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The model in `path`. `geometry`: or why it is not known. `weights` in GiB. `architecture`: vLLM's class for
    it. `drafter`: that of speculative decoding, where it is a checkpoint of its own."""

    path: Path
    geometry: Geometry | str
    weights: float | None
    architecture: str | None = None
    drafter: ModelFiles | None = None


def read_models(snapshot: Snapshot, roots: Sequence[Path] = ()) -> dict[str, ModelFiles]:
    """Backend -> its model's files, for every backend with a launch block whose model is found. Never raises."""
    found = {}
    for backend in snapshot.backends.values():
        if backend.launch is not None and (model := backend.launch.parsed.model or backend.model):
            kept = (Path(snapshot.server.data) / KEPT,)
            files = _find(model, backend, roots) or _find(model, backend, kept)
            if files is not None:
                config = backend.launch.parsed.flags.get("speculative-config")
                drafter = config.get("model") if isinstance(config, Mapping) else None
                if isinstance(drafter, str):
                    files = replace(files, drafter=_find(drafter, backend, (*roots, *kept)))
                found[backend.name] = files
    return found


def _find(model: str, backend: Backend, roots: Sequence[Path]) -> ModelFiles | None:
    return next((read for folder in _folders(model, backend, roots) if (read := _read_folder(folder))), None)


def keep(folder: Path, model: str, config: str, weights: int) -> None:
    """Keep what a plan needs of a model that is on the nodes. Raises OSError."""
    parts = [part for part in model.split("/") if part]
    if not parts or not all(_PART.fullmatch(part) and part != ".." for part in parts):
        return
    here = folder.joinpath(KEPT, *parts[-2:])
    here.mkdir(parents=True, exist_ok=True)
    (here / "config.json").write_text(config, "utf-8")
    (here / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": weights}}), "utf-8")


# -- where a model may be ---------------------------------------------------------------------------------------------


def _folders(model: str, backend: Backend, roots: Sequence[Path]) -> Iterator[Path]:
    parts = [part for part in model.split("/") if part]
    if not parts or not all(_PART.fullmatch(part) and part != ".." for part in parts):
        return
    for root in roots:
        yield from _inside(root, parts)
    launch = backend.launch
    assert launch is not None
    if model.startswith("/"):
        yield from _mounted(model, launch)
        return
    for host, _ in _volumes(launch):
        yield from _inside(host, parts)


def _inside(root: Path, parts: list[str]) -> Iterator[Path]:
    """The model in a tree of its own name, or in a cache of Hugging Face."""
    for keep in (2, 1):
        yield root.joinpath(*parts[-keep:])
    for cache in (root / "hub", root):
        snapshots = cache / ("models--" + "--".join(parts)) / "snapshots"
        try:
            yield from sorted(snapshots.iterdir(), key=lambda one: one.stat().st_mtime, reverse=True)[:8]
        except (OSError, ValueError):
            continue


def _mounted(model: str, launch: Launch) -> Iterator[Path]:
    """The host's folder of a path inside the container, or the path itself where there is no container."""
    if launch.image is None:
        yield Path(model)
    for host, inside in _volumes(launch):
        base = inside.rstrip("/")
        if model == base or model.startswith(base + "/"):
            yield host / model[len(base) :].strip("/")


def _volumes(launch: Launch) -> Iterator[tuple[Path, str]]:
    """(folder on the host, path in the container); named volumes and references are none."""
    for volume in launch.mounts:
        host, _, rest = volume.partition(":")
        if rest and host.startswith(("/", "~/")) and "${" not in volume:
            yield Path(os.path.expanduser(host)), rest.split(":")[0]


# -- reading ----------------------------------------------------------------------------------------------------------


def _read_folder(folder: Path) -> ModelFiles | None:
    """The model in a folder; None if there is none in it."""
    path, config = folder / "config.json", None
    try:
        if not path.is_file():
            return None
    except (OSError, ValueError):
        return None
    try:
        config = _json(path, _MOST_CONFIG)
        geometry = read_geometry(config)
    except (OSError, ValueError, RecursionError) as error:
        geometry = f"{path} cannot be read: {str(error)[:100] or type(error).__name__}"
    named = config.get("architectures") if isinstance(config, dict) else None
    architecture = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else None
    return ModelFiles(folder, geometry, _weights(folder), architecture)


def _weights(folder: Path) -> float | None:
    """GiB of the checkpoint: by its index, else by the sizes of its files."""
    try:
        index = _json(folder / "model.safetensors.index.json", _MOST_INDEX)
        total = index["metadata"]["total_size"]
        if isinstance(total, int) and not isinstance(total, bool) and 0 < total < 2**60:
            return total / GIB
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        pass
    try:
        total = sum(_sizes(folder.iterdir()))
    except OSError:  # a file that is still being fetched is a link to nothing
        return None
    return total / GIB if total else None


def _sizes(files: Iterable[Path]) -> Iterator[int]:
    for at, file in enumerate(files):
        if at >= _MOST_FILES:
            return
        if file.name.endswith(".safetensors"):
            yield file.stat().st_size


def _json(path: Path, most: int) -> Any:
    return json.loads(read_file(path, most, patience=0.0))
