"""The recipes of deploy/recipes: each is a routes.yaml that loads, and `gateway init` knows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.apps.importing.discovery import FoundServer, Model
from gateway.apps.importing.server_draft import draft_of, recipe_files, recipe_for, recipe_text
from gateway.cli.main import cli
from gateway.config.load import load, load_text

NAMES = tuple(recipe_files())


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_loads_and_its_command_has_no_mistake(name: str) -> None:
    for backend in load(recipe_files()[name], environ={}).snapshot.backends.values():
        assert backend.launch is not None
        assert backend.launch.parsed.mistakes == ()
        assert backend.launch.parsed.is_vllm
        assert backend.launch.parsed.model


def test_every_recipe_is_in_the_list() -> None:
    listed = Path("deploy/recipes/README.md").read_text()
    assert [name for name in NAMES if f"[{name}.yaml]({name}.yaml)" not in listed] == []


def test_hosts_become_the_addresses_of_the_nodes() -> None:
    snapshot = load_text(recipe_text("ds4", ["10.1.0.1", "10.1.0.2"]), environ={}).snapshot
    assert [node.address for node in snapshot.nodes.values()] == ["10.1.0.1", "10.1.0.2"]
    assert snapshot.backends["ds4"].url == "http://10.1.0.1:8000"
    assert "192.168.1.12" in recipe_text("ds4", ["10.1.0.1"])


def test_a_node_of_another_address_is_not_reached_by_the_recipes_ssh() -> None:
    assert [node.ssh for node in load_text(recipe_text("ds4"), environ={}).snapshot.nodes.values()] == [
        "ops@spark1",
        "ops@spark2",
    ]
    moved = load_text(recipe_text("ds4", ["10.1.0.1"]), environ={}).snapshot.nodes
    assert [node.ssh for node in moved.values()] == [None, "ops@spark2"]
    assert all(node.memory for node in moved.values())


def test_a_recipe_is_found_by_the_model_that_a_server_names() -> None:
    assert recipe_for("nvidia/Qwen3.6-35B-A3B-NVFP4") == "qwen36-35b"
    assert recipe_for("deepseek-v4-flash") == "ds4"
    assert recipe_for("acme/unheard-of") is None


def test_a_discovered_model_with_a_recipe_names_it() -> None:
    server = FoundServer("http://10.0.0.1:8001", "vllm", (Model("nvidia/Qwen3.6-35B-A3B-NVFP4", 65536),))
    (entry,) = draft_of([server]).backends.values()
    assert any("--recipe qwen36-35b" in line for line in entry.comment)


def test_init_writes_a_recipe(tmp_path: Path) -> None:
    target = tmp_path / "routes.yaml"
    result = CliRunner().invoke(cli, ["init", "--recipe", "two-models", "10.0.0.9", "-o", str(target), "--json"])
    assert (result.exit_code, json.loads(result.stdout)["backends"]) == (0, ["qwen80b", "qwen4b"])
    assert load(target, environ={}).snapshot.backends["qwen4b"].url == "http://10.0.0.9:8003"


def test_an_unknown_recipe_lists_what_there_is() -> None:
    result = CliRunner().invoke(cli, ["init", "--recipe", "qwen36-36b", "-o", "-"])
    assert result.exit_code == 2
    assert "did you mean 'qwen36-35b'?" in result.output


@pytest.mark.parametrize(
    ("hosts", "why"),
    [
        (["10.0.0.9:8000"], "without a port"),
        (["a, ssh: -oProxyCommand=x"], "without a port"),
        (["10.0.0.9", "10.0.0.10"], "has 1 node, not 2"),
    ],
)
def test_init_refuses_what_a_recipe_cannot_take_as_its_nodes(hosts: list[str], why: str) -> None:
    result = CliRunner().invoke(cli, ["init", "--recipe", "two-models", *hosts, "-o", "-"])
    assert (result.exit_code, why in result.output) == (2, True), result.output
