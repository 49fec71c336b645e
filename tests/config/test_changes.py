"""The short diff of two versions of routes.yaml."""

from __future__ import annotations

import pytest

from gateway.config.changes import changes, needs_restart
from gateway.config.load import load_text
from gateway.config.snapshot import Snapshot

FILE = """
nodes: {n1: {memory: 100GiB}, n2: {}}
backends:
  a: {url: "http://10.0.0.1:8001", node: n1, slots: 4, context: 4096, timeouts: {idle: 60s}, api_key: k1, model: m}
  b: {url: "http://10.0.0.2:8001", budget: 5 USD/day}
aliases:
  w: {use: [a, b], params: {temperature: 0.2}, also: [gpt-4o]}
clients:
  one: {key: first-key, aliases: [w], rpm: 100}
alerts: {webhook: "http://10.0.0.3/hook-1"}
"""


def snapshot(text: str = FILE) -> Snapshot:
    return load_text(text, environ={}).snapshot


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("slots: 4", "slots: 2", "~ backends.a.slots: 4 -> 2"),
        ("idle: 60s", "idle: none", "~ backends.a.timeouts.idle: 60 -> none"),
        ("context: 4096, ", "", "~ backends.a.context: 4096 -> none"),
        ("node: n1", "node: [n1, n2]", "~ backends.a.node: [n1] -> [n1, n2]"),
        ("10.0.0.1", "10.0.0.9", "~ backends.a.url"),
        ("api_key: k1", "api_key: k2", "~ backends.a.api_key"),
        ("model: m", "model: other", "~ backends.a.model"),
        ("5 USD/day", "6 USD/day", "~ backends.b.budget.usd: 5 -> 6"),
        (", budget: 5 USD/day", "", "~ backends.b.budget"),
        ("use: [a, b]", "use: [[b, a]]", "~ aliases.w.use: [[a], [b]] -> [[b, a]]"),
        ("use: [a, b]", "use: [a, b], on_busy: next", "~ aliases.w.on_busy: wait -> next"),
        ("temperature: 0.2", "temperature: 0.3", "~ aliases.w.params"),
        ("gpt-4o", "gpt-5", "~ aliases.w.also"),
        ("first-key", "second-key", "~ clients.one.key"),
        ("rpm: 100", "rpm: 50", "~ clients.one.rpm: 100 -> 50"),
        ("hook-1", "hook-2", "~ alerts.webhook"),
        ("memory: 100GiB", "", "~ nodes.n1.memory: 107374182400 -> none"),
    ],
)
def test_a_changed_key_is_told_and_its_value_where_it_is_no_secret(old: str, new: str, line: str) -> None:
    assert changes(snapshot(), snapshot(FILE.replace(old, new))) == [line]


def test_what_comes_and_goes_is_told_by_name() -> None:
    more = FILE.replace("  b: {", '  c: {url: "http://10.0.0.3:1"}\n  b: {').replace("  w: ", "  v: [c]\n  w: ")
    assert changes(snapshot(), snapshot(more)) == ["+ backends.c", "+ aliases.v"]
    assert changes(snapshot(more), snapshot()) == ["- backends.c", "- aliases.v"]


def test_what_only_looks_different_is_no_change() -> None:
    assert changes(snapshot(), snapshot(FILE)) == []
    written = FILE.replace('"http://10.0.0.2:8001"', '"http://10.0.0.2:8001/", slots: 8')  # what was assumed
    assert changes(snapshot(), snapshot(written)) == []


def test_names_that_are_offered_without_an_alias_are_not_told_as_one() -> None:
    alone = "backends: {a: {url: 'http://10.0.0.1:1'}}"
    both = "backends: {a: {url: 'http://10.0.0.1:1'}, b: {url: 'http://10.0.0.2:1'}}"
    assert changes(snapshot(alone), snapshot(both)) == ["+ backends.b"]


def test_keys_of_server_wait_for_a_restart() -> None:
    before, after = (snapshot(f"server: {{{keys}}}\n{FILE}").server for keys in ("max_body: 1MiB", "listen: ':5000'"))
    assert needs_restart(before, after) == ["server.listen", "server.max_body"]
    assert needs_restart(before, before) == []
