"""Writes the tables that are made from the code into the pages that have a place for them: the keys of routes.yaml, the
metrics, the families of models, the fields of requests. A place is what stands between
`<!-- keys: server -->` and the next `<!-- end -->`.

`make reference` runs it. With `--check` it names the pages that are not current: tests/program/test_reference.py asks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import reference

from gateway.domain.fields import TABLES
from gateway.launch.families import ENFORCES, FAMILIES

DOCS = Path(__file__).parents[1]
PLACE = re.compile(r"(?P<begin><!-- (?P<kind>\w+): (?P<what>\w+) -->\n).*?(?=<!-- end -->)", re.S)
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


def families(_: str) -> Iterator[str]:
    yield from reference.table(
        "family", "`--tool-call-parser` (other builds)", "`--reasoning-parser`", "thinks", "switch"
    )
    for family in FAMILIES:
        parsers = " / ".join(f"`{name}`" for name in (family.tool_parser, *family.older_tool_parsers) if name)
        reasoning = f"`{family.reasoning_parser}`" if family.reasoning_parser else "none"
        thinks = family.thinking if family.thinking != "optional" else "on" if family.thinks_by_default else "off"
        switch = f"`{family.switch}`" if family.switch else ""
        yield reference.row(family.name, parsers or "none", reasoning, thinks, switch)


FORCED = {
    "envelope": "A call and its name; its arguments' schema only with `strict: true`",
    "schema": "The schema too",
    "nothing": "Nothing",
}


def forced(_: str) -> Iterator[str]:
    yield from reference.table("forced", "parsers")
    for what, words in FORCED.items():
        yield reference.row(words, ", ".join(f"`{name}`" for name, does in sorted(ENFORCES.items()) if does == what))


FIELDS = {
    "`/v1/chat/completions`": TABLES["chat"],
    "`/v1/messages`": TABLES["messages"],
    "`/v1/messages`: blocks": TABLES["messages_blocks"],
    "`/v1/responses`": TABLES["responses"],
    "`/v1/responses`: items": TABLES["responses_items"],
    "`/v1/responses`: tools": TABLES["responses_tools"],
}


def asked(_: str) -> Iterator[str]:
    yield from reference.table("where", "demands", "forms", "preferences")
    for where, table in FIELDS.items():
        kinds = ("demand", "form", "preference")
        yield reference.row(
            where, *(", ".join(f"`{name}`" for name in sorted(table) if table[name] == kind) for kind in kinds)
        )


KINDS: dict[str, Callable[[str], Iterator[str]]] = {
    "keys": keys,
    "metrics": metrics,
    "families": families,
    "forced": forced,
    "fields": asked,
}


def current(page: str) -> str:
    return PLACE.sub(_made, page)


def _made(place: re.Match[str]) -> str:
    return place["begin"] + "\n".join((*KINDS[place["kind"]](place["what"]), ""))


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
