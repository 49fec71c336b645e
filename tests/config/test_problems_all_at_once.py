"""Every mistake has its own line, all of them are told, and none is told that only follows from another."""

from __future__ import annotations

import pytest

from gateway.config.changes import openings
from gateway.config.problems import Path
from gateway.config.snapshot import Client
from tests.config.test_validate import FINE, mistakes


def places(text: str) -> list[tuple[int, str, str]]:
    """(line, path, the rest) of each error."""
    found = []
    for line in mistakes(text):
        where, _, what = line.partition("  ")
        path, _, message = what.partition(": ")
        found.append((int(where.rpartition(":")[2]), path, message))
    return found


# -- lines ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ['"${UNSET}"', "5", '[5, "${UNSET}"]'])
def test_members_behind_a_wrong_one_keep_their_lines(before: str) -> None:
    text = FINE + f"aliases:\n  w:\n    use:\n      - {before}\n      - a\n      - typo\n      - [b,\n         other]\n"
    found = places(text)
    assert {line for line, _, _ in found[:-2]} == {7}
    assert [(line, message.partition(" - ")[0]) for line, _, message in found[-2:]] == [
        (9, "unknown backend 'typo'"),
        (11, "unknown backend 'other'"),
    ]


def test_the_short_form_of_an_alias_has_these_lines_too() -> None:
    text = FINE + 'aliases:\n  w:\n    - "${UNSET}"\n    - ["${UNSET}",\n       typo]\n    - 5\n    - typo2\n'
    assert [line for line, _, _ in places(text)] == [6, 7, 8, 9, 10]


def test_every_unknown_backend_of_a_mode_has_its_line() -> None:
    text = (
        FINE
        + 'modes:\n  d:\n    - a\n    - typo\n    - "${UNSET}"\n    - 8\n  e:\n    backends:\n      - a\n      - oh\n'
    )
    found = places(text + "    profiles: {oh: x}\n")
    assert [(line, path) for line, path, _ in found] == [
        (7, "modes.d"), (8, "modes.d"), (9, "modes.d"), (13, "modes.e.backends"),
    ]  # fmt: skip
    assert found[0][2] == "unknown backend 'typo' - there are a, b"


def test_a_number_in_a_mode_that_names_a_backend_is_to_be_quoted() -> None:
    text = 'backends:\n  8: {url: "http://x:1"}\nmodes: {d: [8]}\naliases: {w: [8]}\n'
    assert mistakes(text) == [
        "routes.yaml:3  modes.d: '8' is no name of a backend - write \"8\"",
        "routes.yaml:4  aliases.w.use: '8' is not text - write \"8\"",
    ]


def test_every_wrong_member_of_a_list_or_mapping_has_its_line() -> None:
    text = """\
server:
  hosts:
    - http://a
    - b
    - c:1
  proxies:
    - 10.0.0.1/8
    - 10.0.0.0/8
    - x
backends:
  q:
    url: http://x:1
    launch:
      command: vllm serve m
      env:
        A: [1]
        FINE: 2
        b-c: 2
        D: true
      volumes:
        - 5
        - /a:/a
        - {a: b}
    profiles:
      one: 1
      two: {}
      three: x
"""
    assert [(line, path) for line, path, _ in places(text)] == [
        (3, "server.hosts"), (5, "server.hosts"), (7, "server.proxies"), (9, "server.proxies"),
        (16, "backends.q.launch.env.A"), (18, "backends.q.launch.env.b-c"), (19, "backends.q.launch.env.D"),
        (21, "backends.q.launch.volumes"), (23, "backends.q.launch.volumes"),
        (25, "backends.q.profiles.one"), (27, "backends.q.profiles.three"),
    ]  # fmt: skip
    assert all(" - " in message for _, _, message in places(text))


def test_an_opening_edit_has_the_line_where_the_protection_is_missing() -> None:
    before = {"c": Client("c", "1", local_only=True), "d": Client("d", "2", local_only=True)}
    after = {"c": Client("c", "1"), "d": Client("d", "2")}
    lines: dict[Path, int] = {
        ("clients",): 3,
        ("clients", "c"): 4,
        ("clients", "d"): 5,
        ("clients", "d", "local_only"): 7,
    }
    assert [p.line for p in openings(before, after, (), "routes.yaml", lines)] == [4, 7]
    assert [p.line for p in openings(before, {}, (), "routes.yaml", lines)] == [3]
    assert [p.line for p in openings(before, {}, (), "routes.yaml")] == [None]


# -- what follows from another mistake --------------------------------------------------------------------------------

NODE = "nodes: {n: {address: 10.0.0.1}}\n"


@pytest.mark.parametrize(
    "text",
    [
        NODE + "backends: {a: {node: n, launch: {comand: vllm serve m}}}",
        NODE + "backends: {a: {node: n, launch: {command: [vllm, serve]}}}",
        NODE + "backends: {a: {node: n, launch: {image: x}}}",
        NODE + "backends: {a: {node: n, launch: 5}}",
        NODE + 'backends: {a: {node: "${UNSET}", launch: {command: vllm serve m}}}',
        NODE + "backends: {a: {nod: n, launch: {command: vllm serve m}}}",
        NODE + "backends: {a: {node: n, engine: ollama, model: m, launch: {command: vllm serve m}}}",
        "nodes: {n: {adress: 10.0.0.1}}\nbackends: {a: {node: n, launch: {command: vllm serve m}}}",
        "nodes: {n: {address: '10.0.0.1:8000'}}\nbackends: {a: {node: n, launch: {command: vllm serve m}}}",
        "backends: {a: 5}",
        "backends: {a: {url: 'http://x:1', price: {inptu: 1, output: 2}}}",
        "backends: {a: {engine: litellm, mdel: x/y}}",
        "backends: {a: {engine: http, url: 'http://x:1', servs: [speech]}}",
        FINE + 'aliases: {w: ["${UNSET}"]}',
        FINE + 'aliases: {w: {use: ["${UNSET}"]}}',
        FINE + "aliases: {w: {use: [5]}}",
        FINE + "aliases: {w: {usee: [a]}}",
        FINE + 'aliases: {w: ["${UNSET}"]}\nclients: {c: {key: k, aliases: [w], tasks: {alias: w}}}',
        FINE + "clients: {c: {kee: k}}",
        FINE + "clients: {c: {key: k, tasks: {alais: a}}}",
        FINE + "alerts: {telegram: {tokn: x, chat: '1'}}",
        FINE + "traces: {endpont: 'http://x:1'}",
        FINE + "modes: {d: {backends: [typo], profiles: {typo: x}}}",
    ],
)
def test_one_mistake_is_told_once(text: str) -> None:
    assert len(mistakes(text + "\n")) == 1, mistakes(text + "\n")
