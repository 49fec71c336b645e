"""Writes the tables that are made from the code into the pages that have a place for them: the keys of routes.yaml, the
metrics, the commands. A place is what stands between `<!-- keys: server -->` and the next `<!-- end -->`.

`make reference` runs it. With `--check` it names the pages that are not current: tests/program/test_reference.py asks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import reference

from gateway.cli.main import cli

DOCS = Path(__file__).parents[1]
PLACE = re.compile(r"(?P<begin><!-- (?P<kind>keys|metrics|commands): (?P<what>\w+) -->\n).*?(?=<!-- end -->)", re.S)
ENGINE = ("launch", "observed", "start", "stop", "profiles")  # keys of a backend that say how its engine is started


def keys(section: str) -> Iterator[str]:
    """The keys below this one; of `launch` those of a backend that say how its engine is started, of `fleet` those that
    stand by themselves."""
    yield from reference.table("key", "value", "default", "meaning")
    for path, setting in reference.leaves():
        if section == _section(path):
            default = f"`{setting.shown_default}`" if setting.shown_default else ""
            yield reference.row(f"`{path}`", reference.words(setting.hint), default, setting.help)


def _section(path: str) -> str:
    first, *rest = path.split(".")
    if not rest:
        return "fleet"
    return "launch" if first == "backends" and rest[1] in ENGINE else first


def metrics(_: str) -> Iterator[str]:
    return reference.metrics()


def commands(_: str) -> Iterator[str]:
    yield from reference.table("command", "what it does")
    for name, command in reference.leaf_commands("gateway", cli):
        yield reference.row(f"`{name}`", command.get_short_help_str(200))


KINDS: dict[str, Callable[[str], Iterator[str]]] = {"keys": keys, "metrics": metrics, "commands": commands}


def current(page: str) -> str:
    return PLACE.sub(lambda place: place["begin"] + "\n".join((*KINDS[place["kind"]](place["what"]), "")), page)


def main() -> None:
    pages = {path: path.read_text() for path in sorted(DOCS.glob("*.md"))}
    made = {path: current(text) for path, text in pages.items()}
    stale = [path for path, text in made.items() if text != pages[path]]
    if "--check" in sys.argv:
        click.echo(" ".join(path.name for path in stale))
    else:
        for path in stale:
            path.write_text(made[path])


if __name__ == "__main__":
    main()
