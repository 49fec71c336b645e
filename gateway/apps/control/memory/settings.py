"""The flags of a vLLM command that decide about its memory, with vLLM's defaults where they are not written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.apps.control.memory.geometry import Geometry
from gateway.config.units import number_of
from gateway.launch.command import ServeCommand
from gateway.launch.flags import is_reference

UTILIZATION = 0.92  # vLLM 0.32's default; older ones have 0.90
SEQUENCES = 256
BATCHED_TOKENS = 2048  # as logged on a Spark
_MOST = 10**9
_SHARE_FLAG, _CACHE_FLAG = "gpu-memory-utilization", "kv-cache-memory-bytes"
# What the figures of a plan follow from. Other flags change little of an engine's memory, or nothing.
_DECIDING = (
    _SHARE_FLAG,
    _CACHE_FLAG,
    "max-model-len",
    "max-num-batched-tokens",
    "tensor-parallel-size",
    "pipeline-parallel-size",
    "kv-cache-dtype",
    "block-size",
    "quantization",
    "speculative-config",
)
_REFUSED = ("flag-value", "flag-range", "flag-json")  # rules of launch/command.py
_ELEMENT_BYTES: Mapping[str, float] = {
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "int8"), 1.0),
    **dict.fromkeys(("bfloat16", "float16", "half"), 2.0),
    "float32": 4.0,
    "nvfp4": 0.5625,  # with a scale of one byte for 16 values
}


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """`utilization`: share of the machine's memory. `window`: tokens, None for the model's own; `fits_window`: the
    engine shortens the window to fit. `cache_gib`: a pool of that size whatever the utilization. `shards`: GPUs that
    one copy of the model is split over. `prefix_caching`: None if not given. `own_head`: a drafter of its own that has
    no cache, because it reads the target's. `graphs`: it captures CUDA graphs. `encodes`: images or sound may come.
    `picture_cache_gib`: the cache for them outside the target, None where its size is not written. `refused`: why vLLM
    does not start with a flag that decides about its memory, "" if it starts. `open`: such flags whose value is a
    reference, which only the machine that starts the engine knows."""

    utilization: float = UTILIZATION
    window: int | None = None
    fits_window: bool = False
    sequences: int = SEQUENCES
    batched_tokens: int = BATCHED_TOKENS
    cache_dtype: str = "auto"
    block: int = 16
    shards: int = 1
    drafts: int = 0
    draft_model: str | None = None
    own_head: bool = False
    prefix_caching: bool | None = None
    cache_gib: float | None = None
    quantization: str | None = None
    graphs: bool = True
    encodes: bool = True
    picture_cache_gib: float | None = None
    refused: str = ""
    open: tuple[str, ...] = ()

    @property
    def knows_share(self) -> bool:
        return _SHARE_FLAG not in self.open

    @property
    def knows_held(self) -> bool:
        """Is the memory known that the engine comes to hold?"""
        return self.knows_share and _CACHE_FLAG not in self.open

    def element_bytes(self, geometry: Geometry) -> float | None:
        """Bytes of one cached value, or None for a type that is not known here."""
        if self.cache_dtype == "auto":
            return 1.0 if geometry.fp8_cache else float(geometry.element_bytes)
        return _ELEMENT_BYTES.get(self.cache_dtype)


def engine_settings(command: ServeCommand) -> EngineSettings:
    """The settings of a command. A refused value or a reference leaves vLLM's default here, and `refused` or `open`
    says so: such a figure must not be planned with."""
    flags = command.flags
    drafts, draft_model, own_head = _drafts(flags.get("speculative-config"))
    window, share = flags.get("max-model-len"), number_of(flags.get("gpu-memory-utilization"))
    cache, prefix_caching = _count(flags, "kv-cache-memory-bytes", 0, 2**50), flags.get("enable-prefix-caching")
    pictures = number_of(flags.get("mm-processor-cache-gb"))
    deciding = (*_DECIDING, "max-num-seqs")
    # What every version of vLLM refuses: another version may have choices that are not known here.
    refused = (one.message for one in command.mistakes if one.rule in _REFUSED and one.flag in deciding)
    return EngineSettings(
        utilization=share if share is not None and 0 < share <= 1 else UTILIZATION,
        window=_count(flags, "max-model-len", 0) or None,
        fits_window=str(window) in ("-1", "auto"),
        sequences=_count(flags, "max-num-seqs", SEQUENCES),
        batched_tokens=_count(flags, "max-num-batched-tokens", BATCHED_TOKENS),
        cache_dtype=str(flags.get("kv-cache-dtype", "auto")),
        block=min(_count(flags, "block-size", 16), 2**16),
        shards=_count(flags, "tensor-parallel-size", 1) * _count(flags, "pipeline-parallel-size", 1),
        drafts=drafts,
        draft_model=draft_model,
        own_head=own_head,
        prefix_caching=prefix_caching if isinstance(prefix_caching, bool) else None,
        cache_gib=cache / 2**30 if cache else None,
        quantization=str(flags["quantization"]) if flags.get("quantization") else None,
        graphs=flags.get("enforce-eager") is not True,
        encodes=_encodes(flags),
        picture_cache_gib=None if pictures is None else min(max(pictures, 0.0), 1024.0),
        refused=next(refused, ""),
        open=tuple(flag for flag in _DECIDING if is_reference(str(flags.get(flag, "")))),
    )


def _encodes(flags: Mapping[str, Any]) -> bool:
    if flags.get("language-model-only") is True or flags.get("skip-mm-profiling") is True:
        return False
    limits = flags.get("limit-mm-per-prompt")
    return not isinstance(limits, Mapping) or not limits or any(limit != 0 for limit in limits.values())


def _drafts(config: object) -> tuple[int, str | None, bool]:
    """(speculative tokens, the drafter's model where it is one of its own, whether it reads the target's cache)."""
    if not isinstance(config, Mapping):
        return 0, None, False
    model = config.get("model")
    drafts = min(_count(config, "num_speculative_tokens", 0), 1000)
    return drafts, model if isinstance(model, str) and model else None, str(config.get("method")).endswith("mtp")


def _count(flags: Mapping[str, Any], name: str, default: int, most: int = _MOST) -> int:
    number = number_of(flags.get(name))
    return int(number) if number is not None and 1 <= number <= most else default
