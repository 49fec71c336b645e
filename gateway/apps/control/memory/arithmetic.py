"""The arithmetic of an engine's memory: the cache's layout, its pool, what the engine holds. Pure, in bytes and GiB.

The layout of the cache follows vLLM 0.32 (`vllm/v1/core/kv_cache_utils.py`): layers are put into groups of equal size,
the pages of all groups are equally large, and a sequence takes whole blocks of every group. The constants are fitted to
what operators of DGX Sparks measured; docs/fleet.md has the figures, test_vllm_launch.py holds them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Literal

from gateway.apps.control.memory.geometry import AttentionLayers, Geometry, StateLayers

GIB = 2**30

SYSTEM_GIB = 3.6
"""What the machine itself holds after its page cache was dropped: 116 of 119.67 GiB were free. `nodes.*.reserve` says
otherwise."""
GRAPHS_GIB = 0.6
"""CUDA graphs of a model on one node, which vLLM counts from 0.21 on."""
GRAPHS_FROM = (0, 21)
ENCODER_GIB = 0.6
"""What the profiling run of an encoder of images finds, and its cache."""
NODES_GIB = 16.0
"""The most that an engine over several nodes was seen to take beside the estimate: larger graphs, its loader, buffers
of its links. The least is nothing."""
PICTURES_GIB = 4.0
"""vLLM's default of --mm-processor-cache-gb: memory outside the target that fills while pictures come."""
DRAFTER_GIB = 5.0
"""The most that a drafter of its own (DFlash, EAGLE) was seen to take beside its weights and its cache. The least is
nothing."""
LOADING_SHARE = 0.5
LOADING_MOST_GIB = 24.0
"""Share of the weights, and the most, that is gone beside the target while an engine with an encoder loads and
profiles: 112 of 119 GiB were at 0.70 with 48.5 GiB of weights, 115 of 121.69 in another report."""
LOADING_MARGIN_GIB = 8.0
"""With less free than this while they load, hosts were seen to stall."""
ENGINE_GIB = 1.5
"""What a running vLLM takes beside what it holds by its own account. One engine and the system make about 5 GiB."""
ADVISED_FREE_GIB = 4.0
"""Less than this free behind all engines is `barely`."""
OLLAMA_GIB = 1.0
"""Compute buffers of a model in Ollama."""

_PROFILE_GIB = 0.9  # activations and CUDA graphs beside the weights, with batches of _SMALL_BATCH tokens
_PROFILE_PER_1024_GIB = 0.4
_SMALL_BATCH = 2048
_EXTRA_GIB = 2.8  # by which an engine of a tiny target exceeds it; nothing from _EXTRA_UNTIL_GIB on
_EXTRA_UNTIL_GIB = 35.0
_CHUNK = 16  # attention kernels take blocks of a multiple of so many tokens


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """`window` in tokens; `element_bytes` of a cached value (1 for FP8); `shards`: over how many GPUs heads are split.
    `drafts`: speculative tokens; `own_drafts`: by the model's own MTP head, whose layers have a cache too."""

    window: int
    element_bytes: float
    block: int = _CHUNK
    batched_tokens: int = _SMALL_BATCH
    drafts: int = 0
    own_drafts: bool = False
    prefix_caching: bool = True
    shards: int = 1


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """`block_bytes`: one block of the pool. `window_blocks`: blocks of one sequence at full window. `block_tokens`:
    tokens in a block of the layers with full attention (--block-size, or larger in hybrids)."""

    block_bytes: int
    window_blocks: int
    block_tokens: int

    @property
    def window_gib(self) -> float:
        return self.block_bytes * self.window_blocks / GIB


@dataclass(frozen=True, slots=True)
class Pool:
    """The cache of one engine on one node. `tokens`, `windows`: as vLLM logs them, capacity and concurrency."""

    gib: float
    tokens: int
    windows: float


@dataclass(frozen=True, slots=True)
class _Layers:
    """Layers of one kind: bytes of a token, or of a whole state (`token_bytes` 0)."""

    layers: int
    token_bytes: int = 0
    state_bytes: int = 0
    window: int | None = None


def cache_layout(geometry: Geometry, settings: CacheSettings) -> CacheLayout:
    """How the cache of such a model is laid out on one node."""
    kinds = [_attention(kind, geometry, settings) for kind in geometry.attention]
    kinds += [_state(kind, geometry, settings) for kind in geometry.states]
    block, page = _page(kinds, settings.block)
    fewest, most = min(kind.layers for kind in kinds), max(kind.layers for kind in kinds)
    size = most if most < 1.5 * fewest else fewest  # layers of a group; see vLLM's comment on 12 and 13 layers
    blocks = sum(ceil(kind.layers / size) * _blocks(kind, page, block, settings) for kind in kinds)
    return CacheLayout(page * size, blocks, block)


