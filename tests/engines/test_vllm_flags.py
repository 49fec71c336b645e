"""What a vLLM's `/metrics` tell of its flags."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engines.vllm import read_counters, read_flags
from gateway.transport.prometheus_text import LABELLED_MOST, labels_of
from tests.simulator.wire import load
from tests.sliced import whole

SPECULATING = (Path(__file__).parents[1] / "data" / "engine" / "speculating.txt").read_bytes()
CONFIG = b"vllm:cache_config_info{%s} 1.0\n"


# -- real pages -------------------------------------------------------------------------------------------------------


def test_the_flags_of_a_real_vllm_are_read() -> None:
    found = whole(read_flags(load("metrics").reply.body))
    assert found is not None
    assert found.values == {
        "gpu-memory-utilization": 0.92,
        "kv-cache-dtype": "auto",
        "block-size": 128,
        "enable-prefix-caching": True,
        "prefix-caching-hash-algo": "sha256",
        "mamba-cache-dtype": "auto",
        "mamba-ssm-cache-dtype": "float32",
        "num-gpu-blocks-override": None,
        "kv-cache-memory-bytes": 1073741824,
        "kv-offloading-size": None,
        "kv-sharing-fast-prefill": False,
        "num-gpu-blocks": 16384,
        "kv-cache-size-tokens": 2097152,
        "kv-cache-max-concurrency": 1024.0,
        "spec-tokens": 0,
    }
    assert found.settled == frozenset()


def test_a_real_vllm_that_drafts_tells_how_many_tokens_and_how_many_were_right() -> None:
    found, sample = whole(read_flags(SPECULATING)), whole(read_counters(SPECULATING, 1.0))
    assert found is not None
    assert found.values["spec-tokens"] == 3
    assert sample is not None
    assert (sample.drafts, sample.drafted_tokens, sample.accepted_tokens) == (10.0, 28.0, 12.0)


def test_a_page_without_them_tells_none() -> None:
    assert whole(read_flags(b"")) is None
    assert whole(read_flags(b'vllm:num_requests_running{engine="0"} 1\n')) is None


@pytest.mark.parametrize(
    ("states", "level"),
    [((1, 0, 0), 0.0), ((0, 1, 0), 1.0), ((0, 0, 1), 2.0), ((0, 0, 0), None), ((), None)],
)
def test_an_engine_that_sleeps_is_told_from_one_that_is_awake(states: tuple[int, ...], level: float | None) -> None:
    names = ("awake", "weights_offloaded", "discard_all")
    lines = [
        f'vllm:engine_sleep_state{{engine="0",sleep_state="{name}"}} {value}'
        for name, value in zip(names, states, strict=False)
    ]
    page = "\n".join(["vllm:num_requests_running 0", "vllm:generation_tokens_total 0", *lines])
    sample = whole(read_counters(page.encode(), 1.0))
    assert sample is not None
    assert sample.sleep_level == level


def test_the_first_engine_counts_and_a_line_that_is_too_long_tells_nothing() -> None:
    both = CONFIG % b'block_size="16",engine="0"' + CONFIG % b'block_size="32",engine="1"'
    found = whole(read_flags(both))
    assert found is not None
    assert found.values["block-size"] == 16
    assert labels_of(CONFIG % (b'a="' + b"x" * LABELLED_MOST + b'"')) == {}


@given(st.dictionaries(st.from_regex(r"[A-Za-z_]\w{0,8}", fullmatch=True).filter(str.isascii), st.text(max_size=20)))
def test_labels_are_read_as_they_were_written(labels: dict[str, str]) -> None:
    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    written = ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())
    found = labels_of(f"name{{{written}}} 1.0".encode())
    assert found == {name.encode(): escaped(value).encode() for name, value in labels.items()}
