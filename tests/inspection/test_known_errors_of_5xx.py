"""What llama-server's errors mean, as a real one sent them: its 5xx are often the client's fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.inspection.error_replies import judge
from gateway.inspection.known_errors import read_server_fault

ERRORS = Path(__file__).parent.parent / "data" / "errors" / "llama-server"

# name -> (kind, what it lacks)
MEANINGS: dict[str, tuple[str, str | None]] = {
    "picture": ("incapable", "images"),
    "audio": ("incapable", "audio"),
    "tools_without_jinja": ("incapable", "tools"),
    "choice_without_jinja": ("incapable", "tools"),
    "no_embeddings": ("unserved", "endpoint:chat"),
    "pool_full": ("cooldown", None),
    "loading": ("failed", None),
    "too_long": ("too_long", None),
}  # everything else is the client's own mistake


def captured(name: str) -> tuple[int, dict[str, str], bytes]:
    kept = json.loads((ERRORS / f"{name}.json").read_text())
    return kept["status"], {"content-type": kept["content_type"]}, kept["body"].encode()


@pytest.mark.parametrize("name", sorted(path.stem for path in ERRORS.glob("*.json")))
def test_every_captured_error_has_its_meaning(name: str) -> None:
    status, headers, body = captured(name)
    verdict = judge(status, headers, body, "chat")
    assert (verdict.kind, verdict.lack) == MEANINGS.get(name, ("client", None))
    assert not verdict.unverified
    if verdict.kind == "client":
        assert verdict.status == 400
        assert verdict.message == json.loads(body)["error"]["message"]


def test_every_named_meaning_has_its_capture() -> None:
    assert set(MEANINGS) <= {path.stem for path in ERRORS.glob("*.json")}


def test_words_that_the_client_sent_teach_nothing() -> None:
    for name in ("picture", "tools_without_jinja", "no_embeddings"):
        assert judge(*captured(name), "chat", echoed=lambda *_: True).unverified


MESSAGES = [json.loads(captured(path.stem)[2])["error"]["message"] for path in ERRORS.glob("*.json")]


@given(st.sampled_from(MESSAGES), st.text(min_size=1, max_size=20))
def test_a_message_that_only_contains_a_known_one_is_a_failure(message: str, before: str) -> None:
    if not message.startswith(before):
        assert read_server_fault(before + message) is None


@given(st.text(max_size=200))
def test_any_other_message_is_a_failure(message: str) -> None:
    assert read_server_fault(message) is None
