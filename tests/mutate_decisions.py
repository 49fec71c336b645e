"""Takes each condition of what is decided ahead out, one by one, and says which tests fail then. None may survive.

    .venv/bin/python -m tests.mutate_decisions [WORDS OF THE CONDITION]

It works on a copy of the sources. With words only the conditions that contain them are taken out. Not a test itself: all
of them take some twenty minutes.
"""

from __future__ import annotations

import ast
import copy
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
FAST = Path("gateway/proxy/fast")
TABLE = FAST / "decided.py"
FILES = (FAST / "decisions.py", FAST / "lane.py")
# First the file that is made for it: with most conditions taken out its scenarios come to something else.
TESTS = (
    "tests/test_decided_ahead.py",
    "tests/proxy/fast",
    "tests/test_traces.py",
    "tests/cluster",
    "tests/test_culprits.py",
)
# Conditions that only save work, or that another one makes sure of as well.
HARMLESS = {
    "sum(map(len, names)) > NAMES_MOST": "bounds memory; tests/proxy/fast/test_decisions.py counts it",
}


@dataclass
class Mutant:
    file: Path
    line: int
    condition: str
    source: str


class _Finder(ast.NodeVisitor):
    """The conditions after which a function gives up: `if ...: return None | False`, each operand of `or` alone."""

    def __init__(self) -> None:
        self.found: list[tuple[ast.If, int | None]] = []

    def visit_If(self, node: ast.If) -> None:
        last = node.body[-1]
        gives_up = isinstance(last, ast.Return) and _is_no(last.value)
        if gives_up and isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.Or):
            self.found += [(node, i) for i in range(len(node.test.values))]
        elif gives_up:
            self.found.append((node, None))
        self.generic_visit(node)


def _is_no(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value in (None, False))


def conditions(file: Path) -> Iterator[Mutant]:
    tree = ast.parse((ROOT / file).read_text())
    finder = _Finder()
    finder.visit(tree)
    for number, (node, operand) in enumerate(finder.found):
        changed = copy.deepcopy(tree)
        again = _Finder()
        again.visit(changed)
        target, _ = again.found[number]
        if operand is None:
            condition = ast.unparse(node.test)
            target.test = ast.Constant(False)
        else:
            assert isinstance(node.test, ast.BoolOp)
            assert isinstance(target.test, ast.BoolOp)
            condition = ast.unparse(node.test.values[operand])
            target.test.values[operand] = ast.Constant(False)
        yield Mutant(file, node.lineno, condition, ast.unparse(ast.fix_missing_locations(changed)))


def rows() -> Iterator[Mutant]:
    """Each field that is never decided ahead becomes one on which nothing depends."""
    text = (ROOT / TABLE).read_text()
    for found in re.finditer(r'never="([^"]+)"', text):
        for name in found[1].split():
            rest = " ".join(one for one in found[1].split() if one != name)
            source = f'{text[: found.start()]}never="{rest}"{text[found.end() :]}'
            cut = source.rfind("Fields(", 0, found.start()) + len("Fields(")
            kind = source[source.rfind("\n", 0, cut) : cut].strip().partition(":")[0]
            at = source.find('nothing="', cut)
            if 0 <= at < source.find('never="', cut):
                source = f"{source[: at + 9]}{name} {source[at + 9 :]}"
            else:
                source = f'{source[:cut]}nothing="{name}", {source[cut:]}'
            yield Mutant(TABLE, text.count("\n", 0, found.start()) + 1, f"{kind}.{name}", source)


def failing(folder: Path, mutant: Mutant) -> str:
    """The first test that fails; empty = none does."""
    file = folder / mutant.file
    before = file.read_text()
    file.write_text(mutant.source)
    try:
        for tests in TESTS:
            command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider", tests]
            run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if run.returncode:
                found = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
                return found[1] if found else run.stdout[-300:]
    finally:
        file.write_text(before)
    return ""


def main(words: list[str]) -> int:
    mutants = [mutant for file in FILES for mutant in conditions(file)] + list(rows())
    mutants = [one for one in mutants if all(word in one.condition for word in words)]
    survivors = 0
    with TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        for part in ("gateway", "simulator", "tests", "bench", "docs"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        for mutant in mutants:
            failed = failing(folder, mutant) or HARMLESS.get(mutant.condition, "")
            survivors += not failed
            where = f"{mutant.file}:{mutant.line}"
            print(f"{where:40} {mutant.condition:70} {failed or 'SURVIVES'}", flush=True)
    print(f"{len(mutants)} conditions, {survivors} survive")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
