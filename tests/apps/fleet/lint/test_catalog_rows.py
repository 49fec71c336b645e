"""Rows of a catalogue: their fields, and mistakes in an operator's own."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from gateway.apps.control.memory.model_catalog import MODEL_FIELDS, REPORT_FIELDS
from gateway.apps.fleet.lint.catalog import SECTIONS, load_catalog
from gateway.config.problems import ConfigError
from tests.apps.fleet.lint.test_catalog import own

DOCS = Path(__file__).parents[4] / "docs" / "fleet.md"


def mistakes(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_catalog(own(folder, text))
    return [re.sub(r"^.*/mine", "mine", str(problem)) for problem in caught.value.problems]


def test_every_mistake_is_told_with_its_line(tmp_path: Path) -> None:
    text = """\
familes: {}
families:
  a: {match: "(", tool_parser: [x]}
  b: {moe: yes, mamba_block: many, tool_parsers: hermes}
  c: 3
  d: {draft_counts: [1]}
images:
  x: {entrypoint: bash}
"""
    assert [line.split(" - ")[0] for line in mistakes(tmp_path, text)] == [
        "mine.yaml:1  familes: unknown section 'familes'",
        "mine.yaml:3  families.a.tool_parser: unknown field 'tool_parser'",
        "mine.yaml:3  families.a.match: is no regular expression: missing ), unterminated subpattern at position 0",
        "mine.yaml:4  families.b.moe: must be true or false",
        "mine.yaml:4  families.b.mamba_block: must be a whole number",
        "mine.yaml:4  families.b.tool_parsers: must be a list",
        "mine.yaml:5  families.c: must be a mapping of fields",
        "mine.yaml:6  families.d.draft_counts: must be two numbers",
        "mine.yaml:8  images.x.entrypoint: must be one of vllm serve, vllm, none, own",
    ]


def test_every_field_is_documented() -> None:
    text = DOCS.read_text().partition("## The catalogue")[2]
    for section, kind in SECTIONS.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{section}` |"))
        named = {f.name for f in fields(kind)} - {"stated", "written", "match"}
        assert named <= set(re.findall(r"`(\w+)`", row)), section
    for section, known in {"models": MODEL_FIELDS, "field": REPORT_FIELDS}.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{section}` |"))
        assert set(known) <= set(re.findall(r"`(\w+)`", row)), section
