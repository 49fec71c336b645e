"""Where a generated routes.yaml is written: over nothing without --force, and to stdout."""

from __future__ import annotations

import shutil
from pathlib import Path

import click
import pytest

from gateway.apps.importing.output import write
from gateway.config.load import load
from tests.apps.importing.test_import_command import ENVIRON, SOURCE, run


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory with LiteLLM's config in it."""
    shutil.copy(SOURCE, tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ENVIRON:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_a_file_that_is_there_is_never_overwritten_without_force(folder: Path) -> None:
    (folder / "routes.yaml").write_text("mine")
    result = run("litellm-config.yaml")
    assert result.exit_code == 2
    assert "--force" in result.stderr
    assert (folder / "routes.yaml").read_text() == "mine"
    assert run("litellm-config.yaml", "--force").exit_code == 0
    assert load(folder / "routes.yaml", ENVIRON).snapshot.backends


def test_a_file_that_came_meanwhile_is_not_overwritten_either(folder: Path) -> None:
    (folder / "routes.yaml").write_text("mine")
    with pytest.raises(click.UsageError, match="--force"):
        write("other", Path("routes.yaml"), force=False)
    assert (folder / "routes.yaml").read_text() == "mine"
    assert sorted(path.name for path in folder.iterdir()) == ["litellm-config.yaml", "routes.yaml"]


def test_a_folder_that_is_not_there_is_a_problem(folder: Path) -> None:
    result = run("litellm-config.yaml", "-o", "none/routes.yaml")
    assert result.exit_code == 1
    assert "cannot write 'none/routes.yaml'" in result.stderr


def test_to_stdout_and_nothing_is_written(folder: Path) -> None:
    result = run("litellm-config.yaml", "-o", "-")
    assert result.exit_code == 0
    assert result.stdout.startswith("# yaml-language-server")
    assert not (folder / "routes.yaml").exists()
