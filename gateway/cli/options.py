"""Shared by several commands: options, examples in the help, reading routes.yaml, completion of its names."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
from click.shell_completion import CompletionItem

from gateway.printable import visible

if TYPE_CHECKING:
    from gateway.config.load import LoadedFile
    from gateway.config.problems import ConfigError, Problem
    from gateway.config.snapshot import Snapshot

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=click.Command)
HERE = Path("routes.yaml")
SERVICE = Path("/etc/spark-gateway/routes.yaml")  # where docs/deploy.md puts the file of the service
CONFIG_VARIABLE = "GATEWAY_CONFIG"
_HOST = re.compile(r"[A-Za-z0-9]([\w.-]*\w)?|[0-9A-Fa-f:]+", re.ASCII)


def config_option(command: F) -> F:
    """`--config FILE`, given to the command as `config: Path`; without it `GATEWAY_CONFIG`, else `default_config`."""
    option = click.option(
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar=CONFIG_VARIABLE,
        default=default_config,
        show_default=str(HERE),
        help="The file that says which backends and aliases there are. Without it: GATEWAY_CONFIG, the file of the "
        "service.",
    )
    return option(command)


def default_config() -> Path:
    """The routes.yaml of this folder; where there is none, that of the service on this machine."""
    return SERVICE if not os.path.exists(HERE) and os.path.exists(SERVICE) else HERE


def key_option(whose: str) -> Callable[[F], F]:
    """`--key KEY`, given to the command as `key: str | None`. `whose`: the words of the help."""
    return click.option("--key", envvar="GATEWAY_KEY", callback=_checked_key, help=f"{whose}; default GATEWAY_KEY.")


def _checked_key(_: click.Context, __: click.Parameter, key: str | None) -> str | None:
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise click.BadParameter("a key has only ASCII characters, and no white space (--key KEY, or GATEWAY_KEY)")
    return key


def port_option(help_: str, default: int | None = None) -> Callable[[F], F]:
    """`--port PORT`, given to the command as `port: int`, or `int | None` without a default."""
    shown = default is not None
    return click.option("--port", type=click.IntRange(0, 65535), default=default, show_default=shown, help=help_)


def mode_option(command: F) -> F:
    """`--mode NAME`, given to the command as `mode: str | None`."""
    option = click.option("--mode", shell_complete=complete_mode, help="As if this mode were in force; default first.")
    return option(command)


def in_mode_or_exit(snapshot: Snapshot, mode: str | None) -> Snapshot:
    """The fleet as it is in this mode; None: the first one. Raises UsageError where the file has no such mode."""
    from gateway.config.modes import in_mode

    if mode is not None and mode not in snapshot.modes:
        known = f"it has {', '.join(snapshot.modes)}" if snapshot.modes else "it has no modes"
        raise click.UsageError(f"there is no mode '{mode}' in {snapshot.source}: {known}")
    return in_mode(snapshot, mode)


def json_option(command: F) -> F:
    """`--json`, given to the command as `as_json: bool`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")(command)


def examples(*lines: str) -> Callable[[C], C]:
    """Append these command lines to the command's help; a comment may follow behind ` # `."""

    def add(command: C) -> C:
        command.epilog = "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])
        return command

    return add


def refuse_unknown(context: click.Context, name: str, commands: Iterable[str]) -> None:
    """Ends with exit code 2 where there is no such command."""
    if context.resilient_parsing or name in commands or name.startswith("-"):
        return
    from gateway.config.suggest import did_you_mean

    hint = did_you_mean(name, commands) or f"There are: {', '.join(commands)}."
    context.fail(f"no command '{name}': {hint}")


# -- routes.yaml ------------------------------------------------------------------------------------------------------


