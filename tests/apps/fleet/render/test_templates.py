"""Templates of the rendered files: an operator's in the place of the shipped ones, and what may not get into a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.apps.fleet.render.files import Rendering
from gateway.apps.fleet.render.rendering import render
from gateway.apps.fleet.render.templates import SHIPPED, BadTemplate, Templates
from tests.apps.fleet.render.blocks import fleet, fleets, one_backend, text_of

SNAPSHOT = one_backend("vllm serve m --port 1 --x=';id'", image="img", env={"A": "a b", "KEY": "s3cret-value"})


def rendered(folder: Path, **templates: str) -> Rendering:
    for name, text in templates.items():
        (folder / f"{name}.j2").write_text(text)
    return render(SNAPSHOT, templates=Templates(folder))


def problem(folder: Path, **templates: str) -> str:
    with pytest.raises(BadTemplate) as raised:
        rendered(folder, **templates)
    return str(raised.value)


def test_an_operators_template_replaces_the_one_of_its_name_alone(tmp_path: Path) -> None:
    found = rendered(tmp_path, **{"unit.service": "Description={{ backend | unit }} for {{ node | line }}\n"})
    assert text_of(found, ".service") == "Description=it for n0\n"
    assert text_of(found, "launch.sh") == text_of(render(SNAPSHOT), "launch.sh")


def test_an_operators_template_changes_one_block_of_the_shipped_one(tmp_path: Path) -> None:
    text = '{% extends "default/launch.sh.j2" %}{% block prepare %}mount /models\n{{ super() }}{% endblock %}'
    found = text_of(rendered(tmp_path, **{"launch.sh": text}), "launch.sh")
    assert found == text_of(render(SNAPSHOT), "launch.sh").replace("prepare() {", "mount /models\nprepare() {")


def test_a_macro_is_made_of_values_that_were_quoted(tmp_path: Path) -> None:
    text = "{% macro shown(x) %}<{{ x | quote }}>{% endmacro %}{{ shown('a b') }}{% set y %}{{ 1 }}{% endset %}{{ y }}"
    assert text_of(rendered(tmp_path, **{"unit.service": text}), ".service") == "<'a b'>1"


def test_an_empty_folder_and_the_shipped_templates_copied_change_nothing(tmp_path: Path) -> None:
    for name, snapshot in fleets().items():
        assert render(snapshot, templates=Templates(tmp_path)) == render(snapshot), name
    for path in SHIPPED.iterdir():
        (tmp_path / path.name).write_text(path.read_text())
    assert render(fleet(), templates=Templates(tmp_path)) == render(fleet())


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("\n{{ backend }}", 2, "a value passes none of the filters that quote it (word, quote, plain, "),
        ("\n\n{{ 'x' | upper }}", 3, "a value passes none of the filters"),
        ("{{ (backend | quote) ~ 'x' }}", 1, "a value passes none of the filters"),
        ("{{ ['a b'] | join(' ') }}", 1, "a value passes none of the filters"),
        ("{{ (backend | quote).replace('i', ';') }}", 1, "a value passes none of the filters"),
        ("{{ 'a b' | plain }}", 1, "the filter plain is for names and paths that need no quotes"),
        ("{{ nonsense }}", 1, "'nonsense' is undefined"),
        ("\n{{ nonsense | quote }}", 2, "'nonsense' is undefined"),
        ("\n\n{% if image %}", 3, "Unexpected end of template"),
        ("{{ backend | nonsense }}", 1, "No filter named 'nonsense'"),
        ("\n{{ ''.__class__.__mro__ | quote }}", 2, "access to attribute '__class__' of 'str' object is unsafe"),
        ("\n{% include '/etc/passwd' %}", 2, "/etc/passwd"),
        ("{% include '../outside.j2' %}", 1, "../outside.j2"),
        ("\n{{ seconds // 0 }}", 2, "cannot be used here (ZeroDivisionError)"),
    ],
)
def test_a_mistake_in_a_template_is_said_with_file_and_line(tmp_path: Path, text: str, line: int, reason: str) -> None:
    found = problem(tmp_path, **{"unit.service": text})
    assert found.startswith(f"{tmp_path}/unit.service.j2:{line}: ")
    assert reason in found


def test_a_mistake_says_nothing_of_the_launch_block(tmp_path: Path) -> None:
    found = problem(tmp_path, **{"warm-up.sh": "{{ model.index('x') }}", "launch.sh": "{{ run[0] | int('s') / 'x' }}"})
    assert "s3cret" not in found


def test_a_file_of_no_template_is_said_with_the_names_there_are(tmp_path: Path) -> None:
    (tmp_path / "launch.sh").write_text("")
    with pytest.raises(BadTemplate, match=r"launch\.sh: no template has this name; there are: compose\.yaml\.j2, "):
        Templates(tmp_path)


def test_a_template_that_is_no_text_is_said(tmp_path: Path) -> None:
    (tmp_path / "unit.service.j2").write_bytes(b"\xff\xfe")
    with pytest.raises(BadTemplate, match=r"unit\.service\.j2: .*UnicodeDecodeError"):
        render(SNAPSHOT, templates=Templates(tmp_path))