def _attention(kind: AttentionLayers, geometry: Geometry, settings: CacheSettings) -> _Layers:
    heads = kind.kv_heads if kind.latent else max(1, kind.kv_heads // settings.shards)
    drafts = geometry.draft_layers if settings.own_drafts and kind.window is None else 0
    per_token = ceil(heads * (kind.key_dim + kind.value_dim) * settings.element_bytes)
    return _Layers(kind.layers + drafts, per_token, window=kind.window)


def _state(kind: StateLayers, geometry: Geometry, settings: CacheSettings) -> _Layers:
    conv = ceil(kind.conv_channels / settings.shards) * (kind.conv_kernel - 1 + settings.drafts)
    state = ceil(kind.state_values / settings.shards)
    return _Layers(kind.layers, state_bytes=conv * geometry.element_bytes + state * kind.state_bytes)


def _page(kinds: list[_Layers], block: int) -> tuple[int, int]:
    """(tokens of a block, bytes of a page). A page of the attention layers must hold a whole state: hybrids get blocks
    of hundreds of tokens."""
    token = max(kind.token_bytes for kind in kinds)
    state = max(kind.state_bytes for kind in kinds)
    if not token:
        return block, state
    if state:
        chunk = max(_CHUNK, block)
        block = max(block, chunk * ceil(ceil(state / token) / chunk))
    return block, block * token


def _blocks(kind: _Layers, page: int, block: int, settings: CacheSettings) -> int:
    """Blocks of one group of such layers for a sequence at full window."""
    if not kind.token_bytes:
        return (2 if settings.prefix_caching else 1) + settings.drafts
    tokens = page // kind.token_bytes if page % kind.token_bytes == 0 else block
    if kind.window is None:
        return ceil(settings.window / tokens)
    return ceil(min(kind.window - 1 + settings.batched_tokens, settings.window) / tokens) + 1


# -- the pool ---------------------------------------------------------------------------------------------------------


def pool_of(gib: float, layout: CacheLayout, window: int) -> Pool:
    """The pool of `gib` (empty where that is negative) and the size it takes."""
    blocks = floor(max(gib, 0.0) * GIB / layout.block_bytes)
    windows = blocks / layout.window_blocks
    return Pool(max(gib, 0.0), int(windows * window), windows)


def pool_by_token(gib: float, bytes_per_token: float, window: int) -> Pool:
    """The same from a measured size of a token."""
    tokens = int(max(gib, 0.0) * GIB / bytes_per_token)
    return Pool(max(gib, 0.0), tokens, tokens / window)


def profile_gib(batched_tokens: int) -> float:
    """GiB that vLLM's profiling run finds beside the weights: activations of a full batch and CUDA graphs."""
    return _PROFILE_GIB + _PROFILE_PER_1024_GIB * max(0, batched_tokens - _SMALL_BATCH) / 1024


def resident_gib(target: float) -> float:
    """GiB held by an engine that was given `target` GiB. A small one exceeds its target: CUDA context, libraries and
    graphs are not counted by vLLM; in a large one the untouched rest of its pool hides them."""
    return target + _EXTRA_GIB * max(0.0, 1 - target / _EXTRA_UNTIL_GIB)


def longest_window(gib: float, geometry: Geometry, settings: CacheSettings) -> int:
    """The longest window in tokens of which one sequence fits into a pool of `gib`; 0 = none. At most
    `settings.window`."""
    fits, too_long = 0, settings.window + 1
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        layout = cache_layout(geometry, replace(settings, window=middle))
        if pool_of(gib, layout, middle).windows >= 1:
            fits = middle
        else:
            too_long = middle
    return fits


Verdict = Literal["yes", "barely", "no", "unknown"]
Source = Literal["measured", "observed", "estimated", "unknown"]


@dataclass(frozen=True, slots=True)
class Demand:
    """The memory that `backend` asks of one node, in GiB. `needs`: free at its start; `resident`: held once it runs, as
    `source` says; `overhead`: gone beside that; `loading`: the most that is gone while it loads and profiles, None
    where that is not known to be more. `weights`, `kv`: this node's share; `tokens`, `windows`: of the whole engine;
    `span`: the fewest and the most tokens where `tokens` is not sure enough to be named. `verdict`, `reason`: whether
    the engine starts where it is alone. `note`: a remark for the operator. `grows`: what it may come to hold beside all
    that while it is used."""

    backend: str
    needs: float | None = None
    resident: float | None = None
    overhead: float = 0.0
    target: float | None = None
    weights: float | None = None
    kv: float | None = None
    tokens: int | None = None
    windows: float | None = None
    span: tuple[int, int] | None = None
    loading: float | None = None
    source: Source = "unknown"
    verdict: Verdict = "yes"
    reason: str = ""
    note: str = ""
    grows: float = 0.0

    @property
    def held(self) -> float | None:
        """GiB of the node's memory that are gone once it runs."""
        return None if self.resident is None else self.resident + self.overhead