def is_there(path: Path) -> bool:
    """Is there a file or folder at this path? Raises UsageError where that cannot be told, as in a folder that the user
    may not enter. `Path.exists` says no in that case, from Python 3.14 on."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: no path at all
        return False
    except OSError as error:
        raise click.UsageError(f"'{path}' cannot be read: {error.strerror}") from None
    return True


def no_file(path: Path) -> click.UsageError:
    """The error for a missing routes.yaml, with the way to get one."""
    return click.UsageError(
        f"there is no file '{path}': name another one with --config or {CONFIG_VARIABLE}, or make one with "
        "`gateway init` (looks for running servers) or `gateway import FILE` (from LiteLLM, llama-swap, Olla, or what "
        "starts vLLM)"
    )


def load_or_exit(config: Path, *, as_json: bool = False) -> LoadedFile:
    """Load the file. Exits 2 (wrong usage) when it is missing, 1 after printing its mistakes."""
    from gateway.config.load import load
    from gateway.config.problems import ConfigError

    if not is_there(config):
        raise no_file(config)
    try:
        return load(config)
    except ConfigError as error:
        fail_with(error, as_json=as_json)


def load_or_last_good(config: Path, *, as_json: bool = False) -> tuple[LoadedFile, ConfigError | None]:
    """(the file, None), else (its last good version, the mistakes). Exits as `load_or_exit` without one."""
    from gateway.config.load import last_good, load
    from gateway.config.problems import ConfigError

    if not is_there(config):
        raise no_file(config)
    try:
        return load(config), None
    except ConfigError as error:
        found = last_good(config)
        if found is None:
            fail_with(error, as_json=as_json)
        return found, error


def snapshot_served(config: Path, *, as_json: bool = False) -> Snapshot:
    """What a running gateway serves, as far as the file tells: where it has mistakes, its last good version. A line
    says so. Exits as `load_or_exit`."""
    loaded, broken = load_or_last_good(config, as_json=as_json)
    if broken is not None:
        first, more = broken.problems[0], len(broken.problems) - 1
        others = f" (and {counted(more, 'more mistake')})" if more else ""
        click.echo(f"{visible(str(first))}{others}: asking by the last good version", err=True)
    return loaded.snapshot


def fail_with(error: ConfigError, *, as_json: bool) -> NoReturn:
    """Print all mistakes, to stdout as JSON or to stderr as lines, and exit 1."""
    if as_json:
        problems = [problem_json(problem, "error") for problem in error.problems]
        click.echo(json.dumps({"ok": False, "problems": problems}, indent=2))
    else:
        click.echo(str(error), err=True)
    sys.exit(1)


def fail(message: str) -> NoReturn:
    """Print why the command cannot go on, and exit 1."""
    click.echo(message, err=True)
    sys.exit(1)


def end_with(error: Exception, *, as_json: bool, code: int = 1) -> NoReturn:
    """Print the error, as JSON to stdout or as a line to stderr, and exit."""
    if as_json:
        click.echo(json.dumps({"ok": False, "error": str(error)}, indent=2))
    else:
        click.echo(f"Error: {visible(str(error))}", err=True)
    sys.exit(code)


def problem_json(problem: Problem, level: str) -> dict[str, Any]:
    return {"level": level, **asdict(problem)}


def is_host(text: str) -> bool:
    """Whether this is a host's name or its address, without a port."""
    return _HOST.fullmatch(text) is not None


def counted(number: int, what: str) -> str:
    """`1 backend`, `2 backends`, `3 aliases`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}{'es' if what.endswith('s') else 's'}"


def server_shown(row: Mapping[str, Any]) -> str:
    """`vllm`, `openai (sglang)`, `vllm (rust front end)`: the engine of a backend, with its row of traits where that
    has another name, and its front end where that is not the usual one."""
    engine, server, front_end = row["engine"], row.get("server"), row.get("front_end")
    shown = [server] if server not in (None, engine) else []
    shown += [f"{front_end} front end"] if front_end not in (None, "python") else []
    return f"{engine} ({', '.join(shown)})" if shown else engine


# -- completion -------------------------------------------------------------------------------------------------------
# These functions run in the user's shell: they must not raise or print.


def complete_alias(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Aliases, their further names except globs, and local backends, which a request may name directly."""
    aliases = _section(context, "aliases")
    found = list(aliases)
    for alias in aliases.values():
        also = alias.get("also") if isinstance(alias, dict) else None
        names = map(str, also) if isinstance(also, list) else ()
        found += [name for name in names if not any(c in name for c in "*?[")]
    for name, backend in _section(context, "backends").items():
        if not (isinstance(backend, dict) and backend.get("cloud") is True):
            found.append(name)
    return _starting(found, incomplete)


def complete_backend(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _starting(_section(context, "backends"), incomplete)


def complete_mode(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _starting(_section(context, "modes"), incomplete)


def complete_client(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _starting(_section(context, "clients"), incomplete)


def _starting(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)]


def _section(context: click.Context, name: str) -> dict[str, object]:
    """A section of the file as written, not validated; empty when the file cannot be read."""
    from gateway.config.document import read_document
    from gateway.config.problems import Report
    from gateway.config.sources import read_file

    try:
        config = Path(context.params.get("config") or default_config())
        text = read_file(config, patience=0.0).decode("utf-8-sig")
    except (OSError, ValueError):
        return {}
    section = (read_document(text, Report("routes.yaml")) or {}).get(name)
    return section if isinstance(section, dict) else {}


# -- URLs -------------------------------------------------------------------------------------------------------------


def server_url(url: str) -> str:
    """`url`, normalised. Raises UsageError where it is not the URL of a server."""
    from gateway.config.problems import Report
    from gateway.config.urls import check_url

    report = Report("")
    found = check_url(url, (), report)
    if found is None:
        problem = report.errors[0]
        raise click.UsageError(f"{problem.message}: {problem.hint}" if problem.hint else problem.message)
    return found
