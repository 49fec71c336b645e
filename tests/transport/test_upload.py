"""The file of a form: where it is kept, and that it can be sent again and again by either client."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway import shortage
from gateway.admission.memory import Memory, Share
from gateway.shortage import OwnShortage
from gateway.transport.aio import AioClient
from gateway.transport.h1 import H1Client
from gateway.transport.upload import KEPT_MOST, Upload
from simulator.audio import form_fields
from tests.scripted import json_answer, scripted

FILE = bytes(range(256)) * 8000  # 2 MB


async def uploaded(folder: Path, file: bytes, share: Share) -> Upload:
    upload = Upload(folder, share)
    for at in range(0, len(file), 100_000):
        await upload.write(file[at : at + 100_000])
    await upload.finish("a.wav", "audio/wav")
    return upload


@pytest.mark.parametrize("client_class", [H1Client, AioClient])
@pytest.mark.parametrize("file", [b"small", FILE], ids=["in memory", "on the disk"])
async def test_a_form_is_sent_as_a_whole_more_than_once(
    tmp_path: Path, client_class: type[H1Client | AioClient], file: bytes
) -> None:
    upload = await uploaded(tmp_path, file, Share(Memory(None)))
    assert os.listdir(tmp_path) == []  # the file has no name
    async with scripted(lambda turn: turn.send(json_answer({}))) as backend:
        host, port = backend.url.removeprefix("http://").split(":")
        client = client_class(("http", host, int(port)), 3.0)
        for value in ("first", "second and longer"):
            form = upload.form([("model", value)], "audio")
            response = await client.send("POST", "/x", [("content-type", upload.form_type)], form)
            await response.read_all(100)
            response.release()
        await client.close()
    found = [form_fields(turn.headers["content-type"], turn.body) for turn in backend.turns]
    assert found == [{"model": b"first", "audio": file}, {"model": b"second and longer", "audio": file}]
    assert ["transfer-encoding" in turn.headers for turn in backend.turns] == [False, False]
    upload.close()


async def test_only_what_is_in_memory_is_counted(tmp_path: Path) -> None:
    memory = Memory(None)
    share = Share(memory)
    upload = Upload(tmp_path, share)
    for at in range(0, len(FILE), 50_000):
        await upload.write(FILE[at : at + 50_000])
        assert memory.used <= KEPT_MOST + 50_000
    await upload.finish("a", "")
    assert (memory.used, upload.size) == (0, len(FILE))
    upload.close()


async def test_a_disk_that_would_be_filled_gets_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortage, "FREE_LEAST", 10**18)
    with pytest.raises(OwnShortage):
        await uploaded(tmp_path, FILE, Share(Memory(None)))


async def test_the_same_bytes_have_the_same_digest(tmp_path: Path) -> None:
    share = Share(Memory(None))
    digests = [(await uploaded(tmp_path, file, share)).digest for file in (FILE, FILE, FILE[1:])]
    assert digests[0] == digests[1] != digests[2]
