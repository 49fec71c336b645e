"""Every recipe of deploy/recipes, and the shipped routes.yaml: no error in the check, enough memory, units."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.apps.control.memory.model_catalog import shipped_models
from gateway.apps.control.memory.plan import plan
from gateway.apps.fleet.lint.catalog import load_catalog
from gateway.apps.fleet.lint.findings import findings, findings_of
from gateway.apps.fleet.render.rendering import render
from gateway.apps.importing.server_draft import recipe_files
from gateway.config.load import load

FILES = {**recipe_files(), "routes": Path("routes.yaml")}
# Models whose layers or size are in no catalogue: recipe, or mode of the shipped file.
UNKNOWN = {"gemma4-12b-coder", "laguna-xs2", "judges"}


@pytest.mark.parametrize("name", FILES)
def test_the_check_finds_no_error(name: str) -> None:
    snapshot = load(FILES[name], environ={}).snapshot
    found = findings(snapshot, load_catalog(None))
    assert [one for one in found if one.severity == "error"] == []


@pytest.mark.parametrize("name", FILES)
def test_every_mode_fits(name: str) -> None:
    snapshot = load(FILES[name], environ={}).snapshot
    for mode in snapshot.modes or (None,):
        verdicts = {node.fits for node in plan(snapshot, mode, shipped_models()).nodes.values()}
        assert verdicts <= ({"unknown", "yes"} if {name, mode} & UNKNOWN else {"yes", "barely"}), mode


@pytest.mark.parametrize("name", FILES)
def test_every_launch_has_a_unit_and_a_script_on_each_of_its_nodes(name: str) -> None:
    snapshot = load(FILES[name], environ={}).snapshot
    written = {(file.node, file.path) for file in render(snapshot).files}
    for backend in snapshot.backends.values():
        for node in backend.nodes if backend.launch is not None else ():
            assert (node, f"/etc/systemd/system/spark-{backend.name}.service") in written
            assert (node, f"/usr/local/lib/spark/{backend.name}/launch.sh") in written


@pytest.mark.parametrize("name", FILES)
def test_the_check_has_nothing_to_say_but_what_a_comment_accepts(name: str) -> None:
    assert findings_of(load(FILES[name], environ={})) == []
