"""How the YAML itself is read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.document import plain_value, read_document
from gateway.config.load import load_text
from gateway.config.problems import ConfigError, Problem, Report

BACKEND = 'backends: {a: {url: "http://spark1:8001"}}\n'


def read(text: str) -> tuple[dict[str, Any] | None, Report]:
    report = Report("routes.yaml")
    return read_document(text, report), report


def errors(text: str) -> list[str]:
    return [str(p) for p in read(text)[1].errors]


def test_only_true_and_false_are_booleans() -> None:
    data, _ = read("a: [true, false, on, off, yes, no, none, y, n]\n")
    assert data == {"a": [True, False, "on", "off", "yes", "no", "none", "y", "n"]}


def test_numbers_are_those_of_yaml_1_2() -> None:
    assert [plain_value(t) for t in ("1", "-7", "0o17", "0x1f", "0.5", "1e3", "~", "null")] == [
        1, -7, 15, 31, 0.5, 1000.0, None, None,
    ]  # fmt: skip
    assert [plain_value(t) for t in ("1_000", "12:30", "2026-01-01", "010", "1.2.3")] == [
        "1_000", "12:30", "2026-01-01", 10, "1.2.3",
    ]  # fmt: skip


def test_quoted_values_are_text() -> None:
    assert read("a: ['1', \"true\", '~']\n")[0] == {"a": ["1", "true", "~"]}


def test_every_key_and_member_has_its_line() -> None:
    _, report = read("a:\n  b: 1\n  c:\n    - x\n    - [y,\n       z]\n")
    assert report.line(("a", "b")) == 2
    assert report.line(("a", "c", 0)) == 4
    assert report.line(("a", "c", 1, 1)) == 6
    assert report.line(("a", "c", 9)) == 3
    assert report.line(("other",)) is None


def test_every_duplicate_key_is_an_error_that_names_both_lines() -> None:
    assert errors("a: 1\nb: {x: 1, x: 2}\na: 2\n") == [
        "routes.yaml:2  b.x: duplicate key, first on line 2 - only one can be meant",
        "routes.yaml:3  a: duplicate key, first on line 1 - only one can be meant",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "clients:\n  x: {key: ${KEY}}\n",
        "clients:\n  x: {rpm: 1, key: ${KEY}, tpm: 2}\n",
        "clients:\n  x: [${KEY}]\n",
        "clients:\n  x: {key: ${KEY:-none}}\n",
    ],
)
def test_an_unquoted_variable_inside_braces_says_to_quote_it(text: str) -> None:
    assert errors(text) == ['routes.yaml:2  ${...} inside {} or [] must be quoted - write "${NAME}"']


def test_every_unquoted_variable_inside_braces_is_found() -> None:
    found = errors('a: {k: ${A}}\nb: {k: "${B}"}\nc: {k: ${C}}\nd: ${D}\n')
    assert [line.split()[0] for line in found] == ["routes.yaml:1", "routes.yaml:3"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a:\n\tb: 1\n", "routes.yaml:2  a tab - YAML is indented with spaces"),
        ("a: 1\nb:\n\u00a0\u00a0c: 1\n  d: 2\n", "routes.yaml:3  a character that only looks like a space"),
        ("a: 1\n<<<<<<< HEAD\nb: 2\n=======\nb: 3\n>>>>>>> x\n", "routes.yaml:2  a conflict that git has left"),
        ("a: 1\nb: [\n=======\n2]\nc: x: y\n", "routes.yaml:3  a conflict that git has left"),
        ("a: b: c\n", "routes.yaml:1  a ':' where no key can be"),
        ('a: "x\n', "never closed"),
        ("a: [1, 2\n", "never closed"),
        ("a: @x\n", "routes.yaml:1  a value that starts with a character YAML reserves - quote it"),
        ("a: *x\n", "must be quoted"),
        ("a: 1\n---\nb: 2\n", "a second document"),
        ("- a\n- b\n", "must be a mapping"),
        ("just words\n", "must be a mapping"),
        ("a: !secret x\n", "tags have no meaning here"),
        ("a: !!binary aGVsbG8=\n", "routes.yaml:1  a: tags have no meaning here"),
        ("a: !!set {b}\n", "routes.yaml:1  a: tags have no meaning here"),
        ("a: !!omap [b: 1]\n", "routes.yaml:1  a: tags have no meaning here"),
        ("a: !!python/object:os.system x\n", "routes.yaml:1  a: tags have no meaning here"),
        ("a: &x [*x]\n", "endless"),
        ("? [a]\n: 1\n", "a key must be a word"),
        ("a: \x00\n", "not YAML"),
        ("[" * 3000, "nested too deeply"),
    ],
)
def test_broken_yaml_is_told_in_plain_words(text: str, says: str) -> None:
    assert says in "\n".join(errors(text))


def test_anchors_cannot_blow_a_small_file_up() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
    assert any("far too large" in line for line in errors(bomb))


def test_a_version_directive_brings_no_other_booleans() -> None:
    assert read("%YAML 1.1\n---\na: on\n")[0] == {"a": "on"}


def test_a_syntax_error_never_quotes_the_line() -> None:
    for text in (
        "key sk-secret\nb: 1\n",
        "a: {key sk-secret}\n",
        "a: *sk-secret\n",
        "a: !sk-secret x\n",
        'k: "sk-secret\n',
    ):
        with pytest.raises(ConfigError) as caught:
            load_text(BACKEND + text, environ={})
        assert "sk-secret" not in str(caught.value), text


KEYS = "backends aliases clients server defaults nodes alerts a b url use also engine timeouts health queue key params"
words = st.sampled_from([*KEYS.split(), "slots", "node", "cloud", "price", "tasks", "listen", "env_file"])
leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["http://spark1:1", "a", "none", "5s", "${X}", "${file:/nope}", "vllm", "http", "5 USD/day"])
)  # fmt: skip
trees = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words | st.text(max_size=6), inner, max_size=5)
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(words, trees, max_size=6))
def test_no_mapping_does_worse_than_a_config_error(tree: dict[str, Any]) -> None:
    _load_or_refuse(json.dumps(tree))


backends = st.dictionaries(words, st.just({"url": "http://spark1:1"}) | trees, min_size=1, max_size=3)


@settings(max_examples=150, deadline=None)
@given(backends, st.dictionaries(words, trees, max_size=4), st.dictionaries(words, trees, max_size=3))
def test_no_fleet_does_worse_than_a_config_error(
    fleet: dict[str, Any], aliases: dict[str, Any], clients: dict[str, Any]
) -> None:
    _load_or_refuse(json.dumps({"backends": fleet, "aliases": aliases, "clients": clients}))


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab:{}[]\"'$#&*!|>%@-? \n\t,~", max_size=40) | st.text(max_size=40))
def test_no_text_does_worse_than_a_config_error(text: str) -> None:
    _load_or_refuse(text)


def _load_or_refuse(text: str) -> None:
    problems: tuple[Problem, ...] | None = None
    try:
        load_text(text, "routes.yaml", {"X": "1"})
    except ConfigError as error:
        problems = error.problems
    assert problems != ()


def test_a_character_that_json_writes_as_two_escapes_is_one() -> None:
    data, report = read('{"a\\ud83d\\ude00": "\\ud800\\udc00"}')
    assert data == {"a😀": "𐀀"}
    assert report.errors == []


def test_half_a_character_is_an_error_with_its_line() -> None:
    assert errors('a: 1\nb: "x\\ud800y"\n') == [
        "routes.yaml:2  b: half a character: a \\ud8xx escape without its other half"
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a:\n  x: 1\n  slots:4\n  y: 2\n", 3),
        ("a:\n  slots:4\n  y: 2\n  z: 3\n", 2),
        ("a:\n  - x: 1\n    slots:4\n    y: 2\n", 3),
        ('a:\n  url: "http://x\n  y: 2\nb:\n  url: "http://y"\n', 2),
        ("a: {url: 'http://x}\nb: 1\nc: 2\n", 1),
        ('a: 1\nb: "open\nc: 2\n', 2),
        ('a: "over\n  two lines"\nb:\n  slots:4\n  c: 1\n', 4),
        ("a: {b: 'over\n  two', c: 1}\nd:\n  slots:4\n  c: 1\n", 4),
        ("a: don't\nb:\n  slots:4\n  c: 1\n", 3),
        ('a: 1 # say "so\nb:\n  slots:4\n  c: 1\n', 3),
        ("a: 1\nb: {c: 1\n", 2),
    ],
)
def test_a_syntax_error_names_the_line_where_it_is(text: str, line: int) -> None:
    (error,) = errors(text)
    assert error.startswith(f"routes.yaml:{line} ")


def test_a_bracket_that_is_missing_names_where_the_other_one_is() -> None:
    (error,) = errors("a: {b: 1\nc: {d: 2}\ne: 3\n")
    assert "opened on line 1" in error
