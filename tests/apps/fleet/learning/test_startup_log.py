"""What a vLLM of several versions logs when it starts, read into figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.apps.fleet.learning.startup_log import GIB, last_start

NOW = (Path(__file__).parents[3] / "data" / "fleet" / "start-vllm-0.33.log").read_text()
OLD = """\
INFO 05-01 10:00:01 [api_server.py:1090] vLLM API server version 0.10.1
INFO 05-01 10:02:01 [gpu_model_runner.py:1843] Model loading took 15.2683 GB and 12.345678 seconds
INFO 05-01 10:02:31 [gpu_worker.py:227] Available KV cache memory: 20.5 GiB
INFO 05-01 10:02:31 [kv_cache_utils.py:716] GPU KV cache size: 149,312 tokens
INFO 05-01 10:02:31 [kv_cache_utils.py:720] Maximum concurrency for 40,960 tokens per request: 3.65x
"""
RANKS = """\
(EngineCore pid=9) INFO Initializing a V1 LLM engine (v0.24.0) with config: model='/models/big'
(Worker_TP0 pid=11) INFO Model loading took 57.2 GiB memory and 1.0 seconds
(Worker_TP1 pid=12) INFO Model loading took 57.6 GiB memory and 1.0 seconds
(Worker_TP0 pid=11) INFO Available KV cache memory: 28.9 GiB
(Worker_TP1 pid=12) INFO Available KV cache memory: 28.7 GiB
(EngineCore pid=9) INFO GPU KV cache size: 240,816 tokens
"""


def seen(text: str) -> dict[str, Any]:
    start = last_start(text.splitlines())
    assert start is not None
    found = {key: getattr(start.observed, key) for key in start.observed.__slots__}
    for key in ("memory", "free", "weights", "kv", "graphs"):
        found[key] = None if found[key] is None else round(found[key] / GIB, 2)
    return {key: value for key, value in found.items() if value is not None}


def test_a_start_of_today() -> None:
    assert seen(NOW) == {
        "engine": "0.33.0",
        "memory": 119.67,
        "free": 116.01,
        "utilization": 0.85,
        "window": 65536,
        "cache_dtype": "fp8",
        "weights": 21.94,
        "kv": 76.49,
        "tokens": 4843965,
        "concurrency": 73.91,
        "graphs": 0.53,
    }
    start = last_start(NOW.splitlines())
    assert start is not None
    assert start.models == {"nvidia/Qwen3.6-35B-A3B-NVFP4"}


def test_a_start_of_a_year_ago() -> None:
    assert seen(OLD) == {
        "engine": "0.10.1",
        "window": 40960,
        "weights": 15.27,
        "kv": 20.5,
        "tokens": 149312,
        "concurrency": 3.65,
    }


def test_of_an_engine_over_two_nodes_the_tightest_counts() -> None:
    assert seen(RANKS) == {"engine": "0.24.0", "weights": 57.6, "kv": 28.7, "tokens": 240816}


@pytest.mark.parametrize("after", ["", NOW.split("Available KV")[0]], ids=["complete", "a failed one behind it"])
def test_the_last_start_that_came_as_far_as_its_cache_counts(after: str) -> None:
    assert seen(OLD + NOW + after)["kv"] == 76.49
    assert seen(NOW + OLD + after)["kv"] == 20.5


@given(st.lists(st.one_of(st.text(max_size=80), st.sampled_from((NOW + OLD + RANKS).splitlines())), max_size=20))
def test_whatever_a_log_holds_it_is_read(lines: list[str]) -> None:
    start = last_start(lines)
    assert start is None or start.has_cache
