"""Prints docs/reference.md: every key, path, header, error code, metric and command, read off the code that has them.

`make reference` writes the file; tests/program/test_reference.py checks that it is current and complete.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from typing import Any

import click
from prometheus_client.metrics_core import Metric

from gateway.api.app import build_api
from gateway.api.caller import Page
from gateway.cli.main import cli
from gateway.config.keys import definitions
from gateway.config.setting import Setting, kind_in, members, section_in, settings_of
from gateway.config.snapshot import Defaults, Snapshot
from gateway.domain.request import ENDPOINTS, UPLOADS
from gateway.errors import CATALOGUE
from gateway.http.app import App

# The short form of docs/headers.md. A test compares it with the names in the code.
REQUEST_HEADERS = {
    "authorization": "`Bearer KEY`: the client's key, if `routes.yaml` has `clients`. Never sent to a backend.",
    "x-api-key": "The same.",
    "x-request-id": "Kept if it is well-formed, and sent to the backend.",
    "traceparent": "Sent to the backend, with `tracestate`.",
    "accept": "Sent to the backend, with `anthropic-version`, `anthropic-beta` and `openai-beta`. No other header is.",
    "content-type": "JSON, or missing. Any other type is refused.",
    "origin": "Sent by web pages: it must be the gateway's own origin.",
    "host": "Without `clients`: an address, a LAN name, or one of `server.hosts`.",
    "content-encoding": "`gzip`, or none.",
    "idempotency-key": "Two requests with the same one are one (`join_retries`).",
    "x-gateway-local-only": "`1`: this request must not leave the LAN. Only `0`, `false`, `no`, `off` mean no.",
    "x-claude-code-session-id": "Keeps a session on one backend.",
    "x-openwebui-chat-id": "The same.",
}

RESPONSE_HEADERS = {
    "x-request-id": "The client's own, or ours.",
    "request-id": "The same, on `/v1/messages`.",
    "x-gateway-alias": "The alias that served the request.",
    "x-gateway-backend": "The backend that answered.",
    "x-gateway-attempts": "How many attempts were made.",
    "x-gateway-queue-ms": "Milliseconds waited for slots.",
    "x-gateway-fallback": "Why a later step answered: the first is unhealthy or has just failed.",
    "x-gateway-routed": "Why a later step answered: because of this request.",
    "x-gateway-adapted": "What was changed in the request so that the backend could serve it.",
    "x-gateway-mended": "What was mended in the answer; not in streams.",
    "x-gateway-joined": "The request whose answer this is, because it is repeated (`join_retries`).",
    "x-gateway-committed": "`early`: the status was sent before any output of a backend.",
    "x-should-retry": "`false`, on `/v1/messages`: a retry cannot help.",
    "retry-after": "Seconds, 1 to 600, with 429 and 503; 1 with 401, 402 and 403.",
}


def main() -> None:
    click.echo("\n".join(page()))


def page() -> Iterator[str]:
    yield "# Reference"
    yield ""
    yield "Made from the code by `make reference`: do not edit. The pages behind the links say more."
    parts = (
        ("Keys of routes.yaml", "routes.md", keys()),
        ("Paths", "operating.md", paths()),
        ("Request headers", "headers.md", headers(REQUEST_HEADERS)),
        ("Response headers", "headers.md", headers(RESPONSE_HEADERS)),
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
    for path, setting in leaves():
        default = f"`{setting.shown_default}`" if setting.shown_default else ""
        yield row(f"`{path}`", words(setting.hint), default, setting.help)


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
    for endpoint in (*ENDPOINTS, *UPLOADS):
        also = "".join(f", and as `{path}`" for path in endpoint.also)
        form = ", with a form" if endpoint in UPLOADS else ""
        yield row("POST", f"`/v1{endpoint.path}`", f"Inference{form}; also without `/v1`{also}")
    served = polled_paths() | build_api(an_app().gateway).openapi()["paths"]
    for path in served:
        for method, operation in served[path].items() if f"/v1{path}" not in served else ():
            summary = operation.get("description", operation["summary"]).split("\n\n")[0]
            yield row(method.upper(), f"`{path}`", summary)


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
        labels = getattr(metric, "_labelnames", ())  # the families have no public attribute for their labels
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
        for inner in command.list_commands(context):
            if (found := command.get_command(context, inner)) is not None:
                yield from command_rows(f"{name} {inner}", found)


def option_default(option: click.Option) -> str:
    if not option.show_default or option.default is None or option.is_flag:
        return ""
    given = option.default
    return f"`{', '.join(given) if isinstance(given, list | tuple) else given}`"


if __name__ == "__main__":
    main()
