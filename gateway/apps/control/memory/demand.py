"""What one backend asks of one node: memory that must be free when it starts, and what it holds once it runs.

vLLM takes a share of the whole memory (`--gpu-memory-utilization`): first for the weights, then for what its profiling
run finds, and the rest for the cache. Ollama takes the weights and a cache for the window of every slot. Of other
servers only a measured `launch.resident` is known. Pure; a figure that is not known is None, never a guess.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from gateway.apps.control.memory.arithmetic import (
    ENGINE_GIB,
    GIB,
    OLLAMA_GIB,
    SYSTEM_GIB,
    CacheSettings,
    Pool,
    cache_layout,
    longest_window,
    pool_by_token,
    pool_of,
    profile_gib,
    resident_gib,
)
from gateway.apps.control.memory.geometry import Geometry
from gateway.apps.control.memory.model_catalog import FieldReport, MeasuredMemory, ModelCatalog, ModelRow, weights_of
from gateway.apps.control.memory.model_files import ModelFiles
from gateway.apps.control.memory.settings import EngineSettings, engine_settings
from gateway.config.snapshot import Backend
from gateway.domain.engine_traits import traits_of
from gateway.launch.command import ServeCommand

Verdict = Literal["yes", "barely", "no", "unknown"]
Source = Literal["measured", "observed", "estimated", "unknown"]

_OFF = 0.10  # a measured figure that differs by more from the estimate is worth a note


@dataclass(frozen=True, slots=True)
class Demand:
    """The memory that `backend` asks of one node, in GiB. `needs`: free at its start; `resident`: held once it runs, as
    `source` says; `overhead`: gone beside that. `weights`, `kv`: this node's share; `tokens`, `windows`: of the whole
    engine. `verdict`, `reason`: whether the engine starts where it is alone. `note`: a remark for the operator."""

    backend: str
    needs: float | None = None
    resident: float | None = None
    overhead: float = 0.0
    target: float | None = None
    weights: float | None = None
    kv: float | None = None
    tokens: int | None = None
    windows: float | None = None
    source: Source = "unknown"
    verdict: Verdict = "yes"
    reason: str = ""
    note: str = ""

    @property
    def held(self) -> float | None:
        """GiB of the node's memory that are gone once it runs."""
        return None if self.resident is None else self.resident + self.overhead


@dataclass(frozen=True, slots=True)
class Place:
    """Where a backend is planned: GiB of this node, and of every node it runs on whose memory is known."""

    memory: float
    memories: tuple[float, ...]


def demand_of(
    backend: Backend, command: ServeCommand, place: Place, catalog: ModelCatalog, files: ModelFiles | None = None
) -> Demand:
    """The demand of a backend that is started by `command`, which profiles and what-ifs may have changed."""
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
    changed = (settings.utilization, settings.cache_gib) != (written.utilization, written.cache_gib)
    demand = _VllmLaunch(backend, command, settings, place, catalog, files).demand()
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
    return Demand(backend.name, held, held, 0.0, None, weights, kv, tokens, float(slots), "estimated")


def _unknown(backend: Backend, reason: str) -> Demand:
    return Demand(backend.name, verdict="unknown", reason=reason)


