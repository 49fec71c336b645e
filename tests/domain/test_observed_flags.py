"""Flags that an engine reports: which values can be believed and shown."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.observed_flags import POSITIONS_MOST, ObservedFlags
from gateway.engines.vllm import read_flags
from tests.engines.test_vllm_flags import CONFIG
from tests.sliced import whole


def flags_of(labels: str, more: str = "") -> ObservedFlags:
    found = whole(read_flags(CONFIG % labels.encode() + more.encode()))
    assert found is not None
    return found


# -- what versions and models differ in -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "settled"),
    [
        ('block_size="16",user_specified_block_size="False"', False),
        ('block_size="2128",user_specified_block_size="True"', True),
        ('block_size="16"', False),
        ('block_size="16",mamba_block_size="None"', False),
        ('block_size="2128",mamba_block_size="2128"', True),
    ],
)
def test_a_block_size_that_vllm_may_have_raised_is_its_own(labels: str, settled: bool) -> None:
    assert ("block-size" in flags_of(labels).settled) == settled


@pytest.mark.parametrize(
    ("more", "drafted"),
    [
        ("", 0),
        ('vllm:spec_decode_num_drafts_total{engine="0"} 1.0\n', None),  # an older version, without positions
        ('vllm:diffusion_num_denoising_steps_total{engine="0"} 1.0\n', None),
        ('vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 0.0\n', 2),
        ('vllm:spec_decode_num_accepted_tokens_per_pos_total{position="998"} 0.0\n', POSITIONS_MOST),
    ],
)
def test_how_many_tokens_are_drafted_follows_from_the_positions(more: str, drafted: int | None) -> None:
    assert flags_of('block_size="16"', more).values.get("spec-tokens") == drafted


# -- pages of anybody -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "labels",
    [
        'gpu_memory_utilization="nan",block_size="-1",enable_prefix_caching="maybe"',
        'cache_dtype="<script>alert(1)</script>"',
        'cache_dtype="' + "x" * 65 + '"',
        'cache_dtype="a b"',
        'cache_dtype="caf\xe9"',
        'kv_offloading_size="1e400"',
        'num_gpu_blocks="' + "9" * 300 + '"',
    ],
)
def test_a_value_that_no_flag_can_have_is_left_out(labels: str) -> None:
    assert flags_of(labels).values == {"spec-tokens": 0}


def test_a_label_may_hold_any_text_and_is_no_other_label() -> None:
    found = flags_of(r'kv_cache_layout="\",block_size=\"7",block_size="16",cache_dtype="fp8"')
    assert (found.values["block-size"], found.values["kv-cache-dtype"]) == (16, "fp8")


words = st.sampled_from([b'block_size="', b'cache_dtype="', b'"', b",", b"\\", b"}", b"{", b"fp8", b"16", b"\n"])


@given(st.lists(words | st.binary(max_size=10)))
def test_any_labels_are_read_as_values_that_can_be_shown(parts: list[bytes]) -> None:
    found = whole(read_flags(CONFIG % b"".join(parts)))
    assert found is None or shown(found)


def shown(found: ObservedFlags) -> Any:
    texts = [value for value in found.values.values() if isinstance(value, str)]
    assert all(re.fullmatch(r"[\w.:+/-]{1,64}", text, re.ASCII) for text in texts)
    return msgspec.json.encode(found.values)
