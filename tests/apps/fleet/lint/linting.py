"""Files to lint: what works for somebody, what went wrong for somebody, and the findings of one backend."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gateway.apps.fleet.lint.catalog import catalog_of
from gateway.apps.fleet.lint.findings import findings
from gateway.apps.fleet.lint.subject import Finding
from gateway.config.document import read_document
from gateway.config.load import load, load_text
from gateway.config.problems import Report

DATA = Path(__file__).parents[3] / "data" / "fleet"


def mistakes() -> Iterator[tuple[str, str, dict[str, Any]]]:
    report = Report("mistakes.yaml")
    groups = read_document((DATA / "mistakes.yaml").read_text(), report)
    report.finish()
    for group, cases in (groups or {}).items():
        yield from ((group, name, case) for name, case in cases.items())


def field(name: str) -> dict[str, dict[str, Any]]:
    """Launches that run, by name: those of field.yaml with `finds` and `silent`, of reported.yaml with figures."""
    report = Report(name)
    cases = read_document((DATA / f"{name}.yaml").read_text(), report)
    report.finish()
    return dict(cases or {})


WORKING = load(DATA / "working.yaml", environ={})
MISTAKES = {f"{group}: {name}": case for group, name, case in mistakes()}
NODES = {"spark1": {"address": "192.168.1.11"}, "spark2": {"address": "192.168.1.12"}}


def lint(file: dict[str, Any], *, in_container: bool = False) -> list[Finding]:
    loaded = load_text(json.dumps({"nodes": NODES, **file}, indent=1), environ={})
    return findings(loaded.snapshot, catalog_of(loaded.snapshot), loaded.lines, in_container=in_container)


def of_backend(**keys: Any) -> list[Finding]:
    return lint({"backends": {"b": {"node": "spark1", **keys}}})


def launched(command: str, **keys: Any) -> list[Finding]:
    return of_backend(launch={"command": command, **keys})


def rules(found: list[Finding]) -> dict[str, str]:
    """Rule -> its gravest severity."""
    return {one.rule: one.severity for one in reversed(found)}


def names_of(group: str) -> list[str]:
    """The names of the mistakes of one group of mistakes.yaml."""
    return [name for name in MISTAKES if name.startswith(f"{group}: ")]


def check_mistake(name: str) -> None:
    """What went wrong gives its finding."""
    case = dict(MISTAKES[name])
    expected, fix = case.pop("finds"), case.pop("fix", "")
    found = of_backend(**case)
    told = rules(found)
    assert {rule: told.get(rule) for rule in expected} == expected
    assert any(fix in one.fix for one in found if one.rule in expected), [one.fix for one in found]
