"""What `gateway check` says of backends that requests start."""

from __future__ import annotations

import pytest

from gateway.config.load import load_text

START, STOP = "start: 'run it', ", "stop: 'stop it', "
NODES = "nodes: {one: {memory: 100GiB, ssh: ops@one}, other: {memory: 100GiB}}\n"


def warned(keys: str, more: str = "") -> list[str]:
    text = f"{NODES}backends:\n  a: {{url: 'http://10.0.0.1:1', {keys}}}\n{more}"
    return [f"{w.path}: {w.message}" for w in load_text(text, environ={}).warnings if w.path.startswith("backends")]


def test_one_that_can_be_started_and_stopped_is_fine() -> None:
    assert warned(f"run: on_request, {START}{STOP} stop_after: 30m, min_run: 1m") == []
    launch = "launch: {command: 'vllm serve m --port 1'}"
    assert warned(f"run: on_request, model: m, node: one, {launch}") == []


@pytest.mark.parametrize("key", ["stop_after: 5m", "min_run: 1m"])
@pytest.mark.parametrize("run", ["always", "on_demand"])
def test_its_keys_have_no_effect_elsewhere(key: str, run: str) -> None:
    name = key.partition(":")[0]
    assert warned(f"run: {run}, {key}") == [f"backends.a.{name}: has no effect with run: {run}"]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (STOP, "no request can start it: it has no `start` command"),
        (START, "it is started and never stopped: it has no `stop` command"),
        (f"{START}{STOP}health: {{every: none}}", "it is not probed, so nothing shows whether it has started"),
        (f"{START}{STOP}node: one", "what it holds is not known: it is started only where nothing else runs"),
        (
            "node: one, launch: {resident: 4GiB}",
            "no request can start it: it has no `start` command",
        ),
        (
            "model: m, node: other, launch: {command: 'vllm serve m --port 1'}",
            "no request can start it: it has no `start` command",
        ),
    ],
)
def test_what_is_odd_is_said(keys: str, said: str) -> None:
    assert f"backends.a.run: {said}" in warned(f"run: on_request, {keys}")


def test_a_cloud_is_never_started() -> None:
    assert "backends.a.run: a cloud backend is never started or stopped" in warned("cloud: true, run: on_request")


def test_it_need_not_be_in_a_mode() -> None:
    more = "  b: {url: 'http://10.0.0.1:2'}\nmodes: {daily: [b]}\n"
    assert warned(f"run: on_request, {START}{STOP}", more) == []


def test_the_keys_are_in_the_snapshot() -> None:
    text = (
        "backends: {a: {url: 'http://10.0.0.1:1', run: on_request, stop_after: 30m, min_run: 90s}}\n"
        "aliases: {x: {use: [a], while_starting: wait}}\nclients: {c: {key: secret-key, may_start: true}}\n"
    )
    snapshot = load_text(text, environ={}).snapshot
    a, x, c = snapshot.backends["a"], snapshot.aliases["x"], snapshot.clients["c"]
    assert (a.stop_after, a.min_run, x.while_starting, c.may_start) == (1800.0, 90.0, "wait", True)
