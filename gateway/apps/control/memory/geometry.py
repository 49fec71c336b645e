"""What a model's `config.json` says of its memory: layers by kind, heads, windows, states.

`read_geometry` takes the parsed file of a Hugging Face checkpoint (the text model may be nested, as in models with
vision) and gives a `Geometry`, or a sentence that says why there is none. It never guesses: a kind of layer that is not
known here makes the whole geometry unknown. The names of the keys are those of transformers; which layers keep what in
vLLM's cache follows vLLM 0.32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_MOST = 10**9  # larger numbers in a config.json are no heads, layers or tokens
_MOST_LAYERS = 2000
_NESTED = ("text_config", "llm_config", "language_config")
_ENCODERS = ("vision_config", "audio_config")
_KINDS: Mapping[str, str] = {
    **dict.fromkeys(("full_attention", "attention", "*"), "full"),
    **dict.fromkeys(("sliding_attention", "local_attention"), "sliding"),
    **dict.fromkeys(("linear_attention", "mamba", "mamba2", "M"), "state"),
    **dict.fromkeys(("moe", "mlp", "E", "-"), "none"),
}
# Model types that leave it to their class which layers slide -> every how many layers one does not; 0 = all slide.
_PATTERNS = {"gemma4": 6, "gemma3": 6, "gemma2": 2, **dict.fromkeys(("mistral", "mixtral", "phi3", "starcoder2"), 0)}
_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2, "auto": 2}


@dataclass(frozen=True, slots=True)
class AttentionLayers:
    """`layers` of one kind that keep keys and values for every token, or for the last `window` tokens.

    `latent`: MLA, one vector of `key_dim` values for all heads (`kv_heads` 1, `value_dim` 0), whole on every node."""

    layers: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    latent: bool = False


@dataclass(frozen=True, slots=True)
class StateLayers:
    """`layers` (Mamba-2, Gated DeltaNet) that keep one state per sequence, however long it is.

    A state is `conv_channels` x (`conv_kernel` - 1) values of the model's type and `state_values` of `state_bytes`."""

    layers: int
    conv_channels: int
    conv_kernel: int
    state_values: int
    state_bytes: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """`window`: the longest context in tokens that the model was made for. `element_bytes`: of the model's own type.
    `fp8_cache`: the checkpoint asks for an FP8 KV cache. `draft_layers`: attention layers of its own MTP head.
    `encoder`: it takes images or sound."""

    attention: tuple[AttentionLayers, ...] = ()
    states: tuple[StateLayers, ...] = ()
    window: int | None = None
    element_bytes: int = 2
    fp8_cache: bool = False
    quantization: str | None = None
    draft_layers: int = 0
    encoder: bool = field(default=False, compare=False)


class _GeometryUnknown(Exception):
    """The geometry cannot be read; the message says why, for people."""


def read_geometry(config: Any) -> Geometry | str:
    """The geometry that a parsed config.json describes, or why there is none. Never raises."""
    if not isinstance(config, Mapping):
        return "config.json is not an object"
    try:
        text = next((config[key] for key in _NESTED if isinstance(config.get(key), Mapping)), config)
        return _geometry_of(text, config)
    except _GeometryUnknown as unknown:
        return str(unknown)


def _geometry_of(text: Mapping[str, Any], whole: Mapping[str, Any]) -> Geometry:
    if "compress_ratios" in text or "compress_rates" in text or str(text.get("model_type")).startswith("deepseek_v4"):
        raise _GeometryUnknown("its compressed attention is not computed here")
    if "kv_lora_rank" in text and "index_head_dim" in text:
        raise _GeometryUnknown("its sparse attention with an indexer is not computed here")
    kinds = Counter(_kinds(text))
    element = _BYTES.get(str(text.get("dtype", text.get("torch_dtype", whole.get("torch_dtype", "auto")))), 2)
    quantization = whole.get("quantization_config", text.get("quantization_config"))
    quantization = quantization if isinstance(quantization, Mapping) else {}
    return Geometry(
        attention=tuple(_attention(text, kind, kinds[kind]) for kind in ("full", "sliding") if kinds[kind]),
        states=(_states(text, kinds["state"], element),) if kinds["state"] else (),
        window=_number(text, "max_position_embeddings") or _number(whole, "max_position_embeddings"),
        element_bytes=element,
        fp8_cache=_asks_fp8_cache(quantization),
        quantization=str(quantization["quant_method"]) if quantization.get("quant_method") else None,
        draft_layers=min(_number(text, "mtp_num_hidden_layers", "num_nextn_predict_layers") or 0, _MOST_LAYERS),
        encoder=any(isinstance(whole.get(key), Mapping) for key in _ENCODERS),
    )


# -- layers by kind ---------------------------------------------------------------------------------------------------


def _kinds(text: Mapping[str, Any]) -> list[str]:
    """The kind of every layer that has a cache of its own, in order: full, sliding, state or none."""
    kinds = _written_kinds(text) or _implied_kinds(text)
    shared = _number(text, "num_kv_shared_layers") or 0  # the last ones read the cache of an earlier layer
    kinds = kinds[: len(kinds) - min(shared, len(kinds))]
    if not any(kind != "none" for kind in kinds):
        raise _GeometryUnknown("config.json names no layer with a cache")
    return kinds


