"""The ids of sessions that clients send."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway.routing.conversation_key import HEADERS, sent_on, session_id, session_in_headers, session_in_user_id

HASH, UUID, ACCOUNT = "ab" * 32, "0b9c2d1e-3f40-4a51-8b62-7c73d84e95f6", "11111111-2222-4333-8444-555555555555"


def found(headers: dict[bytes, bytes] | None = None, told: bytes | None = None, **fields: Any) -> bytes | None:
    sent = headers or {}
    raw = {name: Raw(msgspec.json.encode(value)) for name, value in fields.items()}
    return session_id(sent, session_in_headers(sent), told, raw)


def test_each_place_counts_before_all_that_come_after_it() -> None:
    fields: dict[str, Any] = {"prompt_cache_key": "key", "conversation": {"id": "conv"}}
    headers = {name: b"id of " + name for name in HEADERS}
    assert found(headers, b"user", **fields) == b"id of x-claude-code-session-id"
    del headers[HEADERS[0]]
    assert found(headers, b"user", **fields) == b"user"
    for name in HEADERS[1:]:
        assert found(headers, **fields) == b"id of " + name
        del headers[name]
    assert found(headers, **fields) == b"key"
    assert found(headers, conversation={"id": "conv"}) == found(headers, conversation="conv") == b"conv"
    assert found(headers) is None


CLIENTS_SEND = (
    "x-claude-code-session-id session-id session_id x-openwebui-chat-id x-session-affinity x-session-id"
    " x-opencode-session x-smg-routing-key"
)


@pytest.mark.parametrize("name", CLIENTS_SEND.split())
def test_a_header_that_clients_send_is_the_session(name: str) -> None:
    assert found({name.encode(): b"s1"}, prompt_cache_key="s2") == b"s1"


def test_traceparent_is_no_session_since_many_clients_change_it_per_request() -> None:
    assert found({b"traceparent": b"00-1-2-01"}) is None


@pytest.mark.parametrize("value", ["", None, 5, ["s"], {}, {"id": ""}, {"id": 5}])
def test_a_field_without_a_text_names_no_session(value: Any) -> None:
    assert found(prompt_cache_key=value, conversation=value) is None
    assert found({b"session-id": b""}, prompt_cache_key="s") == b"s"


@pytest.mark.parametrize(
    "user_id",
    [
        json.dumps({"device_id": HASH, "account_uuid": ACCOUNT, "session_id": UUID}),
        f"user_{HASH}_account_{ACCOUNT}_session_{UUID}",
        f"user_{HASH}_account__session_{UUID}",
    ],
    ids=["json", "text", "text without an account"],
)
def test_the_user_id_of_messages_has_the_session(user_id: str) -> None:
    assert session_in_user_id({"user_id": user_id}) == UUID.encode()


@pytest.mark.parametrize(
    "metadata",
    [None, [], "user", {}, {"user_id": 5}, {"user_id": "me"}, {"user_id": "{"}, {"user_id": '{"session_id":5}'},
     {"user_id": "[" * 5000}, {"user_id": '{"a":' * 5000}, {"user_id": "me_session_"}],
)  # fmt: skip
def test_another_user_id_names_no_session(metadata: Any) -> None:
    assert session_in_user_id(metadata) is None


@given(st.text(max_size=300))
def test_any_user_id_is_read(user_id: str) -> None:
    session_in_user_id({"user_id": user_id})


@given(st.one_of(st.none(), st.binary(max_size=400)), st.binary(max_size=40))
def test_what_is_sent_on_is_a_header(session: bytes | None, key: bytes) -> None:
    sent = sent_on(session, key)
    assert 0 < len(sent) <= 256
    assert all("!" <= letter <= "~" for letter in sent)
    assert sent == sent_on(session, key)


def test_an_id_is_sent_on_as_it_is() -> None:
    assert sent_on(UUID.encode(), b"k") == UUID
    assert sent_on(None, b"k") == sent_on(b"", b"k") != sent_on(None, b"l")
    assert sent_on(b"a b", b"k") != sent_on(b"a c", b"k")
