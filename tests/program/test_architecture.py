"""docs/architecture.md is true: its layers are those that `make lint` holds, and what it names is there."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.demo_process import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
[LAYERS] = [one["layers"] for one in LINTER["contracts"] if one.get("containers") == ["gateway"]]


def named(page: str) -> list[str]:
    """Paths of the repository that a page names in backticks."""
    roots = "gateway|simulator|bench|tests|docs|deploy|loadtests"
    return re.findall(rf"`((?:(?:{roots})/[\w./-]*|pyproject\.toml|routes\.schema\.json))`", page)


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table under this heading."""
    table = re.search(rf"^## {heading}\n.*?\n\|---.*?\n(.*?)\n\n", PAGE + "\n\n", re.S | re.M)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()]


@pytest.mark.parametrize("path", sorted({*named(PAGE), *named(CONTRIBUTING)}))
def test_every_file_it_names_is_there(path: str) -> None:
    assert (ROOT / path).exists()


def test_every_package_has_its_row() -> None:
    modules = [*(ROOT / "gateway").glob("*/__init__.py"), *(ROOT / "gateway" / "apps").glob("*/__init__.py")]
    packages = {f"`{path.parent.relative_to(ROOT)}/`" for path in modules}
    assert packages - {cells[0] for cells in rows("The layers")} == set()


def test_the_picture_has_the_layers_that_are_checked_from_top_to_bottom() -> None:
    picture = PAGE.split("```mermaid")[1].split("```")[0]
    order = re.findall(r'\["([^":]+)', picture)
    drawn = [set(re.findall(r"\w+", label)) for label in order]
    checked = [set(re.findall(r"\w+", layer)) for layer in LAYERS]
    leaves = {"errors", "large_bodies", "printable", "sqlite_file", "supervision", "shortage"}
    checked = [layer for layer in checked if not layer & leaves]
    assert drawn[-1] == leaves
    assert drawn[:-1] == checked


def test_whatever_can_be_added_has_files_and_a_test() -> None:
    for what, files, test in rows("To add something"):
        assert named(files), what
        assert named(test), what


def test_every_command_it_tells_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    told = re.findall(r"^make ([\w -]+?)\s+#", CONTRIBUTING, re.M)
    assert told
    assert {target for line in told for target in line.split()} <= targets
