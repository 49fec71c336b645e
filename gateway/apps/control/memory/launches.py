"""The demand of a backend that is launched as routes.yaml says: of vLLM, of Ollama, or as it was measured.

vLLM takes a share of the whole memory (`--gpu-memory-utilization`): first for the weights, then for what its profiling
run finds, and the rest for the cache. Ollama takes the weights and a cache for the window of every slot. Of other
servers only a measured `launch.resident` is known. Pure; a figure that is not known is None, never a guess.
"""

from __future__ import annotations

import re
from dataclasses import fields, replace

from gateway.apps.control.memory.arithmetic import (
    ENGINE_GIB,
    GIB,
    LOADING_MOST_GIB,
    LOADING_SHARE,
    OLLAMA_GIB,
    CacheSettings,
    Demand,
    cache_layout,
)
from gateway.apps.control.memory.model_catalog import ModelCatalog, weights_of
from gateway.apps.control.memory.model_files import ModelFiles
from gateway.apps.control.memory.settings import EngineSettings, engine_settings
from gateway.apps.control.memory.vllm_launch import VllmLaunch
from gateway.config.snapshot import Backend, Observed
from gateway.domain.engine_traits import traits_of
from gateway.launch.command import ServeCommand

_OFF = 0.10  # a measured figure that differs by more from the estimate is worth a note
# What changes the size of the pool or of its window, and nothing else of the figures.
_SCALED = ("utilization", "window", "fits_window", "sequences", "cache_gib", "open", "refused")


def demand_of(
    backend: Backend,
    command: ServeCommand,
    memory: float,
    memories: tuple[float, ...],
    catalog: ModelCatalog,
    files: ModelFiles | None = None,
) -> Demand:
    """The demand of a backend that is started by `command`, which profiles and what-ifs may have changed, on a node of
    `memory` GiB; `memories`: of all of its nodes, as far as known."""
    if traits_of(backend).loads_on_demand:
        return _measured_wins(_ollama(backend, catalog), backend, changed=False)
    if (
        not traits_of(backend).launch_flags
        or backend.launch is None
        or not command.is_vllm
        or not (command.flags or command.model)
    ):
        why = "what it holds is not known: give it a launch block, or measure it (`launch: {resident: 12GiB}`)"
        return _measured_wins(Demand(backend.name, verdict="unknown", reason=why), backend, changed=False)
    settings, written = engine_settings(command), engine_settings(backend.launch.parsed)
    if settings.refused:
        return Demand(backend.name, verdict="no", reason=f"it does not start: {settings.refused}")
    machines = len(backend.nodes)
    if settings.shards > machines and backend.launch.resident is None and backend.observed is None:
        words = f"{settings.shards} GPUs on {machines} node: {settings.shards} nodes are needed, a Spark has one GPU"
        return Demand(backend.name, verdict="no", reason=f"it does not start: {words}")
    changed = (settings.utilization, settings.cache_gib) != (written.utilization, written.cache_gib)
    launch = VllmLaunch(backend, command, settings, memory, memories, catalog, files)
    demand = launch.demand()
    if backend.observed is not None:
        demand = observed_demand(demand, backend.observed, launch, written)
    if demand.weights is not None and demand.needs is not None and launch.encodes:
        beside = min(LOADING_SHARE * demand.weights, LOADING_MOST_GIB)
        demand = replace(demand, loading=demand.needs + ENGINE_GIB + beside)
    return _measured_wins(demand, backend, changed=changed)


def _measured_wins(demand: Demand, backend: Backend, *, changed: bool) -> Demand:
    """With `launch.resident` instead of the estimate. It says nothing of a command that takes another share."""
    if backend.launch is None or backend.launch.resident is None or changed:
        return demand
    resident = backend.launch.resident / GIB
    note = demand.note
    if demand.resident and abs(resident - demand.resident) > _OFF * demand.resident:
        note = f"it was measured at {resident:.1f} GiB, which is more than 10 % off the {demand.resident:.1f} expected"
    needs = demand.needs if demand.needs is not None and demand.target is not None else resident
    ran = demand.verdict == "unknown"  # it was seen to run
    return replace(
        demand,
        needs=needs,
        resident=resident,
        source="measured",
        verdict="yes" if ran else demand.verdict,
        reason="" if ran else demand.reason,
        note=note,
    )


