"""Containers of this machine that sparkrun started: their servers are started and stopped by it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from gateway.apps.importing.draft import Draft
from gateway.apps.importing.source import mapping, text_of
from gateway.config.document import read_document
from gateway.config.problems import Report
from gateway.config.sources import read_file

_HERE = ("localhost", "127.0.0.1", "::1")
_PREFIX = "sparkrun_"
_SECONDS = 5.0
_MOST = 20
_MOST_BYTES = 64 * 1024  # of a job's file
_JOBS = Path("~/.cache/sparkrun/jobs")


def sparkrun_containers() -> list[str]:
    """The names of the running containers that sparkrun started; none without docker."""
    docker = shutil.which("docker")
    if docker is None:
        return []
    command = [docker, "ps", "--filter", f"name={_PREFIX}", "--format", "{{.Names}}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError, ValueError):
        return []
    names = [name.strip() for name in done.stdout.splitlines()]
    return [name for name in names if name.startswith(_PREFIX) and name.isprintable()][:_MOST]


def recipe_of(container: str, jobs: Path = _JOBS) -> str | None:
    """The recipe of a container, as sparkrun noted it when it started the job; None where it did not."""
    job = container.removeprefix(_PREFIX).partition("_")[0]
    if not re.fullmatch(r"\w+", job):
        return None
    try:
        data = read_document(read_file(jobs.expanduser() / f"{job}.yaml", _MOST_BYTES).decode("utf-8"), Report(job))
    except (OSError, ValueError):
        return None
    recipe = text_of(mapping(data).get("recipe"))
    return recipe if recipe is not None and recipe.isprintable() else None


def note_sparkrun(draft: Draft, names: list[str], recipe: str | None) -> None:
    """How sparkrun starts and stops the vLLM of this machine: under its keys where the recipe is known, else beside
    it."""
    here = [
        entry
        for entry in draft.backends.values()
        if urlsplit(str(entry.keys.get("url") or "")).hostname in _HERE and "engine" not in entry.keys
    ]
    if not names or len(here) != 1:
        return
    word = shlex.quote(recipe) if recipe is not None else "RECIPE"
    commands = {"start": f"sparkrun run {word} --ensure", "stop": f"sparkrun stop {word}"}
    here[0].comment = [*here[0].comment, f"Started by sparkrun: {', '.join(names)}"]
    if recipe is not None:
        here[0].keys |= commands
    else:
        lines = [f"  {key}: {command}" for key, command in commands.items()]
        here[0].comment += ["So that the gateway can start and stop it:", *lines]
