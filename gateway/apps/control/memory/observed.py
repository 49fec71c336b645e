"""The demand of an engine that has told what it holds (`observed` of routes.yaml): its own figures instead of
estimates.

They are those of one launch. With another share of memory the cache grows by the difference; for another window the
tokens follow the layout of the cache, where that is known. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, replace

from gateway.apps.control.memory.arithmetic import GIB
from gateway.apps.control.memory.demand import Demand
from gateway.apps.control.memory.settings import EngineSettings
from gateway.config.snapshot import Observed

Tokens = Callable[[int, float], float | None]
"""The estimate of how many tokens of this window a pool of so many GiB holds; None if not known."""
# What changes the size of the pool or of its window, and nothing else of the figures.
_SCALED = ("utilization", "window", "fits_window", "sequences", "cache_gib", "open", "refused")


def observed_demand(
    demand: Demand,
    seen: Observed,
    settings: EngineSettings,
    written: EngineSettings,
    memory: float,
    tokens: Tokens,
    version: tuple[int, int] | None = None,
) -> Demand:
    """`demand` with what the engine said. `settings` are those that are planned with, `written` those of the file;
    `memory`: GiB of the node; `version`: of vLLM, where the image tells it. Unchanged, with a note, where it ran with
    another type of cache or was started otherwise than is planned."""
    apart = _difference(seen, settings, written, version)
    if apart is not None or settings.open:
        return demand if apart is None else replace(demand, note=f"what it reported is not used: {apart}")
    weights = demand.weights if seen.weights is None else seen.weights / GIB
    demand = replace(demand, weights=weights)
    if seen.kv is None:
        return demand
    kv = settings.cache_gib if settings.cache_gib is not None else _pool(seen, settings, memory)
    window = settings.window or seen.window
    found = _tokens(seen, kv, window, tokens) if kv is not None else None
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


def _tokens(seen: Observed, kv: float, window: int | None, tokens: Tokens) -> float | None:
    """Tokens of a pool of `kv` GiB, by those that were reported."""
    if seen.tokens is None or seen.kv is None or kv <= 0:
        return 0.0 if kv <= 0 else None
    found = seen.tokens * kv * GIB / seen.kv
    if window is None or seen.window is None or window == seen.window:
        return found
    now, then = tokens(window, kv), tokens(seen.window, kv)
    return found * now / then if now and then else found