# -- vLLM -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _VllmLaunch:
    """One launch of vLLM on one node, and its model."""

    backend: Backend
    command: ServeCommand
    settings: EngineSettings
    place: Place
    catalog: ModelCatalog
    files: ModelFiles | None

    @property
    def model(self) -> str:
        return self.command.model or self.backend.model or ""

    @property
    def row(self) -> ModelRow | None:
        return self.catalog.row(self.model) if self.model else None

    @property
    def target(self) -> float:
        return self.settings.utilization * self.place.memory

    @property
    def share(self) -> int:
        """Over how many nodes its weights and heads are split."""
        return max(1, min(self.settings.shards, len(self.place.memories)))

    @property
    def measured(self) -> MeasuredMemory | None:
        row = self.row
        return row.measured if row is not None and row.measured and row.measured.nodes == self.share else None

    @property
    def geometry(self) -> Geometry | str:
        """The geometry by the model's files, else by the catalogue."""
        files, row = self.files, self.row
        if files is not None and isinstance(files.geometry, Geometry):
            return files.geometry
        if row is not None and isinstance(row.geometry, Geometry):
            return row.geometry
        if files is not None and isinstance(files.geometry, str):
            return files.geometry
        return row.geometry if row is not None else "there is no config.json of it here, and no row in the catalogue"

    @property
    def window(self) -> int | None:
        own = self.geometry.window if isinstance(self.geometry, Geometry) else None
        return self.settings.window or own or (self.row.own_window if self.row is not None else None)

    def demand(self) -> Demand:
        weights = self._weights()
        if self.settings.open:
            return self._open(weights)
        target = self.target
        cache = self.settings.cache_gib
        held = resident_gib(target)
        if cache is not None and weights is not None:
            held = weights + self._besides() + cache
        plain = Demand(self.backend.name, target, held, ENGINE_GIB, target, weights, source="estimated")
        return self._reported(self._with_cache(plain, weights))

    def _open(self, weights: float | None) -> Demand:
        """The demand as far as it is known without the flags whose values are references."""
        settings, names = self.settings, ", ".join(f"--{flag}" for flag in self.settings.open)
        what = "its value is" if len(settings.open) == 1 else "their values are"
        why = f"{names}: {what} known only where it is started; write the number, or try it with --set"
        target = self.target if settings.knows_share else None
        held = resident_gib(self.target) if settings.knows_held and settings.cache_gib is None else None
        known = Demand(self.backend.name, target, held, ENGINE_GIB, target, weights, verdict="unknown", reason=why)
        return known if held is None else replace(known, source="estimated")

    def _weights(self) -> float | None:
        """GiB on this node, a drafter's included."""
        if self.measured is not None:
            return self.measured.weights
        row, whole = self.row, None
        if row is not None and self.settings.quantization is not None:
            whole = row.quantized.get(self.settings.quantization.lower())
        if whole is None and self.files is not None:
            whole = self.files.weights
        if whole is None and row is not None:
            whole = weights_of(row, self.model)
        if whole is None:
            return None
        drafter = self.settings.draft_model
        drafter_row = self.catalog.row(drafter) if drafter else None
        drafts = weights_of(drafter_row, drafter) if drafter and drafter_row is not None else None
        return whole / self.share + (drafts or 0.0)

    def _besides(self) -> float:
        return self.measured.besides if self.measured is not None else profile_gib(self.settings.batched_tokens)

    def _pool_gib(self, memory: float, weights: float) -> float:
        if self.settings.cache_gib is not None:
            return self.settings.cache_gib
        return self.settings.utilization * memory - weights - self._besides()

    def _with_cache(self, plain: Demand, weights: float | None) -> Demand:
        if weights is None:
            why = f"the weights of {self.model or 'its model'} are not known: name their folder with --models DIR"
            return replace(plain, verdict="unknown", reason=why)
        gib = self._pool_gib(self.place.memory, weights)
        if gib <= 0:
            why = (
                f"its {weights:.1f} GiB of weights and the {self._besides():.1f} GiB that the engine needs beside them "
                f"leave nothing of its {self.target:.1f} GiB for the cache"
            )
            return replace(plain, kv=0.0, tokens=0, windows=0.0, verdict="no", reason=why)
        return self._with_pool(replace(plain, kv=gib), self._pool_gib(min(self.place.memories), weights))

    def _with_pool(self, demand: Demand, smallest: float) -> Demand:
        """Add the pool; the node with the smallest pool decides for the whole engine."""
        window, geometry = self.window, self.geometry
        if window is None:
            return replace(demand, verdict="unknown", reason="its window is not known: write --max-model-len")
        if self.measured is not None and isinstance(geometry, str):
            return self._with_windows(demand, pool_by_token(smallest, self.measured.token, window), window, None)
        if isinstance(geometry, str):
            return replace(demand, verdict="unknown", reason=f"what a token takes is not known: {geometry}")
        element = self.settings.element_bytes(geometry)
        if element is None:
            why = f"a KV cache of the type {self.settings.cache_dtype[:40]} is not known here"
            return replace(demand, verdict="unknown", reason=why)
        cache = self._cache_settings(geometry, window, element)
        layout = cache_layout(geometry, cache)
        pool = pool_of(smallest, layout, window)
        if pool.windows < 1 and self.settings.fits_window and (window := longest_window(smallest, geometry, cache)):
            layout = cache_layout(geometry, replace(cache, window=window))
            pool = pool_of(smallest, layout, window)
        longest = longest_window(smallest, geometry, cache) if pool.windows < 1 else None
        return self._with_windows(demand, pool, window, longest, layout.window_gib)

    def _cache_settings(self, geometry: Geometry, window: int, element: float) -> CacheSettings:
        settings = self.settings
        prefix = settings.prefix_caching
        return CacheSettings(
            window,
            element,
            settings.block,
            settings.batched_tokens,
            settings.drafts,
            own_drafts=settings.drafts > 0 and settings.draft_model is None,
            prefix_caching=not geometry.states if prefix is None else prefix,
            shards=self.share,
        )

    def _with_windows(
        self, demand: Demand, pool: Pool, window: int, longest: int | None, window_gib: float | None = None
    ) -> Demand:
        demand = replace(demand, tokens=pool.tokens, windows=pool.windows)
        if pool.windows >= 1:
            return demand
        size = f" take {window_gib:.1f} GiB of cache" if window_gib is not None else " do not fit into the cache"
        fits = f"; at most {longest:,} fit" if longest else ""
        why = f"the {window:,} tokens of one full window{size}, and it has {pool.gib:.1f} GiB{fits}"
        return replace(demand, verdict="no", reason=why)

    # -- the field ----------------------------------------------------------------------------------------------------

    def _reported(self, demand: Demand) -> Demand:
        """Apply the report of such a launch: a verdict beats the arithmetic, a residency the estimate."""
        window, sequences = self.window, self.settings.sequences
        if window is None:
            return demand
        reports = self.catalog.reports(self.model, self.settings.cache_dtype)
        same = next((one for one in reports if one.is_of(self.target, window, sequences)), None)
        deciding = same or next((one for one in reports if one.decides(self.target, window, sequences)), None)
        if same is not None and same.resident is not None:
            overhead = ENGINE_GIB if same.overhead is None else max(0.0, same.overhead - SYSTEM_GIB)
            demand = replace(demand, resident=same.resident, overhead=overhead)
        return demand if deciding is None else _decided(demand, deciding, same is deciding)


def _decided(demand: Demand, report: FieldReport, same: bool) -> Demand:
    launch = "this launch" if same else f"a launch that asks for no {'less' if report.works else 'more'}"
    outcome = "to work" if report.works else f"to fail with {report.reason or 'an error'}"
    stated = f"{launch} is reported from the field {outcome} ({report.source or 'the catalogue'})"
    if report.works:
        return replace(demand, verdict="yes", reason="", note=stated)
    return replace(demand, verdict="no", reason=stated)
