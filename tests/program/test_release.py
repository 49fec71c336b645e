"""A release: its version, its changelog, what its lists contain, and the workflow that publishes it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from datetime import date
from typing import Any

import pytest
from ruamel.yaml import YAML

from deploy.release.sbom import locked, sbom
from gateway import __version__
from tests.demo_process import ROOT

CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
WORKFLOW = (ROOT / ".github/workflows/release.yml").read_text()
SCRIPT = ROOT / "deploy/release/release.sh"
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_version_is_one_and_the_changelog_begins_with_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__
    releases = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\S+)$", CHANGELOG, re.M)
    assert releases[0][0] == __version__
    assert [day for _, day in releases] == sorted((day for _, day in releases), reverse=True)
    assert all(date.fromisoformat(day) for _, day in releases)
    for version, _ in releases:
        assert f"\n[{version}]: " in CHANGELOG
    assert set(re.findall(r"^### (\w+)$", CHANGELOG, re.M)) <= KINDS


def test_the_commands_have_the_name_of_the_package_too() -> None:
    """`uvx NAME` and `pipx run NAME` look for a command of the package's name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"][project["name"]] == project["scripts"]["gateway"]


def test_every_action_of_the_workflow_is_pinned_by_digest() -> None:
    used = re.findall(r"uses: (\S+)", WORKFLOW)
    assert len(used) >= 8
    for action in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action
    assert len(re.findall(r"uses: \S+ +# v\d", WORKFLOW)) == len(used), "each digest has its version beside it"


def test_the_workflow_publishes_what_was_tried_when_a_tag_is_pushed() -> None:
    found: dict[Any, Any] = YAML(typ="safe", pure=True).load(WORKFLOW)
    assert found["on"] == {"push": {"tags": ["v*.*.*"]}}
    assert found["permissions"] == {"contents": "read"}
    jobs = found["jobs"]
    assert [job for job in jobs if job != "build" and jobs[job]["needs"] != ["build"]] == []
    assert {"run": "make release"} in jobs["build"]["steps"]
    (build,) = [step["with"] for step in jobs["image"]["steps"] if "build-push" in step.get("uses", "")]
    assert (build["platforms"], build["file"]) == ("linux/amd64,linux/arm64", "deploy/Dockerfile")


def test_the_bill_of_materials_has_every_package_of_the_lock_and_what_it_needs() -> None:
    lock = locked((ROOT / "requirements.lock").read_text())
    installed = {"httpx": ["1", "BSD-3-Clause", ["anyio", "certifi; python_version>'3'", "rich<15 ; extra == 'cli'"]]}
    found = sbom("1.2.3", lock, installed, 0)
    assert (found["bomFormat"], found["specVersion"], found["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", found["serialNumber"])
    assert found["metadata"]["timestamp"] == "1970-01-01T00:00:00Z"
    components = {component["name"]: component for component in found["components"]}
    assert {name: component["version"] for name, component in components.items()} == lock
    assert len(lock) > 40
    assert components["httpx"]["licenses"] == [{"expression": "BSD-3-Clause"}]
    edges = {edge["ref"]: edge["dependsOn"] for edge in found["dependencies"]}
    needs = [re.sub(r"@.*", "", one) for one in edges[components["httpx"]["purl"]]]
    assert needs == ["pkg:pypi/anyio", "pkg:pypi/certifi"]
    assert set(edges) == {found["metadata"]["component"]["bom-ref"]} | {one["bom-ref"] for one in found["components"]}
    assert sbom("1.2.3", lock, installed, 0) == found


def test_the_script_is_one_that_shellcheck_takes() -> None:
    shellcheck = shutil.which("shellcheck") or shutil.which("shellcheck", path=f"{sys.prefix}/bin")
    if shellcheck is None:
        pytest.skip("no shellcheck here")
    done = subprocess.run([shellcheck, str(SCRIPT)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
