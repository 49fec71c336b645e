"""Where a command finds its routes.yaml."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gateway.apps.demo import demo
from gateway.cli import options
from gateway.cli.main import cli
from gateway.cli.options import config_option

ROUTES = """\
backends: {%s: {url: "http://127.0.0.1:9", context: 65536, health: {every: none, canary: none}}}
"""


@pytest.fixture(autouse=True)
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, and the place where the service's file would be."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("GATEWAY_CONFIG", raising=False)
    place = tmp_path / "etc" / "routes.yaml"
    place.parent.mkdir()
    monkeypatch.setattr(options, "SERVICE", place)
    return place


def written(path: Path, backend: str) -> Path:
    path.write_text(ROUTES % backend)
    return path


def checked(*words: str, **environ: str) -> str:
    done = CliRunner().invoke(cli, ["check", *words], env=environ)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_command_takes_the_option_then_the_variable_then_this_folder_then_the_service(
    service: Path, tmp_path: Path
) -> None:
    written(service, "of-service")
    assert "of-service" in checked()
    written(Path("routes.yaml"), "of-folder")
    assert "of-folder" in checked()
    named = written(tmp_path / "named.yaml", "of-variable")
    assert "of-variable" in checked(GATEWAY_CONFIG=str(named))
    option = written(tmp_path / "option.yaml", "of-option")
    assert "of-option" in checked("--config", str(option), GATEWAY_CONFIG=str(named))


def test_every_command_with_a_file_knows_the_variable() -> None:
    def commands(command: click.Command, context: click.Context) -> list[click.Command]:
        if not isinstance(command, click.Group):
            return [command]
        names = command.list_commands(context)
        inner = [found for name in names if (found := command.get_command(context, name)) is not None]
        return [leaf for one in inner for leaf in commands(one, context)]

    found = [
        option for command in commands(cli, click.Context(cli)) for option in command.params if option.name == "config"
    ]
    assert len(found) > 15
    assert {option.envvar for option in found} == {"GATEWAY_CONFIG"}


def test_a_file_that_is_nowhere_is_told_with_the_ways_to_name_one() -> None:
    done = CliRunner().invoke(cli, ["check"])
    assert done.exit_code == 2
    said = " ".join(done.output.split())
    assert "there is no file 'routes.yaml': name another one with --config or GATEWAY_CONFIG" in said


def test_a_file_that_the_variable_names_is_never_replaced_by_another(service: Path) -> None:
    written(service, "of-service")
    done = CliRunner().invoke(cli, ["check"], env={"GATEWAY_CONFIG": "gone.yaml"})
    assert (done.exit_code, "there is no file 'gone.yaml'" in done.output) == (2, True)


def test_names_complete_from_the_file_of_the_service(service: Path) -> None:
    written(service, "of-service")

    @config_option
    @click.command()
    def command(config: Path) -> None: ...

    context = command.make_context("it", [], resilient_parsing=True)
    (name,) = options.complete_backend(context, command.params[0], "")
    assert name.value == "of-service"


def test_the_demo_never_takes_the_file_of_the_service(service: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(service, "of-service")
    loaded: list[Path] = []

    def load(config: Path) -> None:
        loaded.append(config)
        raise SystemExit(0)

    monkeypatch.setattr(demo, "load_or_exit", load)
    CliRunner().invoke(cli, ["demo"])
    assert [os.fspath(path) for path in loaded] == [os.fspath(demo.shipped_routes())]
