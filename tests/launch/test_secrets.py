"""Secrets in a command are in no message about it."""

from __future__ import annotations

import pytest

from tests.launch.test_arguments import read


@pytest.mark.parametrize(
    "text",
    [
        "x --api-kye SECRET",
        "x --api-kye=SECRET",
        "x --api_kye SECRET SECRET2",
        "x --hf-tokn SECRET",
        "x --hf-t0ken SECRET",
        "x --my-password SECRET",
        "x --api-key.a SECRET",
        "x --ap SECRET",
        "x --max-num-seqs sk-live-123456789",
        "x --tool-call-parsr hf_abcdefGHIJ1234",
    ],
)
def test_secrets_are_in_no_message(text: str) -> None:
    shown = "".join(f"{m.message}{m.fix}" for m in read(text).mistakes)
    assert not {"SECRET", "sk-live", "hf_abc"} & {word for word in ("SECRET", "sk-live", "hf_abc") if word in shown}
    assert read(text).mistakes


def test_what_is_no_secret_stays_in_the_words_to_write() -> None:
    assert read("x --long-prefill-token-threshol 4096").mistakes[0].fix == "--long-prefill-token-threshold 4096"
    assert read("x --api-kye ${KEY}").mistakes[0].fix == "--api-key ${KEY}"
