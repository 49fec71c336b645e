"""Verdicts of the plan and their reasons: what is measured, what is not known, what stands in each other's way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.apps.control.memory.arithmetic import ENGINE_GIB, GIB, SYSTEM_GIB
from gateway.apps.control.memory.model_files import ModelFiles
from gateway.apps.control.memory.plan import mode_conflicts, plan, plan_json
from gateway.config.snapshot import Backend, Launch, Mode
from gateway.launch.command import parse
from tests.apps.control.memory.sparks import (
    CATALOG,
    ESTIMATE_ONLY,
    SPARK,
    demand,
    ds4,
    fleet,
    ollama,
    planned,
    qwen4b,
    qwen36,
    qwen80b,
    spark1,
    vllm,
)

# -- what is planned --------------------------------------------------------------------------------------------------


def test_without_modes_what_always_runs_is_planned() -> None:
    cloud = Backend("cloud", engine="openai", cloud=True, nodes=("spark1",))
    snapshot = fleet(qwen36(0.5), replace(qwen80b(0.8, 32768, 2), run="on_demand"), cloud)
    assert plan(snapshot, None, CATALOG).nodes["spark1"].order == ("qwen36",)
    assert plan(snapshot, None, CATALOG).mode is None


def test_the_first_mode_is_the_default() -> None:
    snapshot = fleet(qwen36(0.5), qwen4b(0.2, 8192), modes=(Mode("big", ("qwen36",)), Mode("small", ("qwen4b",))))
    assert plan(snapshot, None, CATALOG).mode == "big"
    assert plan(snapshot, "small", CATALOG).nodes["spark1"].order == ("qwen4b",)


def test_an_unknown_mode_is_an_error_of_the_caller() -> None:
    with pytest.raises(KeyError):
        plan(fleet(qwen36(0.5)), "nope", CATALOG)


def test_a_backend_on_no_node_is_outside_the_plan() -> None:
    assert spark1(replace(qwen36(0.5), nodes=())).order == ()


def test_a_node_with_nothing_on_it_is_free_but_for_its_system() -> None:
    assert spark1().free == pytest.approx(SPARK - SYSTEM_GIB)
    assert spark1().fits == "yes"


# -- what is not known ------------------------------------------------------------------------------------------------


def test_a_model_that_nobody_knows_is_unknown_and_still_takes_its_share() -> None:
    node = spark1(vllm("odd", "acme/odd-7b", 0.5, max_model_len=8192))
    assert node.fits == "unknown"
    assert "the weights of acme/odd-7b are not known" in node.reason
    assert node.demands["odd"].resident == pytest.approx(SPARK / 2)
    assert node.demands["odd"].weights is None
    assert node.free == pytest.approx(SPARK / 2 - SYSTEM_GIB - ENGINE_GIB)


def test_weights_without_a_geometry_are_half_an_answer() -> None:
    node = spark1(vllm("coder", "sakamakismile/gemma-4-12B-coder-fable5-composer2.5-MTP-NVFP4", 0.5, max_model_len=1))
    assert node.fits == "unknown"
    assert "what a token takes is not known" in node.reason
    assert node.demands["coder"].kv is not None
    assert node.demands["coder"].tokens is None


def test_a_cache_of_a_strange_type_is_unknown() -> None:
    assert "type turbo3" in spark1(qwen36(0.5, kv_cache_dtype="turbo3")).reason


def test_what_cannot_fit_is_no_even_where_the_rest_is_unknown() -> None:
    node = spark1(qwen36(0.5), vllm("odd", "acme/odd-7b", 0.5, max_model_len=8192))
    assert node.fits == "no"


def test_a_node_without_its_memory_is_unknown() -> None:
    node = plan(fleet(qwen36(0.5), memory=None), None, CATALOG).nodes["spark1"]
    assert node.fits == "unknown"
    assert "nodes.spark1.memory" in node.reason
    assert node.free is None


@pytest.mark.parametrize("engine", ["openai", "vllm"])
def test_a_backend_without_a_launch_block_is_unknown(engine: str) -> None:
    node = spark1(Backend("there", engine=engine, nodes=("spark1",)))  # type: ignore[arg-type]  # one of its values
    assert node.fits == "unknown"
    assert "launch" in node.reason
    assert node.free is None
    assert node.demands["there"].source == "unknown"


# -- what was measured ------------------------------------------------------------------------------------------------


def test_a_measured_residency_wins_over_the_estimate() -> None:
    measured = demand(qwen36(0.55, resident=61))
    assert measured.resident == pytest.approx(61)
    assert measured.source == "measured"
    assert measured.needs == pytest.approx(0.55 * SPARK)


def test_a_measured_residency_far_off_the_estimate_is_worth_a_note() -> None:
    assert "more than 10 % off" in demand(qwen36(0.55, resident=50)).note
    assert demand(qwen36(0.55, resident=61)).note == ""


def test_what_was_measured_was_seen_to_run() -> None:
    odd = vllm("odd", "acme/odd-7b", 0.5, resident=58)
    assert spark1(odd).fits == "yes"


def test_a_server_of_any_kind_can_be_measured() -> None:
    asr = Backend("asr", engine="openai", nodes=("spark1",), launch=Launch(resident=3 * GIB))
    assert spark1(asr).fits == "yes"
    assert spark1(asr).free == pytest.approx(SPARK - SYSTEM_GIB - 3)


# -- Ollama -----------------------------------------------------------------------------------------------------------


def test_ollama_takes_the_weights_and_a_cache_for_every_slot() -> None:
    one, two = demand(ollama("qwen8b", "qwen3:8b")), demand(ollama("qwen8b", "qwen3:8b", slots=2))
    assert one.weights == pytest.approx(5.2e9 / GIB, abs=0.01)
    assert one.kv == pytest.approx(4.5)
    assert two.kv == pytest.approx(9.0)
    assert one.target is None


@pytest.mark.parametrize(
    ("backend", "why"),
    [
        (ollama("a", "qwen3:235b"), "qwen3:235b is not in the catalogue"),
        (ollama("a", "llama9:1b"), "llama9:1b is not in the catalogue"),
        (ollama("a", "qwen3:8b", context=None), "set `context`"),
    ],
)
def test_what_ollama_holds_is_not_guessed(backend: Backend, why: str) -> None:
    assert spark1(backend).fits == "unknown"
    assert why in spark1(backend).reason


# -- loading ----------------------------------------------------------------------------------------------------------


def test_what_cannot_start_holds_nothing() -> None:
    alone, beside = spark1(qwen36(0.8)), spark1(qwen36(0.8), qwen4b(0.3, 8192))
    assert beside.failed == {"qwen4b"}
    assert beside.free == alone.free


def test_one_that_passes_its_check_may_still_come_to_hold_too_much() -> None:
    node = spark1(qwen36(0.85), qwen4b(0.10, 8192), catalog=ESTIMATE_ONLY)
    assert node.fits == "no"
    assert "starts, but comes to hold 15.3 GiB where 12.9 are free" in node.reason


def test_one_that_could_not_restart_beside_the_others_fits_barely() -> None:
    """The small one holds far more than its share, so the big one starts only while the small one is away."""
    node = spark1(qwen36(0.6, resident=40), qwen4b(0.10, 2048, resident=50))
    assert node.fits == "barely"
    assert "the qwen36 could not restart beside the others: it needs 71.8 GiB free, 64.6 would be" in node.reason


def test_an_engine_over_two_nodes_counts_on_both_with_the_smaller_pool() -> None:
    snapshot = fleet(ds4(0.90))
    small = replace(snapshot.nodes["spark2"], memory=round(115 * GIB))
    nodes = plan(replace(snapshot, nodes={**snapshot.nodes, "spark2": small}), None, CATALOG).nodes
    head, worker = nodes["spark1"].demands["ds4"], nodes["spark2"].demands["ds4"]
    assert head.tokens == worker.tokens
    assert (head.kv or 0) > (worker.kv or 0)
    assert (head.tokens or 0) < (planned(ds4(0.90)).nodes["spark1"].demands["ds4"].tokens or 0)


def test_a_further_node_of_unknown_memory_is_taken_for_its_like() -> None:
    snapshot = fleet(ds4(0.90))
    unknown = replace(snapshot, nodes={**snapshot.nodes, "spark2": replace(snapshot.nodes["spark2"], memory=None)})
    nodes, known = plan(unknown, None, CATALOG).nodes, plan(snapshot, None, CATALOG).nodes
    assert nodes["spark1"].demands["ds4"] == known["spark1"].demands["ds4"]
    assert nodes["spark2"].fits == "unknown"


def test_a_pool_of_a_written_size_does_not_follow_the_share() -> None:
    written = demand(qwen36(0.5, kv_cache_memory_bytes=8 * GIB))
    assert written.kv == pytest.approx(8)
    assert (written.resident or 0) < 0.5 * SPARK


def test_a_window_that_the_engine_shortens_fits() -> None:
    assert spark1(qwen4b(0.10, 32768)).fits == "no"
    assert spark1(qwen4b(0.10, -1)).fits == "yes"


def test_files_on_disk_win_over_the_catalogue() -> None:
    row = CATALOG.row("Qwen/Qwen3-4B-Instruct-2507")
    assert row is not None
    files = {"qwen4b": ModelFiles(Path("/models"), row.geometry, 5.0)}
    node = plan(fleet(qwen4b(0.10, 8192)), None, ESTIMATE_ONLY, files=files).nodes["spark1"]
    assert node.demands["qwen4b"].weights == 5.0


# -- profiles and what-ifs --------------------------------------------------------------------------------------------

READS = pytest.mark.skipif(parse("vllm serve m").model is None, reason="command lines are not read here yet")


def launched(name: str, command: str, **more: Any) -> Backend:
    launch = Launch(command=command, parsed=parse(command))
    return Backend(name, nodes=("spark1",), launch=launch, **more)


TEXT = "Qwen/Qwen3-4B-Instruct-2507 --gpu-memory-utilization 0.2 --max-model-len 16384"


@READS
@pytest.mark.parametrize("start", ["", "vllm serve "])
def test_a_profile_changes_the_command(start: str) -> None:
    backend = launched("small", start + TEXT, profiles={"wide": {"max-model-len": 32768}})
    snapshot = fleet(backend, modes=(Mode("day", ("small",)), Mode("night", ("small",), {"small": "wide"})))
    day, night = (plan(snapshot, mode, CATALOG).nodes["spark1"].demands["small"] for mode in ("day", "night"))
    assert (day.windows or 0) == pytest.approx(2 * (night.windows or 0), rel=0.01)


@READS
def test_a_what_if_changes_the_command_and_drops_what_was_measured() -> None:
    backend = launched("small", "vllm serve " + TEXT)
    assert backend.launch is not None
    backend = replace(backend, launch=replace(backend.launch, resident=round(25.5 * GIB)))
    wider = plan(fleet(backend), None, CATALOG, {"small": {"max-model-len": 8192}}).nodes["spark1"].demands["small"]
    larger = plan(fleet(backend), None, CATALOG, {"small": {"gpu-memory-utilization": 0.5}}).nodes["spark1"]
    assert wider.source == "measured"
    assert larger.demands["small"].source == "estimated"
    assert larger.demands["small"].resident == pytest.approx(0.5 * SPARK)


# -- conflicts of modes -----------------------------------------------------------------------------------------------


def test_a_mode_of_backends_that_cannot_run_together_is_a_conflict() -> None:
    good, bad = Mode("ds4", ("ds4",)), Mode("both", ("ds4", "qwen36"))
    ((mode, node),) = mode_conflicts(fleet(ds4(0.90), qwen36(0.55), modes=(good, bad)), CATALOG)
    assert (mode, node.name, node.order) == ("both", "spark1", ("ds4", "qwen36"))
    assert "the qwen36 needs 65.8 GiB free, 6.9 will be" in node.reason


def test_one_that_cannot_even_run_alone_is_no_conflict_of_the_mode() -> None:
    mode = Mode("day", ("qwen4b", "qwen36"))
    assert list(mode_conflicts(fleet(qwen4b(0.10, 32768), qwen36(0.5), modes=(mode,)), CATALOG)) == []


@pytest.mark.parametrize("flags", ["--gpu-memory-utilization 25", "--max-num-seqs 0", "--max-model-len many", "-tp 0"])
def test_a_value_that_vllm_refuses_is_the_reason_and_no_conflict_of_the_mode(flags: str) -> None:
    wrong = launched("wrong", f"vllm serve Qwen/Qwen3-4B-Instruct-2507 {flags}")
    snapshot = fleet(wrong, qwen36(0.5), modes=(Mode("m", ("wrong", "qwen36")),))
    node = plan(snapshot, "m", CATALOG).nodes["spark1"]
    assert (node.fits, node.refused) == ("no", ("wrong",))
    assert f"wrong: it does not start: --{next(iter(parse(f'vllm serve m {flags}').mistakes)).flag}" in node.reason
    assert list(mode_conflicts(snapshot, CATALOG)) == []


@pytest.mark.parametrize("flags", ["-tp 2", "-tp 2 --distributed-executor-backend ray", "-pp 2"])
def test_an_engine_for_two_gpus_on_one_spark_does_not_start(flags: str) -> None:
    node = plan(fleet(launched("big", f"vllm serve Qwen/Qwen3-4B-Instruct-2507 {flags}")), None, CATALOG).nodes[
        "spark1"
    ]
    assert (node.fits, node.refused) == ("no", ("big",))
    assert "2 nodes are needed" in node.reason


def test_a_share_that_is_a_reference_makes_the_target_unknown() -> None:
    found = demand(launched("it", "vllm serve Qwen/Qwen3-4B-Instruct-2507 --gpu-memory-utilization ${UTIL}"))
    assert (found.verdict, found.target, found.needs, found.resident) == ("unknown", None, None, None)
    assert "--gpu-memory-utilization: its value is known only where it is started" in found.reason


def test_a_window_that_is_a_reference_leaves_the_target_known() -> None:
    found = demand(launched("it", "vllm serve Qwen/Qwen3-4B-Instruct-2507 --max-model-len ${N}"))
    assert (found.verdict, found.windows) == ("unknown", None)
    assert found.target == pytest.approx(0.92 * SPARK)


def test_what_is_not_known_is_no_conflict() -> None:
    mode = Mode("day", ("a", "b"))
    unknown = [Backend(name, nodes=("spark1",)) for name in ("a", "b")]
    assert list(mode_conflicts(fleet(*unknown, modes=(mode,)), CATALOG)) == []


# -- JSON -------------------------------------------------------------------------------------------------------------


def test_the_json_has_just_the_documented_keys() -> None:
    written = plan_json(planned(qwen36(0.55)))
    assert set(written) == {"mode", "nodes"}
    node = written["nodes"]["spark1"]
    assert set(node) == {"memory_gib", "fits", "free_gib", "reason", "order", "backends"}
    assert set(node["backends"]["qwen36"]) == {
        "target_gib",
        "resident_gib",
        "weights_gib",
        "kv_gib",
        "kv_tokens",
        "full_windows",
        "source",
    }
    assert node["memory_gib"] == SPARK
