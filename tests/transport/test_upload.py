"""The file of a form: where it is kept, and that it can be sent again and again by either client."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.admission.memory import Memory, Share
from gateway.inspection.audio_answer import file_seconds, said_seconds, said_tokens, wav_seconds
from gateway.transport import upload as module
from gateway.transport.aio import AioClient
from gateway.transport.h1 import H1Client
from gateway.transport.upload import KEPT_MOST, DiskFull, Upload
from simulator.audio import form_fields, silence
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
    monkeypatch.setattr(module, "FREE_LEAST", 10**18)
    with pytest.raises(DiskFull):
        await uploaded(tmp_path, FILE, Share(Memory(None)))


async def test_the_same_bytes_have_the_same_digest(tmp_path: Path) -> None:
    share = Share(Memory(None))
    digests = [(await uploaded(tmp_path, file, share)).digest for file in (FILE, FILE, FILE[1:])]
    assert digests[0] == digests[1] != digests[2]


def test_the_length_of_speech_is_read_where_it_can_be() -> None:
    wav = silence(2.0)
    assert wav_seconds(wav[:100], len(wav)) == 2.0
    endless = wav[:40] + b"\xff\xff\xff\xff" + wav[44:]
    assert wav_seconds(endless[:100], len(endless)) == 2.0
    assert [wav_seconds(one, 9) for one in (b"", b"RIFF", wav[:30], b"RIFF____WAVE" + bytes(40))] == [0.0] * 4
    assert said_seconds({"duration": "3.5"}) == 3.5
    assert said_seconds({"usage": {"type": "duration", "seconds": 4}, "duration": 9}) == 4
    odd: list[object] = [-1, 1e300, "x", None, []]
    assert [said_seconds({"duration": one}) for one in odd] == [0.0] * 5
    assert said_tokens({"usage": {"input_tokens": 7, "output_tokens": 2}}) == {
        "prompt_tokens": 7,
        "completion_tokens": 2,
    }
    assert said_tokens({"usage": {"seconds": 3}}) is said_tokens([]) is None


MP3_FRAME = b"\xff\xf3\x64\xc4"  # MPEG 2, layer III, 48 kbit/s, 24 kHz, mono: 144 bytes, 24 ms
CD_FRAME = b"\xff\xfb\x90\x00"  # MPEG 1, layer III, 128 kbit/s, 44.1 kHz, stereo


@pytest.mark.parametrize(
    ("beginning", "size", "seconds"),
    [
        (MP3_FRAME + bytes(140), 12_000, 2.0),
        (b"ID3\x04\x00\x00\x00\x00\x01\x00" + bytes(128) + MP3_FRAME, 12_138, 2.0),
        (MP3_FRAME + bytes(9) + b"Info\x00\x00\x00\x0f\x00\x00\x03\xe8", 99, 24.0),  # 1,000 frames
        (CD_FRAME + bytes(32) + b"Xing\x00\x00\x00\x01\x00\x00\x03\xe8", 99, 1000 * 1152 / 44100),
        (CD_FRAME + bytes(32) + b"Xing\x00\x00\x00\x02\x00\x00\x03\xe8", 16_000, 1.0),  # it tells no number
    ],
)
def test_the_length_of_an_mp3_is_read_from_its_first_frame(beginning: bytes, size: int, seconds: float) -> None:
    assert file_seconds(beginning, size) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        MP3_FRAME[:3],
        b"ID3\x04",
        b"ID3\x04\x00\x00\x7f\x7f\x7f\x7f" + MP3_FRAME,  # a tag that is longer than what is kept
        b"\xff\xf1\x50\x80" + bytes(100),  # AAC
        b"\xff\xf3\x04\xc4",  # a free bit rate
        b"\xff\xf3\xf4\xc4",
        b"\xff\xf3\x6c\xc4",  # no sampling rate
        b"\xff\xeb\x64\xc4",  # no version
        b"OggS" + bytes(60),
        b"\x1a\x45\xdf\xa3" + bytes(60),  # WebM
        CD_FRAME + bytes(32) + b"Xing\x00\x00\x00\x01\xff\xff\xff\xff",  # three years
    ],
)
def test_what_is_no_mp3_or_cannot_be_has_no_length(beginning: bytes) -> None:
    assert file_seconds(beginning, 100_000) == 0.0
