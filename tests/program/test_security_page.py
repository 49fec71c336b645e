"""docs/security.md promises nothing without a test."""

from __future__ import annotations

import re

from tests.demo_process import ROOT

PAGE = (ROOT / "docs/security.md").read_text()


def test_every_test_that_holds_a_promise_exists() -> None:
    named = set(re.findall(r"tests/[\w/]+\.py", PAGE))
    assert named
    assert {name for name in named if not (ROOT / name).is_file()} == set()


def test_every_promise_names_its_tests() -> None:
    tables = PAGE.split("| promise | tests |\n|---|---|\n")[1:]
    rows = [row for table in tables for row in table.split("\n\n")[0].splitlines()]
    assert len(rows) > 20
    assert [row for row in rows if "tests/" not in row and "the same" not in row] == []
