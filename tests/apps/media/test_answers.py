"""The length of speech, by the head of its file."""

from __future__ import annotations

import pytest

from gateway.apps.media.answers import file_seconds, said_seconds, said_tokens, wav_seconds
from simulator.audio import silence


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
