"""The files that operators have, imported as they are: `files/CASE/expected.yaml` says what must come.

`file`: what `gateway import FILE --address 192.168.1.11` reads. `exit` (default 0) and `says`: text of its output.
`notes`: texts that some note has; `count`: how many there are.
`nodes`: name -> address. `modes`: name -> backends. `backends`: name -> image, command, env, docker, volumes
of the launch block, or keys of the backend. `check`: rules of errors that `gateway fleet check` finds (default:
none). `rendered`: backend -> the end of the words that `docker run` gets on the head."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.apps.fleet.render.launches import NodeLaunch, node_launches
from gateway.cli.main import cli
from gateway.config.document import read_document
from gateway.config.load import load_text
from gateway.config.machines import Launch
from gateway.config.problems import Report
from gateway.config.snapshot import Backend

FILES = Path(__file__).parent / "files"
OF_LAUNCH = ("image", "command", "env", "docker", "volumes")
ENVIRON = dict.fromkeys(("SPARK_2_ADDRESS", "API_KEY"), "192.168.1.12")


def expected(case: str) -> dict[str, Any]:
    report = Report(case)
    data = read_document((FILES / case / "expected.yaml").read_text(), report)
    report.finish()
    assert data is not None
    return data


@pytest.mark.parametrize("case", sorted(path.name for path in FILES.iterdir()))
def test_a_file_of_the_field(case: str, tmp_path: Path) -> None:
    wanted = expected(case)
    routes = tmp_path / "routes.yaml"
    folder = shutil.copytree(FILES / case, tmp_path / "here")
    if (folder / "dot.env").exists():
        (folder / "dot.env").rename(folder / ".env")
    file = folder / str(wanted["file"])
    arguments = ["import", str(file), "-o", str(routes), "--address", "192.168.1.11"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == wanted.get("exit", 0), result.output
    assert str(wanted.get("says", "")) in result.output
    if result.exit_code:
        assert not routes.exists()
        return
    notes = [note for note in result.output.splitlines() if note.split("  ")[0] in ("to do", "changed", "left out")]
    for text in wanted.get("notes", ()):
        assert any(text in note for note in notes), notes
    assert wanted.get("count", len(notes)) == len(notes), notes
    loaded = load_text(routes.read_text(), "routes.yaml", ENVIRON)
    backends = loaded.snapshot.backends
    assert list(backends) == list(wanted["backends"])
    nodes = {name: node.address for name, node in loaded.snapshot.nodes.items()}
    assert wanted.get("nodes", nodes) == nodes
    modes = {name: list(mode.backends) for name, mode in loaded.snapshot.modes.items()}
    assert wanted.get("modes", modes) == modes
    for name, keys in wanted["backends"].items():
        assert shown(backends[name], keys) == keys
    checked = CliRunner(env=ENVIRON).invoke(cli, ["fleet", "check", "--config", str(routes), "--json"])
    errors = [one["rule"] for one in json.loads(checked.output)["findings"] if one["severity"] == "error"]
    assert errors == wanted.get("check", [])
    rendered = {one.backend.name: one for one in node_launches(loaded.snapshot, {})[0] if not one.is_worker}
    for name, words in wanted.get("rendered", {}).items():
        assert " ".join(map(shlex.quote, run_words(rendered[name]))) == words


def shown(backend: Backend, keys: dict[str, Any]) -> dict[str, Any]:
    """What the backend, or its launch block, has under these keys."""
    found: dict[str, Any] = {}
    known = {one.name for one in fields(Launch)}
    for key in keys:
        value = getattr(backend.launch if key in OF_LAUNCH and key in known else backend, key)
        found[key] = list(value) if isinstance(value, tuple) else dict(value) if key == "env" else value
    return found


def run_words(launch: NodeLaunch) -> list[str]:
    entrypoint = [] if launch.entrypoint is None else ["--entrypoint", launch.entrypoint]
    return [*entrypoint, launch.launch.image or "", *(word.replace("$${", "${") for word in launch.arguments)]
