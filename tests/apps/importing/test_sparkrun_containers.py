"""What sparkrun started on this machine is recognised."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.apps.importing.draft import Draft, DraftEntry
from gateway.apps.importing.sparkrun import note_sparkrun, recipe_of, sparkrun_containers

NAME = "sparkrun_a1b2_solo"


def test_running_containers_of_sparkrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sparkrun_containers() == []
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\necho {NAME}\necho other\n")
    docker.chmod(0o755)
    assert sparkrun_containers() == [NAME]


def test_the_recipe_of_a_job(tmp_path: Path) -> None:
    assert recipe_of(NAME, tmp_path) is None
    (tmp_path / "a1b2.yaml").write_text("recipe: qwen3.6-35b\n")
    assert recipe_of(NAME, tmp_path) == "qwen3.6-35b"
    assert recipe_of("sparkrun_../x_solo", tmp_path) is None


@pytest.mark.parametrize("recipe", [None, "qwen3.6-35b"])
def test_the_vllm_of_this_machine_is_started_by_sparkrun(recipe: str | None) -> None:
    draft = Draft()
    draft.backends["q"] = DraftEntry({"url": "http://localhost:8000"})
    draft.backends["far"] = DraftEntry({"url": "http://192.168.1.11:8000"})
    note_sparkrun(draft, [NAME], recipe)
    told = "\n".join([*draft.backends["q"].comment, str(draft.backends["q"].keys)])
    assert NAME in told
    assert f"sparkrun run {recipe or 'RECIPE'} --ensure" in told
    assert ("start" in draft.backends["q"].keys) is (recipe is not None)
    assert not draft.backends["far"].comment
