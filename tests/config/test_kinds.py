"""Values of one kind: paths, host names, and who may read the metrics."""

from __future__ import annotations

import pytest

from gateway.config.load import load_text
from tests.config.test_clients_credentials import BACKEND, problems, with_key


@pytest.mark.parametrize("path", ["/heälth", "/a b", "health", "/ "])
def test_a_path_that_no_request_can_ask_for_is_a_mistake(path: str) -> None:
    assert "is not a path" in problems(f'backends: {{a: {{{BACKEND}, health: {{path: "{path}x"}}}}}}')


def server(text: str) -> str:
    return f"server: {{{text}}}\nbackends: {{a: {{{BACKEND}}}}}"


@pytest.mark.parametrize(
    "name",
    ["http://gw.lan", "gw.lan:4000", "*.lan", "gw lan", "gw..lan", "-gw", "a/b", "[::1]", "gẃ.lan", "user@gw", "."],
)
def test_server_hosts_are_names_alone(name: str) -> None:
    said = problems(server(f'hosts: ["{name}"]'))
    assert "server.hosts" in said
    assert "is not the name of a host" in said


def test_server_hosts_and_metrics_are_read() -> None:
    read = load_text(server("hosts: [SparkGW.example.com., gw, gw], metrics: key"), environ={})
    assert read.snapshot.server.hosts == ("sparkgw.example.com", "gw")
    assert (read.snapshot.server.metrics, read.snapshot.metrics_are_open) == ("key", False)
    assert any("only this machine may read /metrics" in str(warning) for warning in read.warnings)
    plain = load_text(server(""), environ={}).snapshot
    assert (plain.server.hosts, plain.server.metrics, plain.metrics_are_open) == (None, None, True)
    assert load_text(server("hosts: []"), environ={}).snapshot.server.hosts == ()
    assert not load_text(with_key("the-key"), environ={}).snapshot.metrics_are_open


@pytest.mark.parametrize("value", ["true", "closed", "keys", "none", "1", "[open]"])
def test_metrics_take_two_words(value: str) -> None:
    assert "server.metrics" in problems(server(f"metrics: {value}"))
