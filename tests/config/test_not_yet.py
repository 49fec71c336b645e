from __future__ import annotations

import pytest

from gateway.config.keys import all_keys, not_yet, warn_not_yet
from gateway.config.load import load_text
from gateway.config.problems import Report

MARKED: dict[str, tuple[str, ...]] = {
    "server.shared": (),
    "alerts": (),
    "backends.*.health.canary": (),
    "aliases.*.on_busy": ("next",),
    "aliases.*.thinking": (),
}


def warned(data: dict[str, object]) -> list[str]:
    report = Report("routes.yaml")
    warn_not_yet(data, report, MARKED)
    return [f"{w.path}: {w.message}" for w in report.warnings]


def test_only_what_the_file_says_is_warned_about() -> None:
    assert warned({"server": {"listen": "x"}, "aliases": {"w": {"use": ["a"]}}}) == []
    assert warned({"server": {"shared": "redis://x"}}) == ["server.shared: no effect yet"]


def test_what_switches_a_feature_off_is_no_news() -> None:
    assert warned({"server": {"shared": "none"}, "backends": {"a": {"health": {"canary": "none"}}}}) == []


def test_only_the_listed_values_count() -> None:
    assert warned({"aliases": {"w": {"on_busy": "wait"}, "v": {"on_busy": "next"}}}) == [
        "aliases.v.on_busy: 'next' has no effect yet"
    ]


def test_everything_below_an_entry_is_one_warning() -> None:
    assert warned({"alerts": {"telegram": {"token": "x"}, "webhook": "y"}}) == ["alerts: no effect yet"]


@pytest.mark.parametrize("key", MARKED)
def test_the_keys_of_these_tests_exist(key: str) -> None:
    assert key in all_keys()


def test_what_has_no_effect_yet_is_read_off_the_definitions() -> None:
    assert "aliases.*.while_starting" in set(not_yet())
    assert "backends.*.url" not in not_yet()


def test_the_warning_has_the_line_and_the_file_loads() -> None:
    text = 'backends:\n  a: {url: "http://x:1"}\naliases:\n  judges: {use: [a], while_starting: wait}\n'
    found = [str(w) for w in load_text(text, environ={}).warnings if w.path.startswith("aliases")]
    assert found == ["routes.yaml:4  aliases.judges.while_starting: no effect yet"]
