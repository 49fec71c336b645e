"""Forms with a file: fields in any order, bodies without a length or over the limit, and what is no form."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.apps.media.forms import (
    BOUNDARY,
    LARGE,
    TYPE,
    WAV,
    House,
    form,
    heard,
    house,
    part,
    usual,
)
from tests.raw_client import raw_client
from tests.scripted import Turn, chunked, read_reply


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[House]:
    async with house() as built:
        yield built


@pytest.mark.parametrize("first", ["model", "file"])
@pytest.mark.parametrize("model", [b"pair", b""], ids=["named", "empty"])
async def test_the_model_may_come_before_or_after_the_file_and_be_empty(pair: House, first: str, model: bytes) -> None:
    parts = [part("model", model), part("file", WAV, "speech.wav")]
    reply = await pair.transcribe(form(*(parts if first == "model" else parts[::-1])))
    assert (reply.status, reply.headers["x-gateway-alias"]) == (200, "pair")


async def test_a_chunked_upload_without_a_length_is_taken(pair: House) -> None:
    body = usual(LARGE)
    pieces = [body[at : at + 50_000] for at in range(0, len(body), 50_000)]
    async with raw_client(pair.gateway.url) as client:
        head = f"POST /audio/transcriptions HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n{TYPE}\r\n"
        await client.send(head.encode() + b"transfer-encoding: chunked\r\n\r\n")
        for piece in pieces:
            await client.send(chunked(piece))
        await client.send(b"0\r\n\r\n")
        assert read_reply(await client.rest()).json["text"] == f"{len(LARGE)} bytes"


async def test_a_body_over_max_body_is_refused_before_it_has_come(pair: House) -> None:
    async with raw_client(pair.gateway.url) as client:
        head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: gateway\r\n{TYPE}\r\ncontent-length: 9000000\r\n\r\n"
        await client.send(head.encode())
        assert (await client.answer())[0] == 413
    async with raw_client(pair.gateway.url) as client:
        head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: gateway\r\n{TYPE}\r\n"
        await client.send(head.encode() + b"transfer-encoding: chunked\r\n\r\n")
        await client.send(chunked(part("file", b"", "a.wav")[:-2]))
        for _ in range(45):
            await client.send(chunked(bytes(100_000)))
        assert (await client.answer())[0] == 413
    assert pair.a.turns == []


async def test_a_large_file_takes_little_of_the_memory_while_it_is_sent(pair: House) -> None:
    used: list[int] = []

    async def looks(turn: Turn) -> None:
        used.append(pair.memory())
        await heard(turn)

    pair.a.play(looks)
    assert (await pair.transcribe(usual(LARGE))).status == 200
    assert used[0] < 100_000 < len(LARGE)
    await pair.gateway.until(lambda: pair.memory() == 0)


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (b"{}", "content-type: application/json", "multipart/form-data"),
        (form(part("model", b"pair")), TYPE, "no `file`"),
        (usual()[:-10], TYPE, "ends before its last boundary"),
        (b"nonsense", TYPE, "not valid"),
        (usual() + usual(), TYPE, None),
        (form(part("file", WAV, "a.wav"), part("file", WAV, "b.wav")), TYPE, "more than one file"),
        (form(*(part(f"x{n}", b"y" * 60_000) for n in range(3)), part("file", WAV, "a")), TYPE, "fields have more"),
        (usual(), f"content-type: multipart/form-data; boundary=other{BOUNDARY}", "not valid"),
        (usual(), f"content-type: multipart/form-data; boundary={'b' * 71}", "more than 70 characters"),
        (usual(), "content-type: multipart/form-data; boundary*0*=x''a; boundary*x=b", "with a boundary"),
        (
            form(b"--%b\r\ncontent-disposition: form-data; name*0*=u''a; name*=b\r\n\r\nv\r\n" % BOUNDARY.encode()),
            TYPE,
            "head of a part cannot be read",
        ),
        (
            form(b"--%b\r\ncontent-disposition: form-data; name*=utf-8''model\r\n\r\nv\r\n" % BOUNDARY.encode()),
            TYPE,
            "head of a part cannot be read",
        ),
        (form(b"--%b\r\ncontent-disposition: form-data\r\n\r\nv\r\n" % BOUNDARY.encode()), TYPE, "has no name"),
        (usual().replace(b'"speech.wav"', b"\"speech.wav\"; filename*=nope''%ff"), TYPE, None),
    ],
    ids=[
        "json",
        "no file",
        "cut short",
        "no form",
        "more behind it",
        "two files",
        "long fields",
        "other boundary",
        "long boundary",
        "boundary in parts",
        "name in parts",
        "charset of a field",
        "no name",
        "charset of a name",
    ],
)
async def test_what_is_no_form_with_a_file_is_refused_with_the_reason(
    pair: House, body: bytes, kind: str, said: str | None
) -> None:
    reply = await pair.transcribe(body, kind=kind)
    if said is None:
        assert reply.status == 200
    else:
        assert (reply.status, reply.json["error"]["code"]) == (400, "invalid_request_body")
        assert said in reply.json["error"]["message"]
        assert pair.a.turns == []
    assert pair.memory() == 0
