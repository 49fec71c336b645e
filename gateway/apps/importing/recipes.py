"""The recipes that come with the gateway (deploy/recipes): launch blocks that work for a model on a DGX Spark."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.config.document import read_document
from gateway.config.problems import Report
from gateway.launch.command import ServeCommand, parse
from gateway.launch.docker import read_docker_flags

_ADDRESS = re.compile(r"(?m)^(  \w+: \{address: )([^,}]+)([^}\n]*)")
_SSH = re.compile(r", ssh: [^,}\n]+")  # the recipe's own: at another address it would be another machine's


def recipe_files() -> dict[str, Path]:
    """Name -> file: those at the root of a checkout, or the copies in a wheel."""
    packed = Path(__file__).parents[2] / "recipes"
    folder = packed if packed.is_dir() else packed.parents[1] / "deploy" / "recipes"
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def recipe_nodes(name: str) -> int:
    """The number of nodes of a recipe, each of which takes one address. Raises KeyError."""
    return len(_ADDRESS.findall(recipe_files()[name].read_text("utf-8")))


def recipe_text(name: str, hosts: Sequence[str] = ()) -> str:
    """A recipe as a routes.yaml. `hosts` replace the addresses of its nodes, in order; where ssh reaches those is not
    known, so their `ssh` is left out. Raises KeyError."""
    text = recipe_files()[name].read_text("utf-8")
    addresses = iter(hosts)

    def node(match: re.Match[str]) -> str:
        host = next(addresses, None)
        return match[0] if host is None else f"{match[1]}{host}{_SSH.sub('', match[3])}"

    return _ADDRESS.sub(node, text)


def recipe_for(model: str) -> str | None:
    """The name of the first recipe that launches this model, by the checkpoint's name; None = there is none."""
    return next((name for name, file in recipe_files().items() if model in _models(file)), None)


def _models(file: Path) -> set[str]:
    data = read_document(file.read_text("utf-8"), Report(file.name)) or {}
    launches = [backend.get("launch") or {} for backend in (data.get("backends") or {}).values()]
    commands = [_command(launch) for launch in launches]
    return {name for command in commands for name in (command.model, *command.served_names) if name}


def _command(launch: Mapping[str, Any]) -> ServeCommand:
    entrypoint = read_docker_flags(launch.get("docker")).entrypoint
    return parse(str(launch.get("command", "")), image=launch.get("image"), entrypoint=entrypoint)
