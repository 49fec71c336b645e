"""The text says exactly what the draft says."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.apps.importing.draft import Draft, DraftEntry
from gateway.apps.importing.output import render
from gateway.config.document import read_document
from gateway.config.problems import Report

TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1, max_size=12)
TRICKY = st.sampled_from(
    ["1", "1e5", ".5e3", "0o17", "true", "null", "~", "a: b", "#x", "- a", "${X}", "*a", "&a", "!t", "a #b", "'", '"',
     "%", "@", "`", "{", "[", ",", "?", "a\\b", "http://h:1/v1", "http://h/ #x", " a", "a ", "-", ":"]
)  # fmt: skip
WORDS = st.one_of(TEXTS, TRICKY).filter(lambda word: bool(word.strip()))
VALUES = st.recursive(
    st.one_of(WORDS, st.integers(-(10**12), 10**12), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=4)),
    max_leaves=8,
)


@settings(max_examples=50)
@given(st.dictionaries(WORDS, st.dictionaries(WORDS, VALUES, min_size=1, max_size=6), min_size=1, max_size=3), TEXTS)
def test_the_text_says_exactly_what_the_draft_says(entries: dict[str, dict[str, Any]], comment: str) -> None:
    draft = Draft(
        backends={name: DraftEntry(keys, [comment], dict.fromkeys(keys, comment)) for name, keys in entries.items()}
    )
    report = Report("routes.yaml")
    assert read_document(render(draft), report) == draft.data()
    assert not report.errors


def test_an_alias_that_only_names_its_steps_is_written_short() -> None:
    aliases = {"a": DraftEntry({"use": ["x", ["y", "z"]]}), "b": DraftEntry({"use": ["x"], "also": ["c-*"]})}
    assert render(Draft(aliases=aliases)).endswith(
        'aliases:\n  a: [x, [y, z]]\n  b:\n    use: [x]\n    also: ["c-*"]\n'
    )
