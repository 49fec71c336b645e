"""Prints docs/reference.md: every key, path, header, error code, metric and command, read off the code that has them.

`make reference` writes the file; tests/test_reference.py says that it is current and that nothing is missing.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any

import click
from prometheus_client.metrics_core import Metric
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway.cli.main import cli
from gateway.config import fields as f
from gateway.config import models as m
from gateway.config.notyet import NOT_YET
from gateway.config.snapshot import Snapshot
from gateway.config.units import format_duration, format_size
from gateway.domain.request import ENDPOINTS
from gateway.errors import CATALOGUE
from gateway.http.app import App
from gateway.proxy.headers import REQUEST, RESPONSE

DURATIONS = (f.Duration, f.DurationFromZero, f.DurationOrNone, f.DurationOrAuto)
WORDS: tuple[tuple[Any, str], ...] = (
    (f.Duration, "duration"),
    (f.DurationFromZero, "duration"),
    (f.DurationOrNone, "duration or none"),
    (f.DurationOrAuto, "duration, auto or none"),
    (f.Size, "size"),
    (f.SizeOrNone, "size or none"),
    (f.Count, "count"),
    (f.CountFromZero, "count or 0"),
    (f.CountOrNone, "count or none"),
    (f.Usd, "USD"),
    (f.Share, "0 to 1"),
    (f.BudgetText, "budget or none"),
    (f.Yes, "true or false"),
    (f.Text, "text"),
    (f.SecretText, "text"),
    (f.OptionalSecret, "text or none"),
    (f.HeaderSecret, "text or none"),
    (f.Listen, "HOST:PORT"),
    (f.Names, "list of names"),
    (f.HostNames, "list of names"),
    (f.Networks, "list of addresses or networks"),
    (f.OneOrMany, "name or list of names"),
    (f.Steps, "list of steps"),
    (f.Params, "mapping"),
    (f.Free, "anything"),
)


def main() -> None:
    click.echo("\n".join(page()))


def page() -> Iterator[str]:
    yield "# Reference"
    yield ""
    yield "Made from the code by `make reference`: do not edit. The pages behind the links say more."
    parts = (
        ("Keys of routes.yaml", "routes.md", keys()),
        ("Paths", "operating.md", paths()),
        ("Request headers", "headers.md", headers(REQUEST)),
        ("Response headers", "headers.md", headers(RESPONSE)),
        ("Error codes", "errors.md", errors()),
        ("Metrics", "metrics.md", metrics()),
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


def keys() -> Iterator[str]:
    yield from table("key", "value", "default", "meaning")
    for path, field, hint in leaves(m.RoutesFile, ""):
        yet = " No effect yet." if path in NOT_YET else ""
        yield row(f"`{path}`", kind(hint), default(field, hint), f"{field.description}{yet}")


def leaves(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo, Any]]:
    """(path, field, type as written) of every key that is no section; overrides of `defaults` stay one key."""
    hints = typing.get_type_hints(model, include_extras=True)
    for name, field in model.model_fields.items():
        hint = hints[name]
        section, named = section_of(hint)
        if section is None or (prefix == "backends.*." and section is not m.PriceSection):
            yield f"{prefix}{name}", field, hint
        else:
            yield from leaves(section, f"{prefix}{name}.*." if named else f"{prefix}{name}.")


def section_of(hint: Any) -> tuple[type[m.Section] | None, bool]:
    """(the model that a type holds, whether under names that the operator chooses)."""
    if isinstance(hint, type) and issubclass(hint, m.Section):
        return hint, False
    if typing.get_origin(hint) is dict:
        return section_of(typing.get_args(hint)[1])[0], True
    found = (section_of(member)[0] for member in members(hint))
    return next((section for section in found if section), None), False


def members(hint: Any) -> tuple[Any, ...]:
    """The members of a union, without None: what is not written."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(member for member in typing.get_args(hint) if member is not type(None))
    return ()


