"""Reads vLLM's page of counters (`/metrics`): the work of its engine, the start time of its process, and the flags that
it runs with: `vllm:cache_config_info` carries the configuration of its KV cache as labels, and speculative decoding has
a counter for each position of a draft. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping

from gateway.domain.observed_flags import DRAFTED, POSITIONS_MOST, FlagValue, ObservedFlags
from gateway.domain.progress import Sample
from gateway.transport.prometheus_text import VALUE_MOST, labels_of, number, slices, split_sample

_NAMES: Mapping[bytes, str] = {  # includes the names that older versions use
    b"vllm:num_requests_running": "running",
    b"vllm:num_requests_waiting": "waiting",
    b"vllm:generation_tokens_total": "generated",
    b"vllm:prompt_tokens_total": "prompted",
    b"vllm:kv_cache_usage_perc": "kv",
    b"vllm:gpu_cache_usage_perc": "kv",
    b"vllm:prefix_cache_hits_total": "hits",
    b"vllm:prefix_cache_queries_total": "queries",
    b"vllm:spec_decode_num_drafts_total": "drafts",
    b"vllm:spec_decode_num_draft_tokens_total": "drafted_tokens",
    b"vllm:spec_decode_num_accepted_tokens_total": "accepted_tokens",
    b"vllm:time_to_first_token_seconds_count": "firsts",
    b"vllm:time_to_first_token_seconds_sum": "first_seconds",
    b"vllm:num_preemptions_total": "preemptions",
    b"vllm:request_success_total": "finished",
    b"vllm:request_prompt_tokens_sum": "prefilled",
    b"vllm:request_prefill_time_seconds_sum": "prefill_seconds",
    b"vllm:inter_token_latency_seconds_count": "gaps",
    b"vllm:inter_token_latency_seconds_sum": "gap_seconds",
    b"vllm:time_per_output_token_seconds_count": "gaps",
    b"vllm:time_per_output_token_seconds_sum": "gap_seconds",
}
_ACCEPTED = b"vllm:spec_decode_num_accepted_tokens_per_pos_total"
_POSITION = re.compile(rb'position="(\d{1,3})"')
_SLEEP = b"vllm:engine_sleep_state"  # one sample for each state, 1 for the one it is in
_SLEEP_STATE = re.compile(rb'sleep_state="(\w{1,32})"')
_SLEEP_LEVELS: Mapping[bytes, float] = {b"awake": 0.0, b"weights_offloaded": 1.0, b"discard_all": 2.0}
_STARTED = b"process_start_time_seconds"


def read_counters(page: bytes, at: float) -> Generator[None, None, Sample | None]:
    """The counters on a page, summed over its engines; None if it is not vLLM's page. `at`: the caller's seconds.
    Values that cannot be counts (NaN, infinite, negative, huge) are left out. Yields after each slice of the page."""
    found: dict[str, float] = {}
    accepted: dict[int, float] = {}
    for lines in slices(page):
        for line in lines:
            if line.startswith(b"vllm:"):
                _add(line, found, accepted)
        yield
    if "running" not in found or "generated" not in found:
        return None
    return Sample(at, **found, accepted=tuple(accepted[position] for position in sorted(accepted)))


def _add(line: bytes, found: dict[str, float], accepted: dict[int, float]) -> None:
    name, labels, value = line.partition(b" ") if b"{" not in line else split_sample(line)
    key = _NAMES.get(name)
    if key is None and name not in (_ACCEPTED, _SLEEP):
        return
    count = number(value)
    if count is None:
        return
    if key is not None:
        found[key] = min(VALUE_MOST, found.get(key, 0.0) + count)
    elif name == _SLEEP:
        state = _SLEEP_STATE.search(labels)
        level = _SLEEP_LEVELS.get(state[1]) if state is not None and count else None
        if level is not None:
            found["sleep_level"] = max(level, found.get("sleep_level", 0.0))
    elif (position := _POSITION.search(labels)) is not None and (place := int(position[1])) < POSITIONS_MOST:
        accepted[place] = min(VALUE_MOST, accepted.get(place, 0.0) + count)


def read_start_time(page: bytes) -> Generator[None, None, float | None]:
    """When the server's process was started, in Unix seconds; None if not reported. Yields after each slice."""
    for lines in slices(page):
        for line in lines:
            if line.startswith(_STARTED) and line[len(_STARTED) : len(_STARTED) + 1] in (b" ", b"{"):
                return number(line.rpartition(b"} ")[2] if b"{" in line else line[len(_STARTED) :])
        yield
    return None


# -- the flags ---------------------------------------------------------------------------------------------------------

_CONFIG = b"vllm:cache_config_info{"
_DRAFTS = (b"vllm:spec_decode_", b"vllm:diffusion_")  # the counters of diffusion models have no positions
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
