"""Reads vLLM's counters (`/metrics`): the work of its engine, and the start time of its process. Pure."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping

from gateway.domain.observed_flags import POSITIONS_MOST
from gateway.domain.progress import Sample
from gateway.transport.prometheus_text import VALUE_MOST, number, slices, split_sample

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
    """When the process that wrote this page was started, in Unix seconds; None if not reported. Yields after each
    slice of the page."""
    for lines in slices(page):
        for line in lines:
            if line.startswith(_STARTED) and line[len(_STARTED) : len(_STARTED) + 1] in (b" ", b"{"):
                return number(line.rpartition(b"} ")[2] if b"{" in line else line[len(_STARTED) :])
        yield
    return None
