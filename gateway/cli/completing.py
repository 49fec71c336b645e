"""Completion of names that stand in routes.yaml. Nothing here may fail or print: a shell is waiting."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import CompletionItem


def aliases(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Aliases, their further names without globs, and local backends, which are offered under their own names."""
    found = _names(context, "aliases")
    data = _section(context, "aliases")
    for alias in data.values():
        also = alias.get("also") if isinstance(alias, dict) else None
        found += (
            [str(name) for name in also if not any(c in str(name) for c in "*?[")] if isinstance(also, list) else []
        )
    clouds = [n for n, b in _section(context, "backends").items() if isinstance(b, dict) and b.get("cloud") is True]
    found += [name for name in _names(context, "backends") if name not in clouds]
    return _starting(found, incomplete)


def backends(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _starting(_names(context, "backends"), incomplete)


def clients(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _starting(_names(context, "clients"), incomplete)


def _starting(names: list[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)]


def _names(context: click.Context, section: str) -> list[str]:
    return list(_section(context, section))


def _section(context: click.Context, name: str) -> dict[str, object]:
    """A section of the file as it is written: it need not be valid to be completed from."""
    from gateway.config.document import read_document
    from gateway.config.problems import Report
    from gateway.config.sources import read_file

    try:
        config = Path(context.params.get("config") or "routes.yaml")
        text = read_file(config, patience=0.0).decode("utf-8-sig")
    except (OSError, ValueError):
        return {}
    section = (read_document(text, Report("routes.yaml")) or {}).get(name)
    return section if isinstance(section, dict) else {}