def kind(hint: Any) -> str:
    """What a key takes, in words. A type that is new here has to be given its words in `WORDS`."""
    for known, words in WORDS:
        if hint == known:
            return words
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(f"`{word}`" for word in typing.get_args(hint))
    if typing.get_origin(hint) is list:
        return f"list of {kind(typing.get_args(hint)[0])}"
    if (section := section_of(hint)[0]) is not None:
        return f"keys of {section.__name__.removesuffix('Section').lower()}"
    if len(only := members(hint)) == 1:
        return kind(only[0])
    raise LookupError(f"give the type of this key its words in WORDS of {__file__}: {hint}")


def default(field: FieldInfo, hint: Any) -> str:
    """As the file would say it; empty where the meaning says what is done without the key."""
    value = field.get_default()
    if value is None:
        return "`auto`" if hint == f.DurationOrAuto else "`none`" if hint == f.DurationOrNone else ""
    if hint in DURATIONS:
        return f"`{format_duration(value)}`"
    if hint == f.Size:
        return f"`{format_size(value)}`"
    if hint == f.Listen:
        return f"`{value[0]}:{value[1]}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


# -- HTTP -------------------------------------------------------------------------------------------------------------


def an_app() -> App:
    return App(Snapshot(backends={}, aliases={}))


def paths() -> Iterator[str]:
    yield from table("method", "path", "what")
    for endpoint in ENDPOINTS:
        yield row("POST", f"`/v1{endpoint.path}`", "Inference; also without `/v1`")
    served = an_app().api.openapi()["paths"]
    for path in served:
        for method, told in served[path].items() if f"/v1{path}" not in served else ():
            said = told.get("description", told["summary"]).split("\n")[0]
            yield row(method.upper(), f"`{path}`", said)


def headers(known: dict[str, str]) -> Iterator[str]:
    yield from table("header", "meaning")
    yield from (row(f"`{name}`", meaning) for name, meaning in known.items())


def errors() -> Iterator[str]:
    yield from table("code", "status", "type", "meaning")
    for code in CATALOGUE.values():
        status = "in the stream" if code.name == "stream_interrupted" else str(code.status)
        yield row(f"`{code.name}`", status, f"`{code.type}`", code.meaning)


def metrics() -> Iterator[str]:
    yield from table("metric", "kind", "labels", "meaning")
    known: list[Metric] = list(an_app().gateway.metrics.registry.collect())
    found = [metric for metric in known if metric.name.startswith("gateway_")]  # not those of any process
    for metric in sorted(found, key=lambda metric: metric.name):
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        labels = getattr(metric, "_labelnames", ())  # the families tell their labels nowhere else
        yield row(f"`{name}`", metric.type, " ".join(f"`{label}`" for label in labels), metric.documentation)


# -- commands ---------------------------------------------------------------------------------------------------------


def commands() -> Iterator[str]:
    yield from table("command", "option", "default", "meaning")
    context = click.Context(cli)
    for name in cli.list_commands(context):
        if (command := cli.get_command(context, name)) is not None:
            yield from command_rows(f"gateway {name}", command)


def command_rows(name: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command)
    arguments = "".join(f" {p.make_metavar(context)}" for p in command.params if isinstance(p, click.Argument))
    yield row(f"`{name}{arguments}`", "", "", command.get_short_help_str(200))
    for option in command.params:
        if isinstance(option, click.Option):
            words = ", ".join(f"`{word}`" for word in option.opts)
            yield row("", words, option_default(option), option.help or "")
    if isinstance(command, click.Group):
        for inner, found in command.commands.items():
            yield from command_rows(f"{name} {inner}", found)


def option_default(option: click.Option) -> str:
    if not option.show_default or option.default is None or option.is_flag:
        return ""
    given = option.default
    return f"`{', '.join(given) if isinstance(given, list | tuple) else given}`"


if __name__ == "__main__":
    main()
