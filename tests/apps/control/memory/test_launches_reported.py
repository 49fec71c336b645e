"""What engines reported must come out of the plan within a tenth, or the plan says that it does not know."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.apps.control.memory.arithmetic import GIB
from gateway.apps.control.memory.geometry import read_geometry
from gateway.apps.control.memory.model_files import ModelFiles
from gateway.apps.control.memory.plan import NodePlan, plan
from gateway.config.document import read_document
from gateway.config.problems import Report
from gateway.config.snapshot import Backend, Launch, Node, Observed, Snapshot
from gateway.launch.command import ServeCommand, parse
from tests.apps.control.memory.sparks import CATALOG


def _cases() -> dict[str, dict[str, Any]]:
    report = Report("reported.yaml")
    found = read_document((Path(__file__).parents[3] / "data" / "fleet" / "reported.yaml").read_text(), report)
    report.finish()
    return dict(found or {})


CASES = _cases()


def files_of(given: dict[str, Any] | None) -> ModelFiles | None:
    return None if given is None else ModelFiles(Path("m"), read_geometry(given["config"]), given["weights"])


def command_of(model: str, flags: dict[str, Any]) -> ServeCommand:
    words = ["vllm", "serve", model]
    for name, value in flags.items():
        text = json.dumps(value) if isinstance(value, dict) else str(value)
        words += [f"--{name}"] if value is True else [f"--{name}", text]
    return parse(shlex.join(words))


def planned(case: dict[str, Any]) -> NodePlan:
    """The plan of the first node. `written`: the flags of the file, where those of the case are a what-if."""
    names = tuple(f"spark{number + 1}" for number in range(case.get("nodes", 1)))
    flags = dict(case["flags"]) | ({"tensor-parallel-size": len(names)} if len(names) > 1 else {})
    written = case.get("written", flags)
    launch = Launch(image=case.get("image"), parsed=command_of(case["model"], written))
    backend = Backend("b", nodes=names, launch=launch, observed=case.get("seen"))
    size, reserve = round(case.get("memory", 121.69) * GIB), case.get("reserve")
    node = Node("", memory=size, reserve=None if reserve is None else round(reserve * GIB))
    snapshot = Snapshot({"b": backend}, {}, nodes={name: replace(node, name=name) for name in names})
    files = files_of(case.get("given"))
    changes = {"b": {name: value for name, value in flags.items() if written.get(name) != value}}
    return plan(snapshot, None, CATALOG, changes, {} if files is None else {"b": files}).nodes["spark1"]


@pytest.mark.parametrize("name", CASES)
def test_a_reported_figure_is_met_or_unknown(name: str) -> None:
    case = CASES[name]
    node = planned(case)
    demand = node.demands["b"]
    for key, found in (("kv", demand.kv), ("tokens", demand.tokens), ("weights", demand.weights)):
        if key in case and found is not None:
            assert found == pytest.approx(case[key], rel=0.10), key
    if demand.span is not None and "tokens" in case:
        assert demand.span[0] <= case["tokens"] <= demand.span[1]
    assert node.fits in case.get("fits", ["yes", "barely", "unknown"]), node.reason
    if "fits" not in case:
        assert node.fits != "no"


# -- what the engine reported here ------------------------------------------------------------------------------------


def observed(**more: Any) -> dict[str, Any]:
    """A launch of a model that nobody knows, and what it said at 0.80 of 121.69 GiB with a window of 65,536 tokens."""
    seen = Observed(
        memory=round(121.69 * GIB),
        utilization=0.80,
        window=65536,
        cache_dtype="auto",
        weights=round(60 * GIB),
        kv=round(30 * GIB),
        tokens=600_000,
    )
    return {
        "model": "acme/unheard-of",
        "flags": {"gpu-memory-utilization": 0.80, "max-model-len": 65536},
        "seen": seen,
        **more,
    }


@pytest.mark.parametrize(
    ("flags", "kv", "tokens", "fits"),
    [
        ({}, 30.0, 600_000, "yes"),
        ({"gpu-memory-utilization": 0.85}, 36.08, 721_690, "yes"),
        ({"gpu-memory-utilization": 0.60}, 5.66, 113_240, "yes"),
        ({"gpu-memory-utilization": 0.56}, 0.79, 15_896, "no"),
        ({"gpu-memory-utilization": 0.50}, 0.0, 0, "no"),
        ({"max-model-len": 524288}, 30.0, 600_000, "yes"),
        ({"max-model-len": 700_000}, 30.0, 600_000, "no"),
        ({"kv-cache-memory-bytes": 15 * 2**30}, 15.0, 300_000, "yes"),
    ],
)
def test_what_an_engine_said_stands_before_every_estimate(
    flags: dict[str, Any], kv: float, tokens: int, fits: str
) -> None:
    case = observed()
    node = planned(case | {"flags": case["flags"] | flags})
    found = node.demands["b"]
    assert found.source == "observed"
    assert found.weights == pytest.approx(60, abs=0.01)
    assert found.kv == pytest.approx(kv, abs=0.02)
    assert found.tokens == pytest.approx(tokens, rel=0.01)
    assert node.fits == fits


@pytest.mark.parametrize(
    ("flags", "written"),
    [({"kv-cache-dtype": "fp8"}, None), ({"tensor-parallel-size": 2}, {}), ({"quantization": "fp8"}, {})],
)
def test_what_it_said_of_another_launch_is_not_used(flags: dict[str, Any], written: dict[str, Any] | None) -> None:
    case = observed()
    now = case["flags"] | flags
    node = planned(case | {"flags": now, "written": now if written is None else case["flags"]})
    assert node.demands["b"].source != "observed"
    assert "what it reported is not used" in node.demands["b"].note


def test_what_another_version_said_is_not_used() -> None:
    case = observed()
    seen = replace(case["seen"], engine="0.23.1")
    for tag, source in (("v0.23.0", "observed"), ("v0.33.0", "estimated"), ("nightly", "observed")):
        assert planned(case | {"seen": seen, "image": f"vllm/vllm-openai:{tag}"}).demands["b"].source == source


def test_the_window_of_a_hybrid_scales_by_its_layout() -> None:
    given = {"weights": 21.94, "config": HYBRID}
    flags = {"gpu-memory-utilization": 0.80, "max-model-len": 65536}
    whole = planned({"model": "acme/m", "flags": flags, "given": given}).demands["b"]
    assert whole.kv is not None
    assert whole.tokens is not None
    seen = replace(observed()["seen"], kv=round(whole.kv * GIB), tokens=whole.tokens // 2)
    short = {"model": "acme/m", "flags": flags | {"max-model-len": 4096}, "given": given}
    expected = planned(short).demands["b"].tokens or 0
    assert planned(short | {"seen": seen}).demands["b"].tokens == pytest.approx(expected / 2, rel=0.03)


# -- what else is counted ---------------------------------------------------------------------------------------------

HYBRID = {
    "num_hidden_layers": 40, "full_attention_interval": 4, "num_attention_heads": 16, "num_key_value_heads": 2,
    "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "max_position_embeddings": 262144,
}  # fmt: skip
GIVEN = {"weights": 20.0, "config": HYBRID}


def pool(**more: Any) -> float:
    flags = {"gpu-memory-utilization": 0.5, "max-model-len": 65536} | more.pop("flags", {})
    kv = planned({"model": "acme/m", "flags": flags, "given": GIVEN, **more}).demands["b"].kv
    assert kv is not None
    return kv


def test_graphs_are_counted_from_021_on_and_encoders_where_there_is_one() -> None:
    plain = pool(image="vllm/vllm-openai:v0.20.0")
    assert pool(image="vllm/vllm-openai:v0.21.0") < plain
    assert pool(image="vllm/vllm-openai:v0.21.0", flags={"enforce-eager": True}) == plain
    sees = {**GIVEN, "config": {"text_config": HYBRID, "vision_config": {"depth": 27}}}
    assert pool(given=sees) < plain
    assert pool(given=sees, flags={"limit-mm-per-prompt": {"image": 0}}) == plain


def test_a_cache_of_pictures_is_counted_where_it_is_written() -> None:
    sees = {**GIVEN, "config": {"text_config": HYBRID, "vision_config": {"depth": 27}}}
    flags = {"gpu-memory-utilization": 0.5, "max-model-len": 65536}
    free = [
        planned({"model": "acme/m", "given": sees, "flags": flags | more}).free or 0
        for more in ({}, {"mm-processor-cache-gb": 6})
    ]
    assert free[0] - free[1] == pytest.approx(6.0)


def test_a_cache_of_pictures_that_may_fill_the_node_is_said() -> None:
    sees = {**GIVEN, "config": {"text_config": HYBRID, "vision_config": {"depth": 27}}}
    flags = {"gpu-memory-utilization": 0.9, "max-model-len": 65536}
    for more, said in (({}, True), ({"mm-processor-cache-gb": 0}, False), ({"gpu-memory-utilization": 0.5}, False)):
        reason = planned({"model": "acme/m", "given": sees, "flags": flags | more}).reason
        assert ("with pictures they may come to hold 4 GiB more" in reason) == said, reason


def test_a_drafter_that_is_not_known_makes_the_cache_unknown() -> None:
    draft = {"method": "dflash", "model": "acme/own-dflash", "num_speculative_tokens": 10}
    flags = {"gpu-memory-utilization": 0.5, "max-model-len": 65536, "speculative-config": draft}
    node = planned({"model": "acme/m", "flags": flags, "given": GIVEN})
    assert (node.fits, node.demands["b"].tokens) == ("unknown", None)
    assert "acme/own-dflash is not known" in node.reason


def test_loading_that_leaves_little_is_said() -> None:
    flags = {"gpu-memory-utilization": 0.70, "max-model-len": 65536}
    node = planned({"model": "google/gemma-4-26B-A4B-it", "memory": 119.0, "flags": flags})
    assert node.fits == "yes"
    assert "but loading the b may need 109 GiB for a while: 7 stay free then" in node.reason
    text_only = flags | {"limit-mm-per-prompt": {"image": 0}}
    spared = planned({"model": "google/gemma-4-26B-A4B-it", "memory": 119.0, "flags": text_only})
    assert "loading" not in spared.reason
    assert (
        "loading"
        not in planned({"model": "google/gemma-4-26B-A4B-it", "flags": flags | {"gpu-memory-utilization": 0.55}}).reason
    )


def test_what_is_not_free_at_boot_is_not_planned_with() -> None:
    case = {"model": "acme/m", "given": GIVEN, "flags": {"gpu-memory-utilization": 0.87, "max-model-len": 65536}}
    assert planned(case).fits in ("yes", "barely")
    node = planned(case | {"reserve": 19.7})
    assert node.fits == "no"
    assert "needs 105.9 GiB free, 102.0 will be" in node.reason
