"""What a launch of vLLM asks of one node, by the arithmetic and the catalogue: an estimate. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gateway.apps.control.memory.arithmetic import (
    DRAFTER_GIB,
    ENCODER_GIB,
    ENGINE_GIB,
    GRAPHS_FROM,
    GRAPHS_GIB,
    NODES_GIB,
    PICTURES_GIB,
    SYSTEM_GIB,
    CacheSettings,
    Demand,
    Pool,
    cache_layout,
    longest_window,
    pool_by_token,
    pool_of,
    profile_gib,
    resident_gib,
)
from gateway.apps.control.memory.geometry import Geometry
from gateway.apps.control.memory.model_catalog import (
    FieldReport,
    MeasuredMemory,
    ModelCatalog,
    ModelRow,
    host_path,
    weights_of,
)
from gateway.apps.control.memory.model_files import ModelFiles
from gateway.apps.control.memory.settings import EngineSettings
from gateway.config.snapshot import Backend
from gateway.launch.command import ServeCommand
from gateway.launch.families import takes_images

_SURE = 0.10  # a figure of a wider span, to each side of its middle, is not named


@dataclass(frozen=True, slots=True)
class VllmLaunch:
    """One launch of vLLM on one node, and its model. GiB: `memory` of this node, `memories` of every node it runs on
    whose memory is known."""

    backend: Backend
    command: ServeCommand
    settings: EngineSettings
    memory: float
    memories: tuple[float, ...]
    catalog: ModelCatalog
    files: ModelFiles | None

    @property
    def model(self) -> str:
        name, launch = self.command.model or self.backend.model or "", self.backend.launch
        if launch is None or (name and self.catalog.row(name) is not None):
            return name
        return host_path(name, launch.mounts)

    @property
    def row(self) -> ModelRow | None:
        return self.catalog.row(self.model) if self.model else None

    @property
    def target(self) -> float:
        return self.settings.utilization * self.memory

    @property
    def share(self) -> int:
        """Over how many nodes its weights and heads are split."""
        return max(1, min(self.settings.shards, len(self.memories)))

    @property
    def measured(self) -> MeasuredMemory | None:
        row, settings = self.row, self.settings
        found = row.measured if row is not None else ()
        launch = (self.model, self.share, settings.cache_dtype, settings.batched_tokens)
        return next((one for one in found if one.holds(*launch)), None)

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
            held = weights + self._besides()[1] + cache
        pictures = self.settings.picture_cache_gib
        overhead = ENGINE_GIB + ((pictures or 0.0) if self.encodes else 0.0)
        plain = Demand(self.backend.name, target, held, overhead, target, weights, source="estimated")
        plain = replace(plain, grows=PICTURES_GIB if self.encodes and pictures is None else 0.0)
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
        return whole / self.share + (self._drafter[1] or 0.0)

    @property
    def _drafter(self) -> tuple[Geometry | str | None, float | None]:
        """(geometry, GiB) of the drafter that is a checkpoint of its own; None of what is not known."""
        name, files = self.settings.draft_model, self.files.drafter if self.files is not None else None
        row = self.catalog.row(name) if name else None
        geometry = files.geometry if files is not None else row.geometry if row is not None else None
        weights = files.weights if files is not None else weights_of(row, name) if row is not None and name else None
        return geometry, weights

    def _besides(self) -> tuple[float, float]:
        """The least and the most GiB that the engine takes beside its weights and its cache."""
        if self.measured is not None:
            return self.measured.besides
        geometry, settings = self.geometry, self.settings
        found = profile_gib(settings.batched_tokens)
        if settings.graphs and (self.version or (0, 0)) >= GRAPHS_FROM:
            found += GRAPHS_GIB
        if isinstance(geometry, Geometry) and geometry.encoder and settings.encodes:
            found += ENCODER_GIB
        drafter = DRAFTER_GIB if settings.draft_model is not None and not settings.own_head else 0.0
        return found, found + (NODES_GIB if self.share > 1 else drafter)

    @property
    def encodes(self) -> bool:
        """Whether it takes images, as far as its files or its name tell."""
        geometry = self.geometry
        has_encoder = isinstance(geometry, Geometry) and geometry.encoder
        return self.settings.encodes and (has_encoder or takes_images(self.model) is True)

    @property
    def version(self) -> tuple[int, int] | None:
        """Of vLLM, where the image's tag says it."""
        image = self.backend.launch.image if self.backend.launch is not None else None
        tag = re.search(r":v(\d+)\.(\d+)", image or "")
        return (int(tag[1]), int(tag[2])) if tag else None

    def _pool_gib(self, memory: float, weights: float) -> tuple[float, float]:
        if self.settings.cache_gib is not None:
            return self.settings.cache_gib, self.settings.cache_gib
        least, most = self._besides()
        left = self.settings.utilization * memory - weights
        return left - most, left - least

    def _with_cache(self, plain: Demand, weights: float | None) -> Demand:
        if weights is None and self.settings.cache_gib is None:
            why = f"the weights of {self.model or 'its model'} are not known: name their folder with --models DIR, or "
            return replace(plain, verdict="unknown", reason=f"{why}start it once and run `gateway fleet learn`")
        gib = self._pool_gib(self.memory, weights or 0.0)
        if gib[1] <= 0:
            why = (
                f"its {weights or 0.0:.1f} GiB of weights and the {self._besides()[0]:.1f} GiB that the engine needs "
                f"beside them leave nothing of its {self.target:.1f} GiB for the cache"
            )
            return replace(plain, kv=0.0, tokens=0, windows=0.0, verdict="no", reason=why)
        demand = self._with_pool(plain, gib, self._pool_gib(min(self.memories), weights or 0.0))
        return self._with_drafter(demand)

    def _with_drafter(self, demand: Demand) -> Demand:
        """Without a drafter's weights or layers the cache is smaller than the one computed."""
        geometry, weights = self._drafter
        own = self.settings.draft_model
        counted = weights is not None and (isinstance(geometry, Geometry) or self.settings.own_head)
        if own is None or counted or demand.verdict == "no" or self.measured is not None:
            return demand
        why = (
            f"the drafter {own[:80]} is not known, so its weights and its cache are not counted: name its folder with "
        )
        why += "--models DIR, or start it once and run `gateway fleet learn`"
        return replace(demand, kv=None, tokens=None, windows=None, span=None, verdict="unknown", reason=why)

    def _with_pool(self, demand: Demand, gib: tuple[float, float], smallest: tuple[float, float]) -> Demand:
        """Add the pool, which is between the least and the most GiB; the node with the smallest decides for the whole
        engine."""
        window = self.window
        demand = replace(demand, kv=_sure(gib))
        if window is None:
            return replace(demand, verdict="unknown", reason="its window is not known: write --max-model-len")
        measured, geometry = self.measured, self.geometry
        if measured is not None and isinstance(geometry, str):
            pools = (
                pool_by_token(smallest[0], measured.token[1], window),
                pool_by_token(smallest[1], measured.token[0], window),
            )
            return self._with_windows(demand, pools, window, None)
        if isinstance(geometry, str):
            return replace(demand, verdict="unknown", reason=f"what a token takes is not known: {geometry}")
        element = self.settings.element_bytes(geometry)
        if element is None:
            why = f"a KV cache of the type {self.settings.cache_dtype[:40]} is not known here"
            return replace(demand, verdict="unknown", reason=why)
        cache = self._cache_settings(geometry, window, element)
        geometry = self._with_draft_layers(geometry)
        layout = cache_layout(geometry, cache)
        if self.settings.fits_window and pool_of(smallest[1], layout, window).windows < 1:
            window = longest_window(smallest[1], geometry, cache) or window
            layout = cache_layout(geometry, replace(cache, window=window))
        pools = pool_of(smallest[0], layout, window), pool_of(smallest[1], layout, window)
        longest = longest_window(smallest[1], geometry, cache) if pools[1].windows < 1 else None
        return self._with_windows(demand, pools, window, longest, layout.window_gib)

    def _with_draft_layers(self, geometry: Geometry) -> Geometry:
        """The layers of a drafter have a cache beside those of the model."""
        drafter = self._drafter[0]
        if not isinstance(drafter, Geometry) or self.settings.own_head:
            return geometry
        return replace(geometry, attention=(*geometry.attention, *drafter.attention))

    def ratio(self, window: int, gib: float) -> float | None:
        """The estimate of how many tokens a pool of `gib` holds for this window; None if not known."""
        geometry = self.geometry
        element = self.settings.element_bytes(geometry) if isinstance(geometry, Geometry) else None
        if not isinstance(geometry, Geometry) or element is None:
            return None
        layout = cache_layout(self._with_draft_layers(geometry), self._cache_settings(geometry, window, element))
        return float(pool_of(gib, layout, window).tokens) or None

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
        self,
        demand: Demand,
        pools: tuple[Pool, Pool],
        window: int,
        longest: int | None,
        window_gib: float | None = None,
    ) -> Demand:
        least, most = pools
        tokens, windows = _sure((least.tokens, most.tokens)), _sure((least.windows, most.windows))
        span = None if tokens is not None else (least.tokens, most.tokens)
        demand = replace(demand, tokens=None if tokens is None else int(tokens), windows=windows, span=span)
        if least.windows >= 1:
            return demand
        if most.windows >= 1:
            why = f"its cache holds between {least.tokens:,} and {most.tokens:,} tokens, and a full window {window:,}: "
            return replace(demand, verdict="unknown", reason=f"{why}start it once and run `gateway fleet learn`")
        size = f" take {window_gib:.1f} GiB of cache" if window_gib is not None else " do not fit into the cache"
        fits = f"; at most {longest:,} fit" if longest else ""
        why = f"the {window:,} tokens of one full window{size}, and it has {most.gib:.1f} GiB{fits}"
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


def _sure(span: tuple[float, float]) -> float | None:
    """The middle of a span; None where it is wider than a tenth to each side."""
    least, most = span
    middle = (least + most) / 2
    return middle if most - middle <= _SURE * middle else None


def _decided(demand: Demand, report: FieldReport, same: bool) -> Demand:
    launch = "this launch" if same else f"a launch that asks for no {'less' if report.works else 'more'}"
    outcome = "to work" if report.works else f"to fail with {report.reason or 'an error'}"
    stated = f"{launch} is reported from the field {outcome} ({report.source or 'the catalogue'})"
    if report.works:
        return replace(demand, verdict="yes", reason="", note=stated)
    return replace(demand, verdict="no", reason=stated)
