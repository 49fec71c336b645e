"""The picture of a plan: well-formed, to scale, and with nothing of others' text as markup."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.apps.control.memory.plan import NodePlan, plan
from gateway.apps.control.memory.plan_svg import plan_svg, segments
from tests.apps.control.memory.sparks import (
    CATALOG,
    SPARK,
    fleet,
    ollama,
    planned,
    qwen4b,
    qwen36,
    qwen80b,
    spark1,
    vllm,
)

SVG = "{http://www.w3.org/2000/svg}"


def drawn(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def kinds(node: NodePlan) -> list[tuple[str, str]]:
    return [(part.kind, part.backend) for part in segments(node)]


def test_a_bar_has_weights_and_cache_of_each_backend_then_overhead_and_what_is_free() -> None:
    assert kinds(spark1(qwen80b(0.80, 32768, 2), qwen4b(0.10, 16384))) == [
        ("weights", "qwen80b"),
        ("cache", "qwen80b"),
        ("weights", "qwen4b"),
        ("cache", "qwen4b"),
        ("overhead", ""),
        ("free", ""),
    ]


def test_what_cannot_start_is_not_in_the_bar() -> None:
    node = spark1(qwen80b(0.85, 65536, 2), qwen4b(0.12, 16384))
    assert "qwen4b" not in {backend for _, backend in kinds(node)}


def test_a_share_of_unknown_parts_is_one_segment() -> None:
    assert kinds(spark1(vllm("odd", "acme/odd", 0.5)))[0] == ("held", "odd")


@pytest.mark.parametrize(
    "node",
    [spark1(), spark1(qwen36(0.5)), spark1(qwen36(0.9), qwen80b(0.85, 65536, 2)), spark1(qwen36(0.5, resident=20))],
)
def test_the_segments_are_the_whole_memory(node: NodePlan) -> None:
    assert sum(part.gib for part in segments(node)) == pytest.approx(SPARK)


def test_the_picture_names_every_node_with_its_verdict() -> None:
    root = drawn(plan_svg(planned(qwen36(0.5), replace(qwen4b(0.1, 32768), nodes=("spark2",)))))
    texts = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert any(text.startswith("spark1 119.67 GiB fits") for text in texts)
    assert any(text.startswith("spark2 119.67 GiB does not fit") for text in texts)


def test_the_bars_stay_inside_the_picture() -> None:
    root = drawn(plan_svg(planned(qwen80b(0.80, 32768, 2), ollama("qwen8b", "qwen3:8b"))))
    width = float(root.attrib["width"])
    for box in root.iter(f"{SVG}rect"):
        assert float(box.attrib["x"]) >= 0
        assert float(box.attrib["x"]) + float(box.attrib["width"]) <= width


def test_a_node_of_unknown_memory_has_no_bar() -> None:
    unknown = plan(fleet(qwen36(0.5), memory=None), None, CATALOG)
    assert segments(unknown.nodes["spark1"]) == []
    assert "memory not known" in plan_svg(unknown)


@given(st.text(max_size=30))
def test_names_are_text_and_nothing_else(name: str) -> None:
    backend = replace(qwen36(0.5), name=name, nodes=(name,))
    root = drawn(plan_svg(plan(replace(fleet(backend), nodes={}), None, CATALOG)))
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        "svg",
        "title",
        "style",
        "rect",
        "text",
        "tspan",
    }
