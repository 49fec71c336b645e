"""config.json of many shapes: read right, or said not to be known; never guessed, never an exception."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.apps.control.memory.arithmetic import CacheSettings, cache_layout
from gateway.apps.control.memory.geometry import AttentionLayers, Geometry, StateLayers, read_geometry

PLAIN = {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
GEMMA4 = {
    "model_type": "gemma4_text",
    "num_hidden_layers": 30,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_global_key_value_heads": 2,
    "head_dim": 256,
    "global_head_dim": 512,
    "sliding_window": 1024,
}
MAMBA = {"mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4}


def read(**config: Any) -> Geometry:
    geometry = read_geometry(config)
    assert isinstance(geometry, Geometry), geometry
    return geometry


def test_every_layer_of_a_plain_model_has_full_attention() -> None:
    assert read(**PLAIN).attention == (AttentionLayers(36, 8, 128, 128),)


def test_heads_without_a_size_share_the_hidden_size() -> None:
    assert read(num_hidden_layers=2, num_attention_heads=8, hidden_size=512).attention[0].key_dim == 64


def test_the_text_model_may_be_nested() -> None:
    assert read(text_config=PLAIN, vision_config={"num_hidden_layers": 27}) == read(**PLAIN)


def test_gemma4_has_other_heads_in_its_global_layers() -> None:
    full, sliding = read(text_config=GEMMA4).attention
    assert full == AttentionLayers(5, 2, 512, 512)
    assert sliding == AttentionLayers(25, 8, 256, 256, window=1024)


def test_written_kinds_of_layers_win() -> None:
    kinds = ["sliding_attention"] * 3 + ["full_attention"]
    full, sliding = read(**PLAIN, sliding_window=512, layer_types=kinds).attention
    assert (full.layers, sliding.layers, sliding.window) == (1, 3, 512)


@pytest.mark.parametrize(
    ("config", "full", "sliding"),
    [
        ({"model_type": "mistral"}, 0, 36),
        ({"model_type": "gemma3_text"}, 6, 30),
        ({"model_type": "gemma2"}, 18, 18),
        ({"model_type": "gemma4_text", "num_hidden_layers": 35}, 6, 29),
        ({"sliding_window_pattern": 4}, 9, 27),
    ],
)
def test_which_layers_slide_may_be_left_to_the_type_of_the_model(
    config: dict[str, Any], full: int, sliding: int
) -> None:
    kinds = read(**{**PLAIN, "sliding_window": 4096, **config}).attention
    assert sum(kind.layers for kind in kinds if kind.window is None) == full
    assert sum(kind.layers for kind in kinds if kind.window) == sliding


def test_a_sliding_window_that_is_switched_off_is_none() -> None:
    assert read(**PLAIN, sliding_window=4096, use_sliding_window=False).attention[0].window is None


def test_a_pattern_of_letters_is_read() -> None:
    geometry = read(**PLAIN, **MAMBA, model_type="nemotron_h", hybrid_override_pattern="MEM*E-")
    assert geometry.attention[0].layers == 1
    assert geometry.states == (StateLayers(2, 64 * 64 + 2 * 8 * 128, 4, 64 * 64 * 128, 4),)


def test_layers_that_share_the_cache_of_others_have_none() -> None:
    assert read(**PLAIN, num_kv_shared_layers=6).attention[0].layers == 30


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"},
        {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8}},
    ],
)
def test_a_checkpoint_may_ask_for_an_fp8_cache(quantization: dict[str, Any]) -> None:
    geometry = read(text_config=PLAIN, quantization_config=quantization)
    assert geometry.fp8_cache
    assert geometry.quantization == quantization["quant_method"]


def test_the_window_is_that_of_the_text_model() -> None:
    assert read(text_config={**PLAIN, "max_position_embeddings": 262_144}).window == 262_144


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({}, "num_hidden_layers"),
        ({"num_hidden_layers": 36}, "num_attention_heads"),
        ({**PLAIN, "layer_types": ["full_attention", "retention"]}, "'retention'"),
        ({**PLAIN, "num_hidden_layers": 10**6}, "more than 2000 layers"),
        ({"num_hidden_layers": 2, "num_attention_heads": 64, "hidden_size": 8}, "more heads"),
        ({**PLAIN, **MAMBA}, "which of its layers"),
        ({**PLAIN, "layer_types": ["mamba"]}, "mamba_num_heads"),
        ({**PLAIN, "layer_types": ["sliding_attention"]}, "sliding_window"),
        ({**PLAIN, "sliding_window": 4096, "model_type": "new"}, "which layers slide"),
        ({"num_hidden_layers": 1, "num_attention_heads": 8, "hidden_size": 512, "model_type": "gemma3"}, "head_dim"),
        ({**PLAIN, "layer_types": ["moe"]}, "no layer with a cache"),
        ({**PLAIN, "model_type": "deepseek_v4"}, "compressed attention"),
        ({**PLAIN, "kv_lora_rank": 512, "index_head_dim": 128}, "indexer"),
        ([], "not an object"),
    ],
)
def test_what_is_not_known_is_said_to_be(config: Any, why: str) -> None:
    unknown = read_geometry(config)
    assert isinstance(unknown, str)
    assert why in unknown


FURTHER: tuple[str, ...] = (
    "layer_types",
    "hybrid_override_pattern",
    "kv_lora_rank",
    "linear_num_value_heads",
    "text_config",
)
FURTHER += ("quantization_config", "full_attention_interval", "torch_dtype", "num_kv_shared_layers")
keys = st.sampled_from([*PLAIN, *GEMMA4, *MAMBA, *FURTHER])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["full_attention", "mamba", "M*", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=12,
)


@given(values | st.dictionaries(keys, values, max_size=12))
def test_odd_configs_never_raise(config: Any) -> None:
    geometry = read_geometry(config)
    if isinstance(geometry, Geometry):
        layout = cache_layout(geometry, CacheSettings(4096, 2))
        assert layout.block_bytes > 0
        assert layout.window_blocks > 0
