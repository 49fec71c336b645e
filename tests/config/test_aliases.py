"""Mistakes of aliases: their steps, names and kinds."""

from __future__ import annotations

from gateway.config.load import load_text
from tests.config.test_validate import FINE, mistakes, oddities


def test_fallbacks_are_the_steps_of_an_alias() -> None:
    assert mistakes(FINE + "aliases:\n  w:\n    use: [a]\n    fallbacks: [b]\n") == [
        "routes.yaml:7  aliases.w.fallbacks: unknown key 'fallbacks' - did you mean 'use'?"
    ]


def test_a_list_under_an_alias_has_its_own_lines() -> None:
    assert mistakes(FINE + "aliases:\n  w:\n    - a\n    - [b,\n       c]\n") == [
        "routes.yaml:8  aliases.w.use: unknown backend 'c' - there are a, b"
    ]


def test_two_aliases_cannot_claim_one_name() -> None:
    text = (
        FINE
        + "aliases:\n  w: {use: [a], also: [x, 'claude-*']}\n"
        + "  v:\n    use: [b]\n    also:\n      - x\n      - claude-*\n"
    )
    assert mistakes(text) == [
        "routes.yaml:9  aliases.v.also: 'x' is already a further name of alias 'w' - a name leads to one alias",
        "routes.yaml:10  aliases.v.also: 'claude-*' is already a further name of alias 'w' - a name leads to one alias",
    ]


def test_audio_and_chat_do_not_mix_in_an_alias() -> None:
    audio = '  ears: {engine: http, url: "http://spark1:1", serves: [transcriptions]}\n'
    audio += '  voice: {engine: http, url: "http://spark1:2", serves: [speech]}\n'
    assert "audio backend in a chat alias" in mistakes(FINE + audio + "aliases: {w: [a, ears]}\n")[0]
    assert "serve different things" in mistakes(FINE + audio + "aliases: {w: [ears, voice]}\n")[0]


def test_use_and_ask_all_exclude_each_other() -> None:
    assert "exclude each other" in mistakes(FINE + "aliases: {w: {use: [a], ask_all: [b]}}\n")[0]
    assert "asks nobody" in mistakes(FINE + "aliases: {w: {ask_all: []}}\n")[0]
    assert "unknown backend 'c'" in mistakes(FINE + "aliases: {w: {ask_all: [a, c]}}\n")[0]


# Warnings


def test_a_backend_that_comes_twice_is_odd_and_tried_once() -> None:
    text = FINE + "aliases:\n  w:\n    use:\n      - a\n      - [b, a]\n"
    assert oddities(text) == [
        "routes.yaml:8  aliases.w.use: backend 'a' comes twice - it is tried once, where it comes first"
    ]
    assert load_text(text, environ={}).snapshot.aliases["w"].steps == (("a",), ("b",))