def _written_kinds(text: Mapping[str, Any]) -> list[str]:
    for key in ("layer_types", "layers_block_type", "hybrid_override_pattern"):
        written = text.get(key)
        if not isinstance(written, list | str) or not written:
            continue
        if len(written) > _MOST_LAYERS:
            raise _GeometryUnknown(f"`{key}` of config.json has more than {_MOST_LAYERS} layers")
        strange = [kind for kind in written if not isinstance(kind, str) or kind not in _KINDS]
        if strange:
            raise _GeometryUnknown(f"layers of the kind {str(strange[0])[:40]!r} are not known here")
        return [_KINDS[kind] for kind in written]
    return []


def _implied_kinds(text: Mapping[str, Any]) -> list[str]:
    layers = _needed(text, "num_hidden_layers")
    if layers > _MOST_LAYERS:
        raise _GeometryUnknown(f"config.json has more than {_MOST_LAYERS} layers")
    if "linear_num_value_heads" in text:
        every = _number(text, "full_attention_interval") or 4
        return ["state" if (at + 1) % every else "full" for at in range(layers)]
    if any(key in text for key in ("mamba_num_heads", "mamba_n_heads", "mamba_d_state", "ssm_state_size")):
        raise _GeometryUnknown("config.json does not say which of its layers are Mamba layers")
    return ["full"] * layers if _window_of(text) is None else _sliding_kinds(text, layers)


def _sliding_kinds(text: Mapping[str, Any], layers: int) -> list[str]:
    model = str(text.get("model_type", "")).removesuffix("_text")
    every = _number(text, "sliding_window_pattern") or _PATTERNS.get(model)
    if every is None:
        raise _GeometryUnknown("config.json has a `sliding_window`, but does not say which layers slide")
    if not every:
        return ["sliding"] * layers
    kinds = ["sliding" if (at + 1) % every else "full" for at in range(layers)]
    return [*kinds[:-1], "full"] if model == "gemma4" else kinds


def _window_of(text: Mapping[str, Any]) -> int | None:
    return None if text.get("use_sliding_window") is False else _number(text, "sliding_window")


def _attention(text: Mapping[str, Any], kind: str, layers: int) -> AttentionLayers:
    if "kv_lora_rank" in text and kind == "full":
        latent = _needed(text, "kv_lora_rank") + (_number(text, "qk_rope_head_dim") or 0)
        return AttentionLayers(layers, 1, latent, 0, latent=True)
    heads = _number(text, "num_key_value_heads", "num_kv_heads") or _needed(text, "num_attention_heads")
    dim = _number(text, "head_dim") or _implied_dim(text)
    if not dim:
        raise _GeometryUnknown("config.json has more heads than its hidden size")
    if kind == "sliding":
        window = _window_of(text)
        if window is None:
            raise _GeometryUnknown("config.json has sliding layers but no `sliding_window`")
        return AttentionLayers(layers, heads, dim, dim, window)
    # Gemma 4: its global layers have heads of their own
    dim = _number(text, "global_head_dim") or dim
    if text.get("attention_k_eq_v") is not False:
        heads = _number(text, "num_global_key_value_heads") or heads
    return AttentionLayers(layers, heads, dim, dim)


def _implied_dim(text: Mapping[str, Any]) -> int:
    if str(text.get("model_type", "")).startswith("gemma"):  # whose classes have a size of their own
        return _needed(text, "head_dim")
    return _needed(text, "hidden_size") // _needed(text, "num_attention_heads")


def _states(text: Mapping[str, Any], layers: int, element: int) -> StateLayers:
    wider = str(text.get("mamba_ssm_dtype", text.get("mamba_ssm_cache_dtype", "")))
    nemotron = str(text.get("model_type", "")).startswith("nemotron_h")  # vLLM keeps its states in float32 by default
    bytes_each = _BYTES.get(wider, element) if wider else (4 if nemotron else element)
    if "linear_num_value_heads" in text:
        keys = _needed(text, "linear_num_key_heads") * _needed(text, "linear_key_head_dim")
        heads, dim = _needed(text, "linear_num_value_heads"), _needed(text, "linear_value_head_dim")
        kernel = _needed(text, "linear_conv_kernel_dim")
        state = heads * dim * _needed(text, "linear_key_head_dim")
        return StateLayers(layers, 2 * keys + heads * dim, kernel, state, bytes_each)
    heads, dim = _needed(text, "mamba_num_heads", "mamba_n_heads"), _needed(text, "mamba_head_dim", "mamba_d_head")
    size, groups = _needed(text, "ssm_state_size", "mamba_d_state"), _needed(text, "n_groups", "mamba_n_groups")
    kernel = _needed(text, "conv_kernel", "mamba_d_conv")
    return StateLayers(layers, heads * dim + 2 * groups * size, kernel, heads * dim * size, bytes_each)


# -- values -----------------------------------------------------------------------------------------------------------


def _asks_fp8_cache(quantization: Mapping[str, Any]) -> bool:
    """ModelOpt writes `kv_cache_quant_algo`, compressed-tensors a `kv_cache_scheme` of 8 bits."""
    scheme = quantization.get("kv_cache_scheme")
    by_scheme = isinstance(scheme, Mapping) and scheme.get("num_bits") == 8
    return by_scheme or str(quantization.get("kv_cache_quant_algo", "")).upper() == "FP8"


def _number(text: Mapping[str, Any], *keys: str) -> int | None:
    """The first of these keys that holds a usable count."""
    for key in keys:
        value = text.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST:
            return value
    return None


def _needed(text: Mapping[str, Any], *keys: str) -> int:
    found = _number(text, *keys)
    if found is None:
        raise _GeometryUnknown(f"config.json has no usable `{keys[0]}`")
    return found
