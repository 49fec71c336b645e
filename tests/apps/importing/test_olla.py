"""Olla's config as a routes.yaml."""

from __future__ import annotations

import pytest

from tests.apps.importing.support import Imported, imported_file


@pytest.fixture(scope="module")
def olla() -> Imported:
    return imported_file("olla", "olla.yaml")


def test_endpoints_are_backends(olla: Imported) -> None:
    ollama, main, remote = (olla.snapshot.backends[name] for name in ("local-ollama", "main-gpu", "remote"))
    assert (ollama.engine, ollama.health.every) == ("ollama", 5.0)
    assert (main.engine, main.url) == ("vllm", "http://192.168.1.11:8000")
    assert (remote.engine, remote.cloud) == ("openai", True)


def test_the_server_is_taken_over(olla: Imported) -> None:
    server = olla.snapshot.server
    assert (server.host, server.port, server.max_body, server.shutdown) == ("127.0.0.1", 40114, 50 * 2**20, 10.0)


def test_tokens_are_not_copied(olla: Imported) -> None:
    assert "sk-written-out-token" not in olla.text
    assert 'api_key: "${MAIN_GPU_API_KEY}"' in olla.text
    assert 'api_key: "${file:/run/secrets/v}"' in olla.text  # which need not be on this machine
    assert olla.note("discovery.static.endpoints[1].auth.token").kind == "to_do"


@pytest.mark.parametrize(
    ("path", "kind", "words"),
    [
        ("server.rate_limits", "left_out", "limits belong to clients"),
        ("discovery.static.endpoints[0]", "to_do", "name of its model"),
        ("discovery.static.endpoints[0].priority", "to_do", "order of steps"),
        ("discovery.static.endpoints[3].auth", "left_out", "'basic' is not spoken"),
        ("discovery.static.endpoints[3].url", "to_do", "taken for a cloud"),
        ("proxy", "left_out", "silence is bounded"),
    ],
)
def test_what_is_not_the_same_is_told(olla: Imported, path: str, kind: str, words: str) -> None:
    note = olla.note(path)
    assert note.kind == kind
    assert words in note.problem.message
