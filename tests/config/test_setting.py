"""A key of routes.yaml is defined once; everything else is read off that definition."""

# ruff: noqa: RUF009  (`setting` gives a dataclass field, as `dataclasses.field` does)

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from pydantic import ValidationError

from gateway.config import kinds as k
from gateway.config.document import plain_value
from gateway.config.load import load_text
from gateway.config.schema import built, definitions, json_schema, model_of
from gateway.config.setting import in_file, setting, settings_of, walk
from gateway.config.snapshot import RoutesFile, Snapshot

ROOT = Path(__file__).parents[2]
SOURCES = {path.name: ast.parse(path.read_text()) for path in (ROOT / "gateway/config").glob("*.py")}
ROWS = dict(re.findall(r"^\| `([\w.*]+)` \| [^|]* \| `?([^|`]*)`? \|", (ROOT / "docs/routes.md").read_text(), re.M))
SMALLEST = """
backends: {a: {url: "http://spark1:8001"}}
nodes: {n: {}}
aliases: {w: {use: [a]}}
clients: {c: {key: k, tasks: {alias: w}}}
traces: {endpoint: "http://spark1:4318"}
"""
FIELDS = {found.field for found in definitions().values() if found.field is not None and found.section is None}


@dataclass(frozen=True, slots=True)
class Oven:
    """A made-up section.

    Nothing in the gateway knows it."""

    heat: k.Count = setting(180, "Degrees.")
    rest: k.DurationOrNone = setting(90.0, "After baking; none = at once.")
    racks: tuple[str, ...] = setting((), "Which are used.", key="rack", kind=k.OneOrMany)
    fan: Literal["on", "off"] = setting("off", "Moves the air.")
    modes: tuple[Literal["bake", "grill"], ...] = setting(("bake",), "What it is for.")
    recipe: ClassVar[k.Text] = in_file("bread.txt", "The file to bake by.")
    hot: bool = False


SECTIONS = list(dict.fromkeys([RoutesFile, *(found.section for _, found in walk(RoutesFile) if found.section)]))


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_has_help_and_the_schema_shows_it(section: type) -> None:
    schema = json_schema()
    shown = schema if section is RoutesFile else schema["$defs"][model_of(section).__name__]
    assert list(shown["properties"]) == list(settings_of(section))
    for key, found in settings_of(section).items():
        assert re.fullmatch(r"\S.*\.", found.help)
        node = shown["properties"][key]
        node = node["anyOf"][0] if section is RoutesFile and "anyOf" in node else node
        told = node if "description" in node else schema["$defs"][node["$ref"].rpartition("/")[2]]
        assert told["description"] == found.help


@pytest.mark.parametrize("path", [path for path, found in definitions().items() if found.kind and found.field])
def test_the_reference_shows_the_default_that_the_snapshot_has(path: str) -> None:
    found = definitions()[path]
    kind, shown = found.kind, ROWS.get(path, "")
    assert kind is not None
    for value in values(load_text(SMALLEST, "routes.yaml", {}).snapshot, path):
        if shown:
            assert kind.read(plain_value(shown)) == value
        elif value != found.default:
            assert found.about.decided or found.field == "key_sha256" or path in GIVEN


# What `SMALLEST` says, what is assumed by the kind of the backend, and what travels under another name.
GIVEN = {"backends.*.url", "backends.*.slots", "aliases.*.use", "clients.*.tasks.alias", "traces.endpoint"}


def values(snapshot: Snapshot, path: str) -> Iterator[Any]:
    """What the snapshot has for a key, in every backend, alias and client; nothing for keys that it does not hold."""
    words = path.split(".")
    if words[0] == "defaults":
        words[:1] = ["backends", "*"]
    section: Any = RoutesFile
    holders: list[Any] = [snapshot]
    for word in words:
        if word == "*":
            holders = [entry for holder in holders for entry in holder.values()]
            continue
        found = settings_of(section)[word]
        section = found.section
        holders = [getattr(holder, found.field or word, None) for holder in holders if holder is not None]
    yield from holders


