"""The model's name in a reply, and id and created: exactly these bytes change, wherever else their text may stand."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway.inspection import rewrite
from gateway.transport.sse import Chunk, data_of, read_chunk

WANTED: dict[str, object] = {"model": "alias", "id": "chatcmpl-1", "created": 1}
_fields = msgspec.json.Decoder(dict[str, Raw]).decode

# Texts that look like what is rewritten.
tricky = st.text() | st.sampled_from(
    ['"model":"served"', 'x","model":"served","y":"', '"id":"up-1"', '"created":2', "\\", '\\"model\\":\\"served\\"']
)


def event(value: object, *, compact: bool = True, ascii_only: bool = False) -> bytes:
    text = json.dumps(value, separators=(",", ":") if compact else None, ensure_ascii=ascii_only)
    return b"data: " + text.encode() + b"\n\n"


def decoded(event: bytes) -> Any:
    return json.loads(data_of(event) or b"")


def learned(first: bytes) -> rewrite.Rewriter:
    """Of an attempt that goes on with what another has begun, and whose first event this is."""
    chunk = read_chunk(data_of(first) or b"")
    assert isinstance(chunk, Chunk)
    identity = rewrite.ReplyIdentity()
    identity.fix(WANTED["id"], WANTED["created"])
    rewriter = rewrite.Rewriter(identity, str(WANTED["model"]))
    rewriter.note(first, chunk)
    rewriter.learn()
    return rewriter


def chunk(content: str, **more: object) -> dict[str, Any]:
    return {"id": "up-1", "object": "chat.completion.chunk", "created": 2, "model": "served", **more} | {
        "choices": [{"index": 0, "delta": {"content": content}, "finish_reason": None}]
    }


@pytest.mark.parametrize("compact", [True, False])
def test_model_id_and_created_are_replaced_and_nothing_else(compact: bool) -> None:
    first = event(chunk(""), compact=compact)
    changed = learned(first).apply(first)
    assert changed == first.replace(b'"up-1"', b'"chatcmpl-1"').replace(b'"served"', b'"alias"').replace(
        b'"created": 2' if not compact else b'"created":2', b'"created": 1' if not compact else b'"created":1'
    )


def test_what_is_right_already_is_not_touched() -> None:
    first = event({**chunk("x"), **WANTED})
    assert learned(first).apply(first) is first


def test_a_field_that_upstream_does_not_send_is_not_made_up() -> None:
    first = event({"choices": [], "model": "served"})
    assert learned(first).apply(first) == first.replace(b'"served"', b'"alias"')
    assert decoded(learned(first).apply(first)) == {"choices": [], "model": "alias"}


@given(tricky, tricky, st.booleans(), st.booleans())
def test_content_is_never_touched(first_text: str, text: str, compact: bool, ascii_only: bool) -> None:
    first = event(chunk(first_text), compact=compact, ascii_only=ascii_only)
    rewriter = learned(first)
    for said in (first_text, text):
        later = event(chunk(said), compact=compact, ascii_only=ascii_only)
        assert decoded(rewriter.apply(later)) == {**chunk(said), **WANTED}


@given(tricky)
def test_content_before_the_model_is_never_touched(text: str) -> None:
    """Some servers write the choices first."""
    first = event({"choices": [{"delta": {"content": text}}], "model": "served", "id": "up-1"})
    want = {"choices": [{"delta": {"content": text}}], "model": "alias", "id": "chatcmpl-1"}
    assert decoded(learned(first).apply(first)) == want


def test_a_nested_field_of_the_same_name_and_value_is_not_the_models_name() -> None:
    value = {"model": "served", "choices": [{"delta": {"tool_calls": [{"id": "up-1"}], "model": "served"}}]}
    first = event(value)
    want = {"model": "alias", "choices": [{"delta": {"tool_calls": [{"id": "up-1"}], "model": "served"}}]}
    assert decoded(learned(first).apply(first)) == want


def test_a_tool_calls_id_before_the_chunks_is_not_the_chunks() -> None:
    value = {"choices": [{"delta": {"tool_calls": [{"id": "call-1"}]}}], "id": "up-1"}
    first = event(value)
    assert decoded(learned(first).apply(first)) == {**value, "id": "chatcmpl-1"}


def test_an_event_written_otherwise_than_the_first_is_parsed() -> None:
    rewriter = learned(event(chunk("")))
    other = event(chunk("x"), compact=False)
    assert decoded(rewriter.apply(other)) == {**chunk("x"), **WANTED}


@pytest.mark.parametrize("odd", [b": a comment\n\n", b"data: not json\n\n", b"data: [1]\n\n", b"data: [DONE]\n\n"])
def test_what_is_no_chunk_stays_as_it_is(odd: bytes) -> None:
    assert learned(event(chunk(""))).apply(odd) == odd


def test_names_that_need_escapes_are_found() -> None:
    first = b'data: {"model":"a\\u002fb \\"q\\"","id":"\\u00fc","created":2,"choices":[]}\n\n'
    want = {"model": "alias", "id": "chatcmpl-1", "created": 1, "choices": []}
    assert decoded(learned(first).apply(first)) == want


# -- an answer in one piece -------------------------------------------------------------------------------------------


def whole(body: bytes, model: str = "alias") -> bytes:
    return rewrite.whole(body, json.loads(body).get("model"), model)


def test_of_a_whole_answer_only_the_models_bytes_change() -> None:
    body = b'{"id":"x", "model":"served","choices":[ {"n":1.50} ],"usage":null}'
    assert whole(body) == body.replace(b'"served"', b'"alias"')
    assert whole(body, "served") is body


@given(tricky, tricky, st.booleans())
def test_the_text_of_a_whole_answer_is_never_touched(text: str, model: str, compact: bool) -> None:
    value = {"choices": [{"message": {"content": text}}], "model": model, "more": text}
    body = json.dumps(value, separators=(",", ":") if compact else None).encode()
    assert json.loads(whole(body)) == {**value, "model": "alias"}


def test_a_nested_model_of_the_same_name_stays() -> None:
    body = b'{"choices":[{"model":"served"}],"model":"served"}'
    assert json.loads(whole(body)) == {"choices": [{"model": "served"}], "model": "alias"}


def test_a_nested_model_of_the_same_name_stays_where_the_top_level_is_spaced() -> None:
    body = b'{"choices":[{"model":"served"}],"model": "served"}'
    assert json.loads(whole(body)) == {"choices": [{"model": "served"}], "model": "alias"}


def test_an_answer_without_a_model_is_left_so() -> None:
    assert whole(b'{"choices":[]}') == b'{"choices":[]}'
