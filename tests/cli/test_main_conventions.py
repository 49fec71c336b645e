"""What holds for every command: examples in the help that are right, exit codes, JSON, completion, colours."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from bench.ports import free_ports
from gateway.cli.main import cli, commands

ROUTES = """\
server: {listen: "127.0.0.1:%d"}
backends:
  qwen36: {url: "http://127.0.0.1:9", context: 65536, health: {every: none, canary: none}}
  cloud: {engine: openai, url: "https://api.example.com", cloud: true, model: m}
aliases:
  reviewer: {use: [qwen36, cloud], also: [gpt-4o, "claude-*"]}
  writer: [qwen36]
clients: {hermes: {key: abcdef}}
"""
BAD = "backends: {a: {apibase: x}}\n"


def every_command() -> Iterator[tuple[str, click.Command]]:
    """All commands with those inside groups: ("alerts test", its command), ..."""
    for name in commands():
        command = cli.load(name)
        yield name, command
        if isinstance(command, click.Group):
            context = click.Context(command)
            found = ((inner, command.get_command(context, inner)) for inner in command.list_commands(context))
            yield from ((f"{name} {inner}", one) for inner, one in found if one is not None)


EVERY = dict(every_command())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def routes(folder: Path) -> Path:
    (folder / "routes.yaml").write_text(ROUTES % free_ports(1))
    return folder


def run(*arguments: str, **environ: str) -> Result:
    return CliRunner(env=environ).invoke(cli, list(arguments))


# -- help -------------------------------------------------------------------------------------------------------------


def examples(name: str) -> list[str]:
    """The command lines at the end of its help, without comments and redirections."""
    told = run(*name.split(), "--help").output.partition("Examples:\n")[2]
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    return [re.split(r"\s+#\s|\s>\s", line)[0] for line in lines]


@pytest.mark.parametrize("name", EVERY)
def test_the_help_of_every_command_ends_with_examples_of_it(name: str) -> None:
    shown = examples(name)
    assert shown
    assert all(line.startswith(f"gateway {name.split()[0]}") for line in shown)


@pytest.mark.parametrize("name", EVERY)
def test_every_example_is_understood(name: str) -> None:
    for line in examples(name):
        program, command, *arguments = shlex.split(line)
        assert program == "gateway"
        parse(cli.load(command), command, arguments)


def parse(command: click.Command, name: str, arguments: list[str]) -> None:
    """As click would, down to the last command, and nothing is run. Raises UsageError."""
    with command.make_context(name, list(arguments)) as context:
        if isinstance(command, click.Group):
            inner_name, inner, rest = command.resolve_command(context, context._protected_args + context.args)
            assert inner is not None
            parse(inner, str(inner_name), rest)


def test_an_example_that_is_wrong_would_be_noticed() -> None:
    with pytest.raises(click.UsageError):
        parse(cli.load("check"), "check", ["--nonsense"])
    with pytest.raises(click.UsageError):
        parse(cli.load("alerts"), "alerts", ["test", "--nonsense"])


@pytest.mark.parametrize("name", EVERY)
def test_every_command_says_what_it_does(name: str) -> None:
    assert EVERY[name].help
    assert run(*name.split(), "--help").exit_code == 0


# -- wrong usage ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_an_unknown_option_is_wrong_usage(name: str) -> None:
    assert run(*name.split(), "--nonsense").exit_code == 2


READ_ROUTES = [name for name, command in EVERY.items() if any(p.name == "config" for p in command.params)]
NEED_IT = [name for name in READ_ROUTES if name != "top"]  # which then looks where a gateway usually is
ARGUMENTS = {
    "explain": ["reviewer"],
    "bench": ["reviewer"],
    "why": ["0f8d"],
    "replay": ["0f8d"],
    "backup": ["state.tar"],
    "client add": ["one"],
    "client rotate": ["hermes"],
    "client remove": ["hermes"],
    "fleet switch": ["daily"],
    "fleet start": ["qwen36"],
    "fleet stop": ["qwen36"],
    "fleet pull": ["qwen36"],
    "fleet restart": ["qwen36"],
    "fleet logs": ["qwen36"],
    "batch run": ["turns.jsonl", "--alias", "reviewer", "--out", "judged"],
    "batch status": ["judged"],
    "batch cancel": ["judged"],
    "batch results": ["judged"],
}


@pytest.mark.parametrize("name", NEED_IT)
def test_a_file_that_is_not_there_is_wrong_usage_and_it_is_said_what_to_do(name: str) -> None:
    result = run(*name.split(), *ARGUMENTS.get(name, []), "--config", "none.yaml")
    assert result.exit_code == 2
    assert "there is no file 'none.yaml'" in result.stderr
    assert "gateway init" in result.stderr


@pytest.mark.parametrize("name", READ_ROUTES)
def test_a_file_with_a_mistake_exits_1_with_its_line(name: str, folder: Path) -> None:
    (folder / "bad.yaml").write_text(BAD)
    result = run(*name.split(), *ARGUMENTS.get(name, []), "--config", "bad.yaml")
    assert result.exit_code == 1
    assert "bad.yaml:1  backends.a.apibase: unknown key" in result.output


SAYS_JSON = [name for name, command in EVERY.items() if any(p.name == "as_json" for p in command.params)]


@pytest.mark.parametrize("name", [name for name in SAYS_JSON if name in NEED_IT])
def test_with_json_mistakes_are_json_too(name: str, folder: Path) -> None:
    (folder / "bad.yaml").write_text(BAD)
    result = run(*name.split(), *ARGUMENTS.get(name, []), "--config", "bad.yaml", "--json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert told["ok"] is False
    assert told["problems"][0]["path"] == "backends.a.apibase"


def test_whatever_prints_data_can_print_json() -> None:
    data = {"init", "import", "check", "explain", "probe", "usage", "fleet check", "alerts test"}
    assert data <= set(SAYS_JSON)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["check"], 0),
        (["check", "--live"], 1),
        (["explain", "reviewer", "--json"], 0),
        (["explain", "nobody"], 2),
        (["probe", "--direct", "--json"], 1),
        (["usage", "--json"], 1),
        (["usage", "--since", "x"], 2),
        (["fleet", "check"], 0),
        (["fleet", "switch", "daily"], 1),
        (["fleet", "switch", "daily", "--dry-run"], 2),
        (["fleet", "start", "qwen36"], 1),
        (["fleet", "status", "--json"], 1),
        (["fleet", "nonsense"], 2),
        (["alerts", "test"], 1),
        (["alerts", "nonsense"], 2),
        (["schema"], 0),
        (["completion", "bash"], 0),
        (["completion", "csh"], 2),
        (["sim", "vllm", "--port", "x"], 2),
        (["serve", "--port", "x"], 2),
        (["demo", "--port", "x"], 2),
        (["import", "none.yaml"], 2),
        ([], 2),
        (["--help"], 0),
    ],
)
def test_exit_codes(routes: Path, arguments: list[str], code: int) -> None:
    assert run(*arguments).exit_code == code


def test_an_unknown_command_gets_a_did_you_mean() -> None:
    result = run("chekc")
    assert result.exit_code == 2
    assert "no command 'chekc': did you mean 'check'?" in result.stderr
    assert "There are: serve, demo" in run("xyz").stderr


# -- colours ----------------------------------------------------------------------------------------------------------


def test_no_color_is_honoured(routes: Path) -> None:
    coloured = CliRunner().invoke(cli, ["explain", "reviewer"], color=True)
    assert "\x1b[" in coloured.output
    plain = CliRunner(env={"NO_COLOR": "1"}).invoke(cli, ["explain", "reviewer"], color=True)
    assert "\x1b[" not in plain.output
    assert plain.output == click.unstyle(coloured.output)
