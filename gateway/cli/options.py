"""What several commands share: options, reading routes.yaml, examples in the help."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from gateway.cli.completing import aliases, backends, clients

if TYPE_CHECKING:
    from gateway.config.load import Loaded
    from gateway.config.problems import ConfigError, Problem

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=click.Command)

complete_alias, complete_backend, complete_client = aliases, backends, clients


def config_option(command: F) -> F:
    """`--config FILE`, given to the command as `config: Path`."""
    option = click.option(
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        default=Path("routes.yaml"),
        show_default=True,
        help="The file that says which backends and aliases there are.",
    )
    return option(command)


def json_option(command: F) -> F:
    """`--json`, given to the command as `as_json: bool`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")(command)


def examples(*lines: str) -> Callable[[C], C]:
    """Put these command lines at the end of the command's help; a comment may follow behind ` # `."""

    def add(command: C) -> C:
        command.epilog = "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])
        return command

    return add


# -- routes.yaml ------------------------------------------------------------------------------------------------------


def no_file(path: Path) -> click.UsageError:
    """What to do when the file is not there."""
    return click.UsageError(
        f"there is no file '{path}': name another one with --config, or make one with `gateway init` "
        "(looks for running servers) or `gateway import FILE` (from LiteLLM, llama-swap, Olla)"
    )


def load_or_exit(config: Path, *, as_json: bool = False) -> Loaded:
    """The file, loaded. Not there = wrong usage (exit 2); with mistakes = they are printed (exit 1)."""
    from gateway.config.load import load
    from gateway.config.problems import ConfigError

    if not config.exists():
        raise no_file(config)
    try:
        return load(config)
    except ConfigError as error:
        fail_with(error, as_json=as_json)


def fail_with(error: ConfigError, *, as_json: bool) -> NoReturn:
    """Print all mistakes, to stdout as JSON or to stderr as lines, and exit 1."""
    if as_json:
        problems = [problem_json(problem, "error") for problem in error.problems]
        click.echo(json.dumps({"ok": False, "problems": problems}, indent=2))
    else:
        click.echo(str(error), err=True)
    sys.exit(1)


def problem_json(problem: Problem, level: str) -> dict[str, Any]:
    return {"level": level, **asdict(problem)}


def counted(number: int, what: str) -> str:
    """`1 backend`, `2 backends`, `3 aliases`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}{'es' if what.endswith('s') else 's'}"
