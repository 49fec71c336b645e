"""Takes each condition of what is decided ahead out, one by one, and says which tests fail then. None may survive.

    .venv/bin/python -m tests.mutate_decisions [WORDS OF THE CONDITION]

It works on a copy of the sources. With words only the conditions that contain them are taken out. Not a test itself:
all of them take some minutes.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import logging
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import gateway.proxy.handler as handler
import tests.proxy.test_decided_ahead  # noqa: F401  (its scenarios are added by the import)
from tests.scenarios import SCENARIOS, outcome

ROOT = Path(__file__).parent.parent
PROXY = Path("gateway/proxy")
TABLE = PROXY / "decided.py"
FILES = (PROXY / "decisions.py",)
# Where the scenarios of tests/proxy/test_decided_ahead.py all come to the same.
TESTS = (
    "tests/proxy",
    "tests/apps/tracing/test_traces.py",
    "tests/proxy/test_blame_culprits.py",
    "tests/routing/test_plan_cloud.py",
    "tests/admission/test_access_local_only.py",
    "tests/admission/test_memory_of_gateway.py",
    "tests/test_large_bodies.py",
    "tests/apps/cluster",
)
# Conditions that only save work, or that another one makes sure of as well.
HARMLESS = {
    "sum(map(len, names)) > NAMES_MOST": "bounds memory; tests/proxy/test_decisions.py counts it",
    "len(value) > VALUE_MOST": "bounds memory; tests/proxy/test_decisions.py counts it",
    "values is None": "what is kept for it is never found",
    "state.health.state is not READY": "the order of the candidates and their slots say it too",
    "any((name in request.fields and name not in _COMPARED for name in changes))": "the cases are named before it",
    "BackendState.pool": "tests/admission/test_pool*.py: what a request reserves of the pool",
    "request.refused": "a refusal also changes the revision of its backend",
    **dict.fromkeys(("limited", "alias.params.keys().isdisjoint(CHAT.limits)"), "more is decided anew"),
    **dict.fromkeys(
        ("isinstance(value, Mapping)", "name in request.fields", "name not in _COMPARED"), "more is decided anew"
    ),
    "type(before) is _Undecided and now < before.until": "saves work; tests/proxy/test_decisions.py counts it",
    "state.cooldown_until > now": "the slots of a backend that pauses are not open",
    "services.tracer is not None": "tests/apps/tracing/test_traces.py: each request has a trace of its own",
    "isinstance(state.client, H1Client)": "only this client knows such heads",
    "request.exact": "what is counted is beyond the window that is sure",
    "limited is None or is_usual(limited)": "no field of a client ends it today; test_decided_ahead.py enumerates them",
}


@dataclass
class Mutant:
    file: Path
    line: int
    condition: str
    source: str


class _Finder(ast.NodeVisitor):
    """The conditions by which a request is left to be decided anew, each with what it becomes when it is taken out."""

    def __init__(self) -> None:
        self.found: list[tuple[ast.expr, bool]] = []

    def visit_If(self, node: ast.If) -> None:
        last = node.body[-1]
        if isinstance(last, ast.Return):
            self._take(node.test, gives_up=_is_no(last.value))
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if isinstance(node.value, ast.BoolOp | ast.Compare):
            self._take(node.value, gives_up=False)

    def _take(self, condition: ast.expr, *, gives_up: bool) -> None:
        if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
            self._take(condition.operand, gives_up=not gives_up)
        elif isinstance(condition, ast.BoolOp) and isinstance(condition.op, ast.Or if gives_up else ast.And):
            for operand in condition.values:
                self._take(operand, gives_up=gives_up)
        else:
            self.found.append((condition, not gives_up))


def _is_no(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value in (None, False))


class _Without(ast.NodeTransformer):
    def __init__(self, condition: ast.expr, becomes: bool) -> None:
        self._condition = condition
        self._becomes = becomes

    def visit(self, node: ast.AST) -> ast.AST:
        return ast.Constant(self._becomes) if node is self._condition else self.generic_visit(node)


def conditions(file: Path) -> Iterator[Mutant]:
    text = (ROOT / file).read_text()
    finder = _Finder()
    finder.visit(ast.parse(text))
    for number in range(len(finder.found)):
        tree, again = ast.parse(text), _Finder()
        again.visit(tree)
        condition, becomes = again.found[number]
        words, line = ast.unparse(condition), condition.lineno
        changed = ast.fix_missing_locations(_Without(condition, becomes).visit(tree))
        yield Mutant(file, line, words, ast.unparse(changed))


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


def put(source: str, file: Path) -> None:
    """Let the request path use `source` in place of this file, in this process."""
    for one in (TABLE, *FILES):
        name = str(one.with_suffix("")).replace("/", ".")
        text = source if one == file else (ROOT / one).read_text()
        exec(compile(text, str(one), "exec"), vars(importlib.import_module(name)))
    made = vars(importlib.import_module("gateway.proxy.decisions"))
    vars(handler)["Decisions"], vars(handler)["Decision"] = made["Decisions"], made["Decision"]


class Scenarios:
    """Those of tests/proxy/test_decided_ahead.py, with what they come to when nothing is decided ahead."""

    def __init__(self) -> None:
        self._anew: dict[str, list[object]] = {}

    def failing(self, mutant: Mutant) -> str:
        """The first scenario that comes to something else; empty = none does."""
        put(mutant.source, mutant.file)
        for name in SCENARIOS:
            if name not in self._anew:
                self._anew[name] = asyncio.run(outcome(name, "never"))
            try:
                if asyncio.run(outcome(name, "first")) != self._anew[name]:
                    return name
            except Exception as error:
                return f"{name}: {type(error).__name__}"
        return ""


def failing(folder: Path, mutant: Mutant) -> str:
    """The first other test that fails; empty = none does."""
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
    logging.disable()
    mutants = [mutant for file in FILES for mutant in conditions(file)] + list(rows())
    mutants = [one for one in mutants if all(word in one.condition for word in words)]
    scenarios, survivors = Scenarios(), 0
    with TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        for part in ("gateway", "simulator", "tests", "bench", "docs"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        for mutant in mutants:
            failed = HARMLESS.get(mutant.condition, "") or scenarios.failing(mutant) or failing(folder, mutant)
            survivors += not failed
            where = f"{mutant.file}:{mutant.line}"
            print(f"{where:40} {mutant.condition:70} {failed or 'SURVIVES'}", flush=True)
    print(f"{len(mutants)} conditions, {survivors} survive")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
