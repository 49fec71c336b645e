"""What operators of DGX Sparks measured must come out of the plan: logged figures within 5 %, approximate ones within
15 %, and every verdict."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.apps.control.memory.arithmetic import ADVISED_FREE_GIB, SYSTEM_GIB
from gateway.apps.control.memory.model_catalog import ModelCatalog
from gateway.config.snapshot import Backend
from tests.apps.control.memory.sparks import (
    CATALOG,
    ESTIMATE_ONLY,
    SPARK,
    demand,
    ds4,
    planned,
    qwen4b,
    qwen36,
    qwen80b,
    spark1,
    vllm,
)

BOTH = pytest.mark.parametrize("catalog", [CATALOG, ESTIMATE_ONLY], ids=["with the field's reports", "estimated"])


def near(number: float) -> Any:
    return pytest.approx(number, rel=0.05)


def about(number: float) -> Any:
    return pytest.approx(number, rel=0.15)


# -- the share is of the total, and is checked against what is free ---------------------------------------------------


@pytest.mark.parametrize(("utilization", "target"), [(0.85, 101.72), (0.12, 14.36), (0.90, 107.7), (0.10, 12.0)])
def test_a_target_is_a_share_of_the_total_memory(utilization: float, target: float) -> None:
    assert demand(qwen4b(utilization, 16384)).target == pytest.approx(target, abs=0.04)


@BOTH
def test_the_80b_at_085_leaves_no_room_for_a_4b_at_012(catalog: ModelCatalog) -> None:
    node = spark1(qwen4b(0.12, 32768), qwen80b(0.85, 65536, 2), catalog=catalog)
    assert node.fits == "no"
    assert node.order == ("qwen80b", "qwen4b")
    assert node.failed == {"qwen4b"}
    assert node.demands["qwen80b"].resident == near(101.5)
    assert node.free == near(12.58)
    assert node.demands["qwen4b"].needs == pytest.approx(14.36, abs=0.01)


def test_the_refusal_is_said_in_words() -> None:
    node = spark1(qwen4b(0.12, 16384), qwen80b(0.85, 65536, 2))
    assert node.reason.startswith("the qwen4b needs 14.4 GiB free, 12.6 will be")


@BOTH
def test_a_neighbour_of_16_gib_is_in_the_way_of_085(catalog: ModelCatalog) -> None:
    node = spark1(qwen4b(0.12, 16384, resident=16), qwen80b(0.85, 65536, 2), catalog=catalog)
    assert node.fits == "no"
    free = SPARK - SYSTEM_GIB - (node.demands["qwen4b"].held or 0)
    assert free == near(98.51)
    assert node.demands["qwen80b"].needs == near(101.72)
    assert free < (node.demands["qwen80b"].needs or 0)


@BOTH
def test_fractions_must_sum_below_095(catalog: ModelCatalog) -> None:
    def fits(small: float) -> str:
        return spark1(qwen36(0.55), qwen4b(small, 16384), catalog=catalog).fits

    assert [fits(small) for small in (0.20, 0.30, 0.35)] == ["yes"] * 3
    assert [fits(small) for small in (0.40, 0.45)] == ["no"] * 2


@pytest.mark.parametrize("utilization", [0.10, 0.12, 0.85])
def test_some_5_gib_are_gone_beside_what_an_engine_holds(utilization: float) -> None:
    node = spark1(qwen4b(utilization, 16384), catalog=ESTIMATE_ONLY)
    assert SPARK - (node.free or 0) - (node.demands["qwen4b"].resident or 0) == about(5.0)


# -- the 80B ----------------------------------------------------------------------------------------------------------


@BOTH
def test_the_80b_at_080_has_a_pool_of_208_gib_and_starts(catalog: ModelCatalog) -> None:
    node = spark1(qwen80b(0.80, 32768, 2), catalog=catalog)
    assert node.fits == "yes"
    assert node.demands["qwen80b"].kv == near(20.8)


def test_the_80b_at_080_resides_8_gib_under_its_allocation() -> None:
    reported, estimated = demand(qwen80b(0.80, 32768, 2)), demand(qwen80b(0.80, 32768, 2), ESTIMATE_ONLY)
    assert (reported.target or 0) - (reported.resident or 0) == about(8.0)
    assert estimated.resident == about(87.7)


def test_the_80b_at_075_with_four_long_sequences_has_no_memory_for_cache_blocks() -> None:
    node = spark1(qwen80b(0.75, 65536, 4))
    assert node.fits == "no"
    assert "no memory for cache blocks" in node.reason
    assert "reported" in node.reason
    assert demand(qwen80b(0.75, 65536, 4), ESTIMATE_ONLY).kv == about(14)


@pytest.mark.parametrize(
    ("launch", "verdict"),
    [((0.70, 65536, 4), "no"), ((0.75, 131072, 8), "no"), ((0.75, 32768, 2), "yes"), ((0.85, 32768, 2), "yes")],
)
def test_what_was_reported_counts_for_launches_that_ask_for_more_or_less(
    launch: tuple[float, int, int], verdict: str
) -> None:
    assert spark1(qwen80b(*launch)).fits == verdict


def test_half_the_window_needs_more_than_half_the_cache_in_a_hybrid() -> None:
    long, short = (demand(qwen80b(0.85, window, 2), ESTIMATE_ONLY) for window in (65536, 32768))

    def window_gib(one: Any) -> float:
        return float(one.kv / one.windows)

    assert window_gib(short) > 0.51 * window_gib(long)


# -- the 4B -----------------------------------------------------------------------------------------------------------


@BOTH
def test_the_4b_at_010_resides_at_138_gib_with_35_gib_of_cache(catalog: ModelCatalog) -> None:
    small = demand(qwen4b(0.10, 16384), catalog)
    assert small.resident == near(13.8)
    assert small.kv == about(3.5)


@pytest.mark.parametrize(("window", "gib", "fits"), [(32768, 4.8, "no"), (16384, 2.4, "yes")])
def test_one_sequence_of_32k_does_not_fit_the_4b_at_010_and_one_of_16k_does(window: int, gib: float, fits: str) -> None:
    node = spark1(qwen4b(0.10, window))
    small = node.demands["qwen4b"]
    assert node.fits == fits
    assert (small.kv or 0) / (small.windows or 1) == about(gib)


def test_the_longest_window_that_fits_is_named() -> None:
    reason = spark1(qwen4b(0.10, 32768)).reason
    assert "the 32,768 tokens of one full window take 4.5 GiB of cache, and it has 3.6 GiB" in reason
    assert "at most 26,0" in reason


@BOTH
def test_the_80b_at_080_and_the_4b_at_010_run_together(catalog: ModelCatalog) -> None:
    node = spark1(qwen4b(0.10, 16384), qwen80b(0.80, 32768, 2), catalog=catalog)
    assert node.order == ("qwen80b", "qwen4b")
    assert not node.failed
    assert node.fits == ("yes" if catalog is CATALOG else "barely")


# -- Qwen3.6-35B-A3B in NVFP4, FP8 cache ------------------------------------------------------------------------------


@BOTH
def test_qwen36_at_085_is_what_vllm_logs(catalog: ModelCatalog) -> None:
    big = demand(qwen36(0.85), catalog)
    assert big.weights == near(21.94)
    assert big.kv == near(76.49)
    assert big.tokens == near(4_843_965)
    assert big.windows == near(73.91)
    assert (big.kv or 0) * 2**30 / (big.tokens or 1) == near(16.6 * 1024)


@pytest.mark.parametrize(("utilization", "kv", "tokens", "windows"), [(0.5, 39, 2.4e6, 37), (0.4, 23, 1.4e6, 22)])
def test_qwen36_at_a_smaller_share(utilization: float, kv: float, tokens: float, windows: float) -> None:
    some = demand(qwen36(utilization))
    assert some.kv == about(kv)
    assert some.tokens == about(tokens)
    assert some.windows == about(windows)


# -- DeepSeek-V4-Flash over two nodes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("utilization", "tokens", "windows"), [(0.85, 360_858, 1.8), (0.90, 612_341, 3.06)])
def test_ds4_over_two_nodes(utilization: float, tokens: int, windows: float) -> None:
    both = planned(ds4(utilization)).nodes
    assert set(both) == {"spark1", "spark2"}
    for node in both.values():
        assert node.fits == "yes"
        assert node.demands["ds4"].weights == near(76e9 / 2**30)
        assert node.demands["ds4"].tokens == near(tokens)
        assert node.demands["ds4"].windows == near(windows)


def test_ds4_leaves_some_gib_free_on_each_node() -> None:
    """116.0 of 119.67 GiB were used on the head, 110.1 on the worker: 6.6 GiB free on average."""
    assert planned(ds4(0.90)).nodes["spark1"].free == about((SPARK - 116.0 + SPARK - 110.1) / 2)


@pytest.mark.parametrize("beside", [qwen36(0.55), qwen80b(0.80, 32768, 2)], ids=["qwen36", "80B"])
def test_nothing_big_runs_beside_ds4(beside: Backend) -> None:
    nodes = planned(ds4(0.90), beside).nodes
    assert nodes["spark1"].fits == "no"
    assert nodes["spark2"].fits == "yes"


# -- one engine on a node ---------------------------------------------------------------------------------------------


GUIDE: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-Coder-Next-FP8": {"max_model_len": 170_000, "max_num_batched_tokens": 32_768},
    "RedHatAI/Qwen3.5-122B-A10B-NVFP4": {"max_model_len": 65_536, "max_num_batched_tokens": 8192},
    "unsloth/Qwen3.6-27B-NVFP4": {"max_model_len": 1_010_000},
    "nvidia/Gemma-4-31B-IT-NVFP4": {"max_model_len": 65_536},
    "nvidia/Gemma-4-26B-A4B-NVFP4": {"max_model_len": 65_536, "kv_cache_dtype": "fp8"},
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": {"max_model_len": 262_144, "kv_cache_dtype": "fp8"},
    "nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-NVFP4": {"max_model_len": 131_072, "max_num_batched_tokens": 32_768},
}


@pytest.mark.parametrize("model", GUIDE)
def test_what_the_guide_runs_at_085_fits(model: str) -> None:
    assert spark1(vllm("guide", model, 0.85, max_num_seqs=4, **GUIDE[model])).fits == "yes"


def test_what_is_left_free_below_the_advised_is_barely() -> None:
    node = spark1(qwen36(0.935))
    assert node.fits == "barely"
    assert 0 < (node.free or 0) < ADVISED_FREE_GIB
