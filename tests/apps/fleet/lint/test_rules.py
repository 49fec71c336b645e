"""The rules of the lint: each can be seen at work and read about."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.apps.fleet.lint.catalog import catalog_of
from gateway.apps.fleet.lint.findings import FLEET_RULES, RULES, findings
from gateway.apps.fleet.lint.subject import Finding
from gateway.config.load import load
from gateway.config.snapshot import Snapshot
from tests.apps.fleet.lint.linting import MISTAKES, WORKING, launched, of_backend

DOCS = Path(__file__).parents[4] / "docs"


def every_finding() -> list[Finding]:
    found = findings(WORKING.snapshot, catalog_of(WORKING.snapshot), WORKING.lines)
    for case in MISTAKES.values():
        found += of_backend(**{key: value for key, value in case.items() if key not in ("finds", "fix")})
    return found


def test_every_rule_over_a_backend_is_met_by_a_mistake() -> None:
    met = {rule for case in MISTAKES.values() for rule in case["finds"]}
    source = Path(__file__).with_name("test_rules_routes.py").read_text()
    whole = {rule for rule in {*RULES, *FLEET_RULES} if f'"{rule}"' in source}
    assert {*RULES, *FLEET_RULES} - met - whole == set()


def test_every_finding_says_why_and_names_its_source() -> None:
    of_the_line = re.compile(r"flag-|command-")
    for one in every_finding():
        assert len(one.message) > 20
        assert one.source or of_the_line.match(one.rule) or one.rule in ("same-url", "port-mapping"), one


def documented() -> set[str]:
    section = (DOCS / "fleet.md").read_text().partition("\n## Check\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `([a-z-]+)` \|", section, re.M))


def test_every_rule_is_documented_and_no_other() -> None:
    of_the_line = {name for path in (DOCS.parent / "gateway" / "launch").glob("*.py") for name in _rules_in(path)}
    assert documented() == {*RULES, *FLEET_RULES, *of_the_line}


def _rules_in(path: Path) -> set[str]:
    return set(re.findall(r'"((?:flag|command)-[a-z]+)"', path.read_text()))


def test_the_fields_of_the_json_are_the_contract() -> None:
    (found,) = (one for one in launched("VLLM_WORKER_MULTIPROC_METHOD=fork vllm serve m") if one.rule == "env-crash")
    told = found.as_json()
    assert list(told) == ["severity", "rule", "path", "line", "message", "fix"]
    assert told["message"].endswith("(DeepSeek V4 Flash on two Sparks, breakage 2)")


def test_the_shipped_file_gives_no_error() -> None:
    loaded = load(DOCS.parent / "routes.yaml", environ={})
    snapshot: Snapshot = loaded.snapshot
    assert [one for one in findings(snapshot, catalog_of(snapshot)) if one.severity == "error"] == []
