"""The arithmetic of the plan, with whatever is put into it."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.apps.control.memory.arithmetic import CacheSettings, cache_layout, longest_window, pool_of, resident_gib
from gateway.apps.control.memory.geometry import AttentionLayers, Geometry, StateLayers, read_geometry
from gateway.apps.control.memory.plan import plan
from gateway.config.snapshot import Backend
from tests.apps.control.memory.sparks import CATALOG, ESTIMATE_ONLY, demand, fleet, ollama, qwen4b, qwen36, qwen80b

counts = st.integers(1, 128)
attentions = st.builds(
    AttentionLayers,
    layers=counts,
    kv_heads=counts,
    key_dim=counts,
    value_dim=st.integers(0, 128),
    window=st.none() | st.integers(1, 10**6),
    latent=st.booleans(),
)
states = st.builds(
    StateLayers, counts, st.integers(1, 20_000), st.integers(1, 8), st.integers(1, 10**6), st.sampled_from((2, 4))
)
geometries = st.builds(
    Geometry,
    attention=st.lists(attentions, min_size=1, max_size=2).map(tuple),
    states=st.lists(states, max_size=1).map(tuple),
    draft_layers=st.integers(0, 2),
)
settings = st.builds(
    CacheSettings,
    window=st.integers(1, 10**6),
    element_bytes=st.sampled_from((0.5625, 1.0, 2.0, 4.0)),
    block=st.sampled_from((16, 32, 256)),
    batched_tokens=st.integers(1, 65536),
    drafts=st.integers(0, 16),
    own_drafts=st.booleans(),
    prefix_caching=st.booleans(),
    shards=st.integers(1, 4),
)
utilizations = st.floats(0.01, 1.0)


# -- the cache's layout -----------------------------------------------------------------------------------------------

HYBRID = {
    "num_hidden_layers": 40,
    "full_attention_interval": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 1,
}


def geometry(**config: Any) -> Geometry:
    read = read_geometry(config)
    assert isinstance(read, Geometry), read
    return read


def test_a_hybrids_blocks_are_padded_to_the_size_of_a_state() -> None:
    """The 2,128 tokens that vLLM's assertion names for Qwen3.6 with two drafts and an FP8 cache."""
    layout = cache_layout(geometry(**HYBRID), CacheSettings(131_072, 1, drafts=2, own_drafts=True))
    assert layout.block_tokens == 2128


def test_a_hybrids_pool_takes_the_tokens_that_vllm_logs() -> None:
    drafting = CacheSettings(65_536, 1, batched_tokens=8192, drafts=3, own_drafts=True)
    pool = pool_of(76.49, cache_layout(geometry(**HYBRID), drafting), 65_536)
    assert pool.tokens == 4_843_965
    assert round(pool.windows, 2) == 73.91


def test_a_model_of_full_attention_takes_two_vectors_per_head_layer_and_token() -> None:
    qwen4b = geometry(num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128)
    layout = cache_layout(qwen4b, CacheSettings(16_384, 2))
    assert layout.block_bytes / layout.block_tokens == 36 * 8 * 128 * 2 * 2
    assert layout.window_gib == 2.25


def test_half_of_a_models_heads_is_on_each_of_two_nodes() -> None:
    qwen4b = geometry(num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128)
    one, both = (cache_layout(qwen4b, CacheSettings(16_384, 2, shards=shards)) for shards in (1, 2))
    assert both.block_bytes * 2 == one.block_bytes


def test_latent_attention_is_whole_on_every_node() -> None:
    mla = geometry(num_hidden_layers=61, kv_lora_rank=512, qk_rope_head_dim=64, num_attention_heads=128)
    one, both = (cache_layout(mla, CacheSettings(16_384, 2, shards=shards)) for shards in (1, 2))
    assert one == both
    assert one.block_bytes == 61 * 576 * 2 * 16


def test_sliding_layers_keep_their_window_only() -> None:
    gemma = CATALOG.row("google/gemma-4-26B-A4B-it")
    assert gemma is not None
    assert isinstance(gemma.geometry, Geometry)
    short, long = (cache_layout(gemma.geometry, CacheSettings(window, 1)).window_gib for window in (65_536, 131_072))
    full = replace(gemma.geometry, attention=tuple(replace(one, window=None) for one in gemma.geometry.attention))
    assert long < 2 * short
    assert cache_layout(full, CacheSettings(131_072, 1)).window_gib > 5 * long


