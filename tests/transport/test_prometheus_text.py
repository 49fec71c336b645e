"""Pages of metrics of any size and any content, read in short slices."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.progress import Progress, Work
from gateway.engines.vllm import read_counters, read_flags, read_start_time
from gateway.health.nodes import read_machine
from gateway.transport.prometheus_text import SLICE, VALUE_MOST, number, slices
from tests.health.test_probe_client_bounds import LINES
from tests.hostile import MIB
from tests.sliced import whole

names = st.sampled_from(
    [
        b"vllm:num_requests_running", b"vllm:num_requests_waiting", b"vllm:generation_tokens_total",
        b"vllm:request_success_total", b"vllm:time_to_first_token_seconds_count", b"memory_used_bytes",
        b"gpu_temperature_celsius", b"process_start_time_seconds",
        b"vllm:spec_decode_num_accepted_tokens_per_pos_total", b"vllm:cache_config_info", b"vllm:engine_sleep_state",
    ]
)  # fmt: skip
labels = st.sampled_from(
    [
        b" ", b'{engine="0"} ', b'{position="3"} ', b'{sleep_state="awake"} ', b'{block_size="16"} ', b"{",
        b'{a="} "} ', b"{} {} ",
    ]
)  # fmt: skip
values = st.sampled_from(
    [b"NaN", b"+Inf", b"-Inf", b"-1", b"1e400", b"1e300", b"1e15", b"9" * 5000, b"", b"x", b"3 17"]
)
values = values | st.floats().map(lambda value: repr(value).encode())
pages = st.lists(st.tuples(names, labels, values).map(b"".join) | st.binary(max_size=40)).map(b"\n".join)


@given(pages, pages)
def test_any_metrics_are_read_as_counts_that_can_be_counted_with(first: bytes, second: bytes) -> None:
    progress = Progress()
    base = b"vllm:num_requests_running 1\nvllm:generation_tokens_total 1\n"
    for at, page in enumerate((first, second, base + first, base + second)):
        sample = whole(read_counters(page, float(at)))
        if sample is not None:
            progress.add(sample)
            told = (progress.foreign(1, float(at)), progress.outstanding(Work(1, held=1)), progress.prefill)
            msgspec.json.encode(told)
            assert progress.budget(Work(1)) < math.inf
        found = whole(read_start_time(page))
        assert found is None or 0 <= found <= VALUE_MOST
        msgspec.json.encode(whole(read_machine(page, 1.0)))
        msgspec.json.encode(whole(read_flags(page)))


@given(st.lists(st.integers(0, 2 * SLICE), max_size=6))
@settings(max_examples=50)
def test_slices_are_all_lines_that_are_not_too_long(lengths: list[int]) -> None:
    lines = [bytes([97 + place]) * length for place, length in enumerate(lengths)]
    found = [line for some in slices(b"\n".join(lines)) for line in some if line]
    assert [line for line in lines if line and len(line) < SLICE // 2] == [
        line for line in found if len(line) < SLICE // 2
    ]
    assert all(line in lines for line in found)


def test_a_page_of_any_lines_is_read_in_short_slices() -> None:
    for page in (LINES * 100, b"\n" * 4 * MIB, b"x" * 4 * MIB, b"vllm:num_requests_running " + b"9" * 4 * MIB):
        for some in slices(page):
            assert sum(map(len, some)) + len(some) <= SLICE + 1


@pytest.mark.parametrize(
    "text", [b"NaN", b"nan", b"+Inf", b"-1", b"-0.1", b"1e16", b"1e400", b"", b" ", b"x", b"1" * 65]
)
def test_what_is_no_count_is_none(text: bytes) -> None:
    assert number(text) is None