# -- Ollama -----------------------------------------------------------------------------------------------------------


def _ollama(backend: Backend, catalog: ModelCatalog) -> Demand:
    model = backend.model or ""
    row = catalog.row(model) if model else None
    weights = weights_of(row, model) if row is not None else None
    if row is None or weights is None:
        return _unknown(backend, f"the size of {model or 'its model'} is not in the catalogue")
    if isinstance(row.geometry, str):
        return _unknown(backend, f"the cache of {model} is not known: {row.geometry}")
    if backend.context is None:
        return _unknown(backend, "its window is not known: set `context`")
    slots = backend.slots or 1
    plain = CacheSettings(backend.context, 2.0)
    kv = cache_layout(row.geometry, plain).window_gib * slots
    held = weights + kv + OLLAMA_GIB
    tokens = backend.context * slots
    return Demand(backend.name, held, held, 0.0, None, weights, kv, tokens, float(slots), source="estimated")


def _unknown(backend: Backend, reason: str) -> Demand:
    return Demand(backend.name, verdict="unknown", reason=reason)


def observed_demand(demand: Demand, seen: Observed, launch: VllmLaunch, written: EngineSettings) -> Demand:
    """`demand` with what the engine said. `launch` is what is planned, `written` the settings of the file. Unchanged,
    with a note, where it ran with another type of cache or was started otherwise than is planned."""
    settings = launch.settings
    apart = _difference(seen, settings, written, launch.version)
    if apart is not None or settings.open:
        return demand if apart is None else replace(demand, note=f"what it reported is not used: {apart}")
    weights = demand.weights if seen.weights is None else seen.weights / GIB
    demand = replace(demand, weights=weights)
    if seen.kv is None:
        return demand
    kv = settings.cache_gib if settings.cache_gib is not None else _pool(seen, settings, launch.memory)
    window = settings.window or seen.window
    found = _tokens(seen, kv, window, launch) if kv is not None else None
    if kv is None or found is None or not window:
        return demand
    at_hand = replace(
        demand, kv=max(kv, 0.0), tokens=round(found), span=None, source="observed", verdict="yes", reason="", note=""
    )
    if found >= window:
        return replace(at_hand, windows=found / window)
    if settings.fits_window and found > 0:
        return replace(at_hand, windows=1.0)
    why = f"a full window has {window:,} tokens, and by what the engine reported its cache holds {int(found):,}"
    return replace(at_hand, windows=found / window, verdict="no", reason=why)


def _difference(
    seen: Observed, settings: EngineSettings, written: EngineSettings, version: tuple[int, int] | None
) -> str | None:
    """Why the figures are of another launch; None where they are not."""
    changed = [one.name for one in fields(settings) if getattr(settings, one.name) != getattr(written, one.name)]
    other = [name for name in changed if name not in _SCALED]
    if other:
        return f"it ran with another {other[0].replace('_', ' ')}"
    ran = re.match(r"(\d+)\.(\d+)", seen.engine or "")
    if ran and version is not None and (int(ran[1]), int(ran[2])) != version:
        return f"it was vLLM {ran[0]}, and the image has {version[0]}.{version[1]}"
    if seen.cache_dtype is not None and seen.cache_dtype != settings.cache_dtype:
        return f"its cache was of the type {seen.cache_dtype[:40]}, and {settings.cache_dtype[:40]} is planned"
    return None


def _pool(seen: Observed, settings: EngineSettings, memory: float) -> float | None:
    """GiB of the cache at the planned share of `memory` GiB."""
    assert seen.kv is not None
    share = settings.utilization if seen.utilization is None else seen.utilization
    then = memory if seen.memory is None else seen.memory / GIB
    return seen.kv / GIB + settings.utilization * memory - share * then


def _tokens(seen: Observed, kv: float, window: int | None, launch: VllmLaunch) -> float | None:
    """Tokens of a pool of `kv` GiB, by those that were reported."""
    if seen.tokens is None or seen.kv is None or kv <= 0:
        return 0.0 if kv <= 0 else None
    found = seen.tokens * kv * GIB / seen.kv
    if window is None or seen.window is None or window == seen.window:
        return found
    now, then = launch.ratio(window, kv), launch.ratio(seen.window, kv)
    return found * now / then if now and then else found
