"""docs/compatibility.md has the tables of the code."""

from __future__ import annotations

from pathlib import Path

from gateway.inspection.policy import KINDS
from gateway.launch.families import ENFORCES, FAMILIES, ModelFamily

PAGE = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text()
FORCED = {
    "envelope": "A call and its name; its arguments' schema only with `strict: true`",
    "schema": "The schema too",
    "nothing": "Nothing",
}


def family_row(family: ModelFamily) -> str:
    parsers = " / ".join(f"`{name}`" for name in (family.tool_parser, *family.older_tool_parsers) if name) or "none"
    reasoning = f"`{family.reasoning_parser}`" if family.reasoning_parser else "none"
    thinking = {"always": "always", "never": "never", "optional": "on" if family.thinks_by_default else "off"}
    switch = f"`{family.switch}`" if family.switch else ""
    return f"| {family.name} | {parsers} | {reasoning} | {thinking[family.thinking]} | {switch} |"


def families_table() -> str:
    head = [
        "| family | `--tool-call-parser` (other builds) | `--reasoning-parser` | thinks | switch |",
        "|---|---|---|---|---|",
    ]
    return "\n".join(head + [family_row(family) for family in FAMILIES])


def enforces_table() -> str:
    rows = []
    for what, words in FORCED.items():
        names = ", ".join(f"`{name}`" for name in sorted(n for n, forced in ENFORCES.items() if forced == what))
        rows.append(f"| {words} | {names} |")
    return "\n".join(["| forced | parsers |", "|---|---|", *rows])


def test_the_page_has_every_family() -> None:
    assert families_table() in PAGE


def test_the_page_says_what_is_enforced() -> None:
    assert enforces_table() in PAGE


def test_the_page_names_every_kind_of_violation() -> None:
    for kind in KINDS:
        assert f"`{kind}`" in PAGE