@given(geometries, settings, st.floats(-200, 200))
def test_a_pool_is_never_negative(geometry: Geometry, settings: CacheSettings, gib: float) -> None:
    pool = pool_of(gib, cache_layout(geometry, settings), settings.window)
    assert pool.gib >= 0
    assert pool.tokens >= 0
    assert pool.windows >= 0


@given(geometries, settings, st.floats(0, 200), st.floats(0, 200))
def test_a_larger_pool_never_takes_less(geometry: Geometry, settings: CacheSettings, gib: float, more: float) -> None:
    layout = cache_layout(geometry, settings)
    assert pool_of(gib, layout, settings.window).tokens <= pool_of(gib + more, layout, settings.window).tokens


@given(geometries, settings, st.floats(0, 2))
def test_the_longest_window_fits_and_one_token_more_does_not(
    geometry: Geometry, settings: CacheSettings, gib: float
) -> None:
    longest = longest_window(gib, geometry, settings)

    def fits(window: int) -> bool:
        return pool_of(gib, cache_layout(geometry, replace(settings, window=window)), window).windows >= 1

    assert longest == 0 or fits(longest)
    assert longest == settings.window or not fits(longest + 1)


@given(st.floats(0, 500), st.floats(0, 500))
def test_an_engine_with_a_larger_target_never_holds_less(target: float, more: float) -> None:
    assert target <= resident_gib(target) <= resident_gib(target + more)


# -- whole plans ------------------------------------------------------------------------------------------------------


@given(utilizations, utilizations, st.sampled_from((qwen36, lambda u: qwen80b(u, 32768, 2), lambda u: qwen4b(u, 8192))))
def test_a_larger_share_never_gives_less_cache(one: float, other: float, launch: Any) -> None:
    small, large = (demand(launch(share), ESTIMATE_ONLY) for share in sorted((one, other)))
    assert (small.kv or 0.0) <= (large.kv or 0.0)
    assert (small.tokens or 0) <= (large.tokens or 0)
    assert (small.resident or 0.0) <= (large.resident or 0.0)


SEVERAL = (qwen36(0.3), qwen80b(0.4, 32768, 2), qwen4b(0.1, 16384), ollama("qwen8b", "qwen3:8b"))


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_the_order_in_the_file_changes_nothing(order: tuple[int, ...]) -> None:
    assert plan(fleet(*(SEVERAL[i] for i in order)), None, CATALOG) == plan(fleet(*SEVERAL), None, CATALOG)


@given(st.lists(utilizations, max_size=4), st.sampled_from((None, 16.0, 119.67)))
def test_what_stays_free_is_never_negative(shares: list[float], memory: float | None) -> None:
    backends = [replace(qwen4b(share, 4096), name=f"b{at}") for at, share in enumerate(shares)]
    for node in plan(fleet(*backends, memory=memory), None, CATALOG).nodes.values():
        assert node.free is None or node.free >= 0
        assert (node.fits == "no") == bool(node.failed)
        assert memory is not None or node.fits == "unknown"


odd_values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.lists(st.integers())
odd_flags = st.sampled_from(
    [
        "gpu-memory-utilization",
        "max-model-len",
        "max-num-seqs",
        "max-num-batched-tokens",
        "kv-cache-dtype",
        "block-size",
        "tensor-parallel-size",
        "pipeline-parallel-size",
        "speculative-config",
        "kv-cache-memory-bytes",
        "enable-prefix-caching",
        "quantization",
    ]
)


@given(st.dictionaries(odd_flags, odd_values, max_size=5), st.sampled_from([qwen36, lambda u: qwen4b(u, 16384)]))
def test_odd_values_of_flags_never_raise(flags: dict[str, Any], launch: Any) -> None:
    backend: Backend = launch(0.5)
    assert backend.launch is not None
    odd = replace(backend.launch.parsed, flags={**backend.launch.parsed.flags, **flags})
    plan(fleet(replace(backend, launch=replace(backend.launch, parsed=odd))), None, CATALOG)
