"""docs/reference.md is what the code says, and nothing of it is missing."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from typing import get_args

import pytest

from gateway.cli.main import commands
from gateway.config.schema import all_keys
from gateway.config.snapshot import ModelServer
from gateway.domain.endpoints import ENDPOINTS, UPLOADS
from tests.demo_process import PATIENCE, ROOT

SOURCE = "\n".join(path.read_text() for path in sorted((ROOT / "gateway").rglob("*.py")))


@pytest.fixture(scope="module")
def reference() -> str:
    """As the code has it now."""
    command = [sys.executable, "docs/tools/reference.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def part(reference: str, title: str) -> set[str]:
    """The first names of the rows under this heading."""
    (text,) = re.findall(rf"^## {title}$(.*?)(?=^## |\Z)", reference, re.M | re.S)
    return set(re.findall(r"^\| `([^`]+)`", text, re.M))


def test_the_page_is_current(reference: str) -> None:
    assert (ROOT / "docs/reference.md").read_text() == reference, "run `make reference`"


def test_the_table_of_servers_is_current() -> None:
    spec = importlib.util.spec_from_file_location("servers", ROOT / "docs/tools/servers.py")
    assert spec is not None
    assert spec.loader is not None
    servers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(servers)
    page = (ROOT / "docs/engines.md").read_text()
    assert servers.with_table(page) == page, "run `make reference`"
    assert {*servers.SERVERS, *servers.CLOUDS} == set(get_args(ModelServer))


def test_the_tables_of_the_other_pages_are_current() -> None:
    command = [sys.executable, "docs/tools/tables.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [], "run `make reference`"


def test_every_key_is_there() -> None:
    leaves = {key for key in all_keys() if not any(other.startswith(f"{key}.") for other in all_keys())}
    page = (ROOT / "docs/routes.md").read_text()
    places = re.findall(r"^<!-- keys: \w+ -->$(.*?)^<!-- end -->$", page, re.M | re.S)
    shown = [key for place in places for key in re.findall(r"^\| `([^`]+)`", place, re.M)]
    merged = [f"backends.*.{section}" for section in ("timeouts", "health", "queue", "images")]
    overrides = tuple(key for key in shown if key in merged)
    assert len(overrides) == len(merged)
    assert sorted(key for key in leaves if not key.startswith(overrides)) == sorted(set(shown) - set(overrides))
    assert len(shown) == len(set(shown))


def test_every_metric_is_there() -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    assert set(re.findall(r"^\| `(gateway_[a-z_]+)`", page, re.M)) == set(re.findall(r'"(gateway_[a-z_]+)"', SOURCE))


def test_every_command_is_there(reference: str) -> None:
    assert {name.split()[1] for name in part(reference, "Commands")} == set(commands())


def test_every_path_of_inference_is_there(reference: str) -> None:
    (text,) = re.findall(r"^## Paths$(.*?)(?=^## )", reference, re.M | re.S)
    paths = {path for endpoint in (*ENDPOINTS, *UPLOADS) for path in (f"/v1{endpoint.path}", *endpoint.also)}
    assert {path for path in paths if f"`{path}`" not in text} == set()


def test_every_path_of_the_operators_page_is_there(reference: str) -> None:
    page = (ROOT / "docs/operating.md").read_text()
    named = set(re.findall(r"`(?:GET|POST) (/[^`{]*)", page))
    rows = re.findall(r"^\| (?:GET|POST) \| ([^|]*) \|", reference, re.M)
    assert named
    assert named <= set(re.findall(r"`(/[^`{]*)", " ".join(rows)))
