"""Pictures, documents and other blocks of a Messages body as parts of a chat's message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.apps.dialects.anthropic.test_turns import answered, said
from tests.apps.dialects.parts import (
    PICTURE,
    SEEN,
    assistant,
    call,
    chat,
    refused,
    result,
    text,
    turns,
    user,
)

# -- pictures and documents -------------------------------------------------------------------------------------------


def test_a_picture_comes_along_or_by_its_url() -> None:
    by_url = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    assert said(text("look"), PICTURE, by_url) == [
        text("look"),
        SEEN,
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
    ]


def test_a_picture_alone_is_a_list_of_one() -> None:
    assert said(PICTURE) == [SEEN]


def test_a_document_is_its_text_behind_its_title_and_what_is_said_of_it() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "words"}
    assert said({"type": "document", "source": source}) == "words"
    told = {"type": "document", "source": source, "title": "A paper", "context": "from the archive"}
    assert said(told) == [text("A paper\nfrom the archive"), text("words")]


def test_a_document_of_blocks_is_these() -> None:
    source = {"type": "content", "content": [text("one"), PICTURE]}
    assert said({"type": "document", "source": source}) == [text("one"), SEEN]
    assert said({"type": "document", "source": {"type": "content", "content": "one"}}) == "one"


def test_what_a_search_found_is_text() -> None:
    found = {"type": "search_result", "title": "A page", "source": "page.html", "content": [text("words")]}
    assert said(found) == [text("A page\npage.html"), text("words")]
    assert said({"type": "search_result", "content": [text("words")]}) == "words"


@pytest.mark.parametrize(
    "source",
    [
        {"type": "url", "url": "https://example.org/a.pdf"},
        {"type": "file", "file_id": "file_1"},
    ],
)
def test_a_document_that_had_to_be_fetched_is_refused_wherever_it_is(source: dict[str, Any]) -> None:
    pdf = {"type": "document", "source": source}
    refused("messages.0.content.1.source", user(text("read"), pdf), code="input_unsupported")
    inside = "messages.1.content.0.content.0.source"
    refused(inside, assistant(call("a")), user(result("a", [pdf])), code="input_unsupported")


def test_a_picture_that_anthropic_keeps_is_refused() -> None:
    kept = {"type": "image", "source": {"type": "file", "file_id": "file_1"}}
    refused("messages.0.content.0.source", user(kept), code="input_unsupported")


@pytest.mark.parametrize(
    "block",
    [
        {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"url": "https://example.org"}]},
        {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "weather"}},
        {"type": "of_the_future", "words": ["a", 1, None, {"b": "ü"}]},
    ],
)
def test_a_block_of_any_other_kind_is_told_as_it_is(block: dict[str, Any]) -> None:
    assert json.loads(said(block)) == block
    assert json.loads(turns(assistant(block))[0]["content"]) == block
    assert json.loads(answered([block])[0]["content"]) == block


def test_other_media_is_refused() -> None:
    clip = {"type": "video", "source": {"type": "base64", "data": "AAAA"}}
    assert "'video'" in refused("messages.0.content.0", user(clip), code="input_unsupported")


# -- PDFs -------------------------------------------------------------------------------------------------------------

PDF: dict[str, Any] = {
    "type": "document",
    "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
}
FILE = {"type": "file", "file": {"filename": "document.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}}


def test_a_pdf_is_a_file_of_the_chat_and_its_place_is_told() -> None:
    became = chat(user(text("read"), PDF))
    assert became["messages"] == [{"role": "user", "content": [text("read"), FILE]}]
    assert became["x_gateway_file_at"] == "messages.0.content.1"
    assert "x_gateway_file_at" not in chat(user("read"))


def test_its_title_is_its_name() -> None:
    [said] = turns(user({**PDF, "title": "report.pdf"}))
    head, part = said["content"]
    assert (head, part["file"]["filename"]) == (text("report.pdf"), "report.pdf")


def test_a_pdf_of_a_result_is_in_the_message_behind_it() -> None:
    result = {"type": "tool_result", "tool_use_id": "x", "content": [PDF]}
    became = chat(assistant(call("x")), user(result))
    _, told, shown = became["messages"]
    assert "file in the next message" in told["content"]
    assert shown == {"role": "user", "content": [FILE]}
    assert became["x_gateway_file_at"] == "messages.1.content.0.content.0"


def test_a_document_of_another_kind_is_refused_by_its_media_type() -> None:
    word = {"type": "document", "source": {**PDF["source"], "media_type": "application/msword"}}
    said = refused("messages.0.content.0.source.media_type", user(word), code="input_unsupported")
    assert "'application/msword'" in said
