"""The story on docs/fleet.md: its file loads, and the plan says what the page says."""

from __future__ import annotations

import re

import pytest

from gateway.apps.control.memory.model_catalog import ModelCatalog
from gateway.apps.control.memory.plan import Changes, NodePlan, plan
from gateway.config.load import load_text
from gateway.config.snapshot import Snapshot
from gateway.launch.command import parse
from tests.apps.control.memory.sparks import CATALOG, ESTIMATE_ONLY
from tests.demo_process import ROOT

PAGE = (ROOT / "docs" / "fleet.md").read_text()
STORY = PAGE[PAGE.index("### Two models on one Spark") :]

pytestmark = pytest.mark.skipif(parse("vllm serve m").model is None, reason="command lines are not read here yet")


@pytest.fixture(scope="module")
def written() -> Snapshot:
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", STORY, re.M | re.S)
    return load_text(text, "routes.yaml", {}).snapshot


def planned(written: Snapshot, changes: Changes | None = None, catalog: ModelCatalog = CATALOG) -> NodePlan:
    return plan(written, "two-models", catalog, changes).nodes["spark2"]


def test_what_runs_fits_with_what_the_page_says_stays_free(written: Snapshot) -> None:
    node = planned(written)
    assert node.fits == "yes"
    assert node.reason.startswith("11.6 GiB stay free")
    assert "`yes`: 11.6 GiB stay free" in STORY


def test_without_the_reports_it_fits_barely(written: Snapshot) -> None:
    assert planned(written, catalog=ESTIMATE_ONLY).fits == "barely"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {
                "qwen80b": {"gpu-memory-utilization": 0.85, "max-model-len": 65536},
                "qwen4b": {"gpu-memory-utilization": 0.12},
            },
            "the qwen4b needs 14.4 GiB free, 12.6 will be",
        ),
        ({"qwen4b": {"max-model-len": 32768}}, "at most 26,032"),
        (
            {"qwen80b": {"gpu-memory-utilization": 0.75, "max-model-len": 65536, "max-num-seqs": 4}},
            "no memory for cache blocks",
        ),
    ],
)
def test_each_attempt_fails_as_the_page_says(written: Snapshot, changes: Changes, said: str) -> None:
    node = planned(written, changes)
    assert node.fits == "no"
    assert said in node.reason
    assert said in STORY


def test_the_smaller_share_that_the_page_proposes_to_try_fits_in_some_way(written: Snapshot) -> None:
    assert planned(written, {"qwen80b": {"gpu-memory-utilization": 0.82}}).fits != "no"