def test_a_default_that_help_speaks_of_is_the_default() -> None:
    said = {path: re.search(r"default \[(\w+)\]", found.help) for path, found in definitions().items()}
    assert {path: (match[1],) for path, match in said.items() if match} == {"aliases.*.cloud_when": ("down",)}
    assert definitions()["aliases.*.cloud_when"].default == ("down",)


def test_the_models_hold_no_defaults() -> None:
    for section in SECTIONS:
        for name, field in model_of(section).model_fields.items():
            empty = field.get_default(call_default_factory=True, validated_data={})
            assert empty is None or empty == {} or empty.model_fields_set == set(), name


def test_a_new_key_is_read_checked_and_described_by_its_definition_alone() -> None:
    model = model_of(Oven)
    assert built(Oven, model()) == Oven(180, 90.0, (), "off", ("bake",))
    section = model.model_validate({"heat": 200, "rest": "none", "rack": "top", "modes": ["grill", "bake", "grill"]})
    assert built(Oven, section, hot=True) == Oven(200, None, ("top",), "off", ("grill", "bake"), hot=True)
    with pytest.raises(ValidationError) as caught:
        model.model_validate({"heat": "hot", "rest": "5", "fan": "fast", "modes": ["bake", "fry"], "hot": True})
    assert {error["loc"] for error in caught.value.errors()} == {("heat",), ("rest",), ("fan",), ("modes", 1), ("hot",)}
    schema = model.model_json_schema()
    assert schema["description"] == "A made-up section."
    assert list(schema["properties"]) == ["heat", "rest", "rack", "fan", "modes", "recipe"]
    assert model.model_validate({"recipe": "cake.txt"}).recipe == "cake.txt"
    assert [key for key, found in settings_of(Oven).items() if found.private] == ["recipe"]


def test_a_new_key_is_shown_on_the_page_by_its_definition_alone() -> None:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs/tools/reference.py")
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    shown = {key: (page.words(found.hint), found.shown_default) for key, found in settings_of(Oven).items()}
    assert shown == {
        "heat": ("count", "180"),
        "rest": ("duration or none", "90s"),
        "rack": ("name or list of names", ""),
        "fan": ("`on`, `off`", "off"),
        "modes": ("list of `bake`, `grill`", ""),
        "recipe": ("text", "bread.txt"),
    }


def test_no_class_gives_a_key_a_second_default() -> None:
    """A class with a field of a key's name has it from a definition."""
    found = []
    for name, tree in SOURCES.items():
        for holder in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            for field in (node for node in holder.body if isinstance(node, ast.AnnAssign) and node.value is not None):
                assert isinstance(field.target, ast.Name)
                assert field.value is not None
                call = ast.unparse(field.value).partition("(")[0]
                if field.target.id in FIELDS and call not in ("setting", "in_file", "field"):
                    found.append(f"{name}: {holder.name}.{field.target.id}")
    assert found == []


def test_no_value_is_carried_into_the_snapshot_by_hand() -> None:
    """Neither `Server(log=section.log)` nor `Timeouts(connect=3.0)`: `built` does it for every key."""
    makers = {"built", "replace", *(section.__name__ for section in SECTIONS)}
    found = []
    for name, tree in SOURCES.items():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            for keyword in call.keywords:
                copied = isinstance(keyword.value, ast.Attribute) and keyword.value.attr == keyword.arg
                constant = isinstance(keyword.value, ast.Constant)
                if ast.unparse(call.func) in makers and keyword.arg in FIELDS and (copied or constant):
                    found.append(f"{name}:{call.lineno} {keyword.arg}")
    assert found == []


@pytest.mark.parametrize("text", ["./state", ".env", "/health"])
def test_a_text_that_is_a_default_stands_in_one_place(text: str) -> None:
    constants = (node for tree in SOURCES.values() for node in ast.walk(tree) if isinstance(node, ast.Constant))
    assert text in {found.default for found in definitions().values() if isinstance(found.default, str)}
    assert [node.value for node in constants if node.value == text] == [text]
