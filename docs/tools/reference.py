"""Prints docs/reference.md: every path and every command with its options, read off the code that has them.

`make reference` writes the file; tests/program/test_reference.py checks that it is current and complete. The tables of
keys and metrics on other pages are written by tables.py, with the rows from here.
"""

from __future__ import annotations

import inspect
import typing
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import click
from prometheus_client.metrics_core import Metric

from gateway.api.app import build_api
from gateway.api.caller import Page
from gateway.cli.main import cli
from gateway.config.schema import definitions
from gateway.config.setting import Setting, kind_in, members, section_in, settings_of
from gateway.config.snapshot import Defaults, Snapshot
from gateway.domain.endpoints import ENDPOINTS, UPLOADS
from gateway.http.app import App


def main() -> None:
    click.echo("\n".join(page()))


def page() -> Iterator[str]:
    yield "# Reference"
    yield ""
    yield "Every path, and every command with its options. Made from the code by `make reference`: do not edit."
    yield ""
    others = (
        ("Keys of `routes.yaml`", "routes"),
        ("headers", "request-path"),
        ("error codes", "errors"),
        ("metrics", "metrics"),
    )
    yield "; ".join(f"{what}: [{name}.md]({name}.md)" for what, name in others) + "."
    parts = (
        ("Paths", "operating.md", paths()),
        ("Commands", "commands.md", commands()),
    )
    for title, link, lines in parts:
        yield from ("", f"## {title}", "", f"More: [{link}]({link}).", "")
        yield from lines


def table(*heads: str) -> Iterator[str]:
    yield row(*heads)
    yield "|---" * len(heads) + "|"


def row(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"


# -- routes.yaml ------------------------------------------------------------------------------------------------------


def leaves() -> Iterator[tuple[str, Setting]]:
    """Every key that is no section, with its path; the keys of `defaults` that a backend overrides stay one key."""
    overrides: list[str] = []
    for path, setting in definitions().items():
        if path.startswith(tuple(overrides)):
            continue
        if setting.section is None:
            yield path, setting
        elif path.startswith("backends.*.") and setting.key in settings_of(Defaults):
            overrides.append(f"{path}.")
            yield path, setting


def words(hint: Any) -> str:
    """What a key takes, in words."""
    if (section := section_in(hint)) is not None:
        return f"keys of {section.__name__.removesuffix('Settings').lower()}"
    if (kind := kind_in(hint)) is not None:
        return kind.words
    for only in members(hint):
        return words(only)
    if typing.get_origin(hint) is tuple:
        return f"list of {words(typing.get_args(hint)[0])}"
    return ", ".join(f"`{word}`" for word in typing.get_args(hint))


# -- HTTP -------------------------------------------------------------------------------------------------------------


def an_app() -> App:
    return App(Snapshot(backends={}, aliases={}))


def paths() -> Iterator[str]:
    yield from table("method", "path", "what")
    for (method, what), named in groupby(_served(), key=lambda one: (one[0], one[2])):
        yield row(method, ", ".join(f"`{path}`" for _, path, _ in named), what)


def _served() -> Iterator[tuple[str, str, str]]:
    """(method, path, what)"""
    for endpoint in (*ENDPOINTS, *UPLOADS):
        also = "".join(f", and as `{path}`" for path in endpoint.also)
        form = ", with a form" if endpoint in UPLOADS else ""
        yield "POST", f"/v1{endpoint.path}", f"Inference{form}; also without `/v1`{also}"
    served = polled_paths() | build_api(an_app().gateway).openapi()["paths"]
    for path in served:
        for method, operation in served[path].items() if f"/v1{path}" not in served else ():
            yield method.upper(), path, operation.get("description", operation["summary"]).split("\n\n")[0]


def polled_paths() -> dict[str, Any]:
    """The paths that FastAPI does not serve, as it would describe them."""
    app = an_app()
    named = ["/health", "/ready", "/version", "/metrics", "/v1/models", "/v1/models/{name}"]
    pages = {path: app.page_of(path) for path in named}
    return {
        path: {"get": {"summary": page.__name__.replace("_", " ").title(), **_description(page)}}
        for path, page in pages.items()
        if page
    }


def _description(page: Page) -> dict[str, str]:
    return {"description": inspect.cleandoc(page.__doc__)} if page.__doc__ else {}


def metrics() -> Iterator[str]:
    yield from table("metric", "labels", "kind", "meaning")
    known: list[Metric] = list(an_app().gateway.metrics.registry.collect())
    found = [metric for metric in known if metric.name.startswith("gateway_")]  # not those of any process
    for metric in sorted(found, key=lambda metric: metric.name):
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        labels = getattr(metric, "_labelnames", ())  # the families have no public attribute for their labels
        yield row(f"`{name}`", " ".join(f"`{label}`" for label in labels), metric.type, metric.documentation)


# -- commands ---------------------------------------------------------------------------------------------------------


USUAL = 5  # commands with the same option: it is told once


def commands() -> Iterator[str]:
    found = list(leaf_commands("gateway", cli))
    options = [one for _, command in found for one in command.params if isinstance(one, click.Option)]
    times = Counter(map(option_cells, options))
    usual = sorted(cells for cells, count in times.items() if count >= USUAL)
    yield "Options of many commands, named without a word below:"
    yield ""
    yield from (
        f"- {words}: {meaning}" + (f" Default {default}." if default else "") for words, default, meaning in usual
    )
    yield ""
    yield from table("command", "option", "default", "meaning")
    for name, command in found:
        cells = [option_cells(one) for one in command.params if isinstance(one, click.Option)]
        yield row(f"`{name}`", ", ".join(one[0] for one in cells if one in usual), "", command.get_short_help_str(200))
        yield from (row("", *one) for one in cells if one not in usual)


def option_cells(option: click.Option) -> tuple[str, str, str]:
    """(its words, its default, its meaning)"""
    words = ", ".join(f"`{word}`" for word in (*option.opts, *option.secondary_opts))
    return words, option_default(option), option.help or ""


def leaf_commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Each command below it that is no group, with its words and arguments."""
    context = click.Context(command)
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            if (found := command.get_command(context, inner)) is not None:
                yield from leaf_commands(f"{name} {inner}", found)
    else:
        arguments = "".join(f" {p.make_metavar(context)}" for p in command.params if isinstance(p, click.Argument))
        yield f"{name}{arguments}", command


def option_default(option: click.Option) -> str:
    if not option.show_default or option.default is None or option.is_flag:
        return ""
    given = option.show_default if isinstance(option.show_default, str) else option.default
    return f"`{', '.join(given) if isinstance(given, list | tuple) else given}`"


if __name__ == "__main__":
    main()
