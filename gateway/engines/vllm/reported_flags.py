"""The flags that a vLLM runs with, from its page of counters (`/metrics`): `vllm:cache_config_info` carries the
configuration of its KV cache as labels, and speculative decoding has a counter for each position of a draft. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping

from gateway.domain.observed_flags import DRAFTED, POSITIONS_MOST, FlagValue, ObservedFlags
from gateway.transport.prometheus_text import labels_of, number, slices

_CONFIG = b"vllm:cache_config_info{"
_DRAFTS = (b"vllm:spec_decode_", b"vllm:diffusion_")  # the counters of diffusion models have no positions
_POSITION = re.compile(rb'position="(\d{1,3})"')
_WORD = re.compile(rb"[\w.:+/-]{1,64}")  # a value of any other form is none of vLLM's
_SWITCHES = {b"True": True, b"False": False}


def _word(text: bytes) -> str | None:
    return text.decode() if _WORD.fullmatch(text) and text != b"None" else None


def _whole(text: bytes) -> int | None:
    value = number(text)
    return None if value is None else int(value)


_LABELS: Mapping[bytes, tuple[str, Callable[[bytes], FlagValue]]] = {  # with those of older versions
    b"gpu_memory_utilization": ("gpu-memory-utilization", number),
    b"cache_dtype": ("kv-cache-dtype", _word),
    b"block_size": ("block-size", _whole),
    b"enable_prefix_caching": ("enable-prefix-caching", _SWITCHES.get),
    b"prefix_caching_hash_algo": ("prefix-caching-hash-algo", _word),
    b"mamba_cache_dtype": ("mamba-cache-dtype", _word),
    b"mamba_ssm_cache_dtype": ("mamba-ssm-cache-dtype", _word),
    b"num_gpu_blocks_override": ("num-gpu-blocks-override", _whole),
    b"kv_cache_memory_bytes": ("kv-cache-memory-bytes", _whole),
    b"kv_offloading_size": ("kv-offloading-size", number),
    b"kv_sharing_fast_prefill": ("kv-sharing-fast-prefill", _SWITCHES.get),
    b"calculate_kv_scales": ("calculate-kv-scales", _SWITCHES.get),
    b"cpu_offload_gb": ("cpu-offload-gb", number),
    b"swap_space": ("swap-space", number),
    b"num_gpu_blocks": ("num-gpu-blocks", _whole),
    b"kv_cache_size_tokens": ("kv-cache-size-tokens", _whole),
    b"kv_cache_max_concurrency": ("kv-cache-max-concurrency", number),
}
_OPTIONAL = frozenset({"num-gpu-blocks-override", "kv-cache-memory-bytes", "kv-offloading-size"})  # None if not set


def read_flags(page: bytes) -> Generator[None, None, ObservedFlags | None]:
    """The flags of the first engine on a page; None if the page tells none. Values that no flag can have are left out.
    Yields after each slice of the page."""
    labels: Mapping[bytes, bytes] | None = None
    drafting, positions = False, 0
    for lines in slices(page):
        for line in lines:
            if labels is None and line.startswith(_CONFIG):
                labels = labels_of(line)
            elif line.startswith(_DRAFTS):
                drafting = True
                if (position := _POSITION.search(line)) is not None:
                    positions = max(positions, int(position[1]) + 1)
        yield
    return None if labels is None else _flags(labels, drafting, min(positions, POSITIONS_MOST))


def _flags(labels: Mapping[bytes, bytes], drafting: bool, positions: int) -> ObservedFlags:
    values: dict[str, FlagValue] = {}
    for label, (flag, read) in _LABELS.items():
        text = labels.get(label)
        if text is None:
            continue
        value = read(text)
        if value is not None or (text == b"None" and flag in _OPTIONAL):
            values[flag] = value
    if positions or not drafting:
        values[DRAFTED] = positions
    return ObservedFlags(values, _settled(labels))


def _settled(labels: Mapping[bytes, bytes]) -> frozenset[str]:
    """The flags whose values may be higher than asked for: vLLM raises a block size to the need of the model's layers.
    Older versions do not tell whether it was asked for; there only hybrids (with Mamba blocks) are known to raise
    it."""
    asked = labels.get(b"user_specified_block_size")
    hybrid = labels.get(b"mamba_block_size", b"None") != b"None"
    return frozenset({"block-size"}) if asked == b"True" or (asked is None and hybrid) else frozenset()
