"""Keys in routes.yaml that would let anybody in, or that no header can carry, are mistakes."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.access import given_key, identify
from gateway.config.load import load, load_text
from gateway.config.problems import ConfigError
from gateway.errors import GatewayError

EMPTY = sha256(b"").hexdigest()
BACKEND = 'url: "http://192.168.1.11:8001"'


def problems(text: str, **environ: str) -> str:
    """What is wrong with it; "" = nothing."""
    try:
        load_text(text, environ=environ)
    except ConfigError as error:
        return str(error)
    return ""


def with_key(key: str) -> str:
    return f"backends: {{a: {{{BACKEND}}}}}\nclients:\n  one: {{key: {key}}}\n"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (f'"sha256:{EMPTY}"', "the SHA-256 of nothing"),
        (f'"sha256:{EMPTY.upper()}"', "the SHA-256 of nothing"),
        (f'"SHA256:{EMPTY}"', "the SHA-256 of nothing"),
        (f'"sha256:{sha256(chr(10).encode()).hexdigest()}"', "the SHA-256 of nothing"),
        (f'"sha256:{sha256(b" ").hexdigest()}"', "the SHA-256 of nothing"),
        ('"${HASHED}"', "the SHA-256 of nothing"),
        ('"sha256:"', "64 hex digits"),
        (f'"sha256:{EMPTY[:-1]}"', "64 hex digits"),
        (f'"sha256:{EMPTY}0"', "64 hex digits"),
        (f'"sha256: {EMPTY}"', "64 hex digits"),
        (f'"sha256:{EMPTY[:-1]}g"', "64 hex digits"),
        (f'"sha256:{EMPTY[:-1]}٣"', "64 hex digits"),
        ('""', "is empty"),
        ('"   "', "is empty"),
        ('"\\t"', "is empty"),
        ('"\\u00a0"', "is empty"),
        ('"${X:-}"', "is empty"),
        ('"${BLANK:-}"', "is empty"),
        ('"${X:- }"', "is empty"),
        ('"${EMPTY}"', "variable 'EMPTY' is empty"),
        ("", "nothing follows"),
        ("null", "nothing follows"),
        ("none", "'none' is what programs without a key send"),
        ('"${X:-None}"', "'none' is what programs without a key send"),
        ('"schlüssel"', "outside ASCII"),
        ('"two words"', "holds a space"),
        ('"one\\ntwo"', "control character"),
    ],
)
def test_a_key_that_anybody_has_or_nobody_can_send_is_a_mistake(key: str, words: str) -> None:
    environ = {"EMPTY": "", "BLANK": "  ", "HASHED": f"sha256:{EMPTY}"}
    assert words in problems(with_key(key), **environ)


def test_no_two_clients_have_one_key_however_it_is_written() -> None:
    hashed = sha256(b"the-key").hexdigest()
    for one, other in (
        ("the-key", "the-key"),
        ("the-key", f"sha256:{hashed}"),
        (f"sha256:{hashed.upper()}", "the-key"),
    ):
        text = f'backends: {{a: {{{BACKEND}}}}}\nclients: {{one: {{key: "{one}"}}, two: {{key: "{other}"}}}}'
        assert "the same key as client 'one'" in problems(text)
        assert "the-key" not in problems(text)


def test_a_hash_in_upper_case_is_the_same_hash() -> None:
    text = with_key(f'"sha256:{sha256(b"the-key").hexdigest().upper()}"')
    snapshot = load_text(text, environ={}).snapshot
    assert identify(snapshot, {b"x-api-key": b"the-key"}, "").name == "one"


@given(
    st.sampled_from([b"", b" ", b"\t", b"  \t "]), st.sampled_from([b"Bearer", b"bearer ", b"Bearer    ", b"BEARER \t"])
)
def test_an_empty_key_is_no_key(blank: bytes, scheme: bytes) -> None:
    snapshot = load_text(with_key("the-key"), environ={}).snapshot
    for headers in ({b"x-api-key": blank}, {b"authorization": scheme}, {b"authorization": scheme, b"x-api-key": blank}):
        assert given_key(headers) is None
        with pytest.raises(GatewayError, match="No API key"):
            identify(snapshot, headers, "")


# -- what backends are sent -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ('"sk-ключ"', "outside ASCII - no header can carry it"),
        ('"sk-\u2028x"', "outside ASCII - no header can carry it"),
        ('"${KEY}"', "outside ASCII - no header can carry it"),
        ('"sk-1\\r\\nx-admin: 1"', "control character"),
        ('"sk-1\\u007f"', "control character"),
        ('"${file:key}"', "control character"),
        ('"${file:typographic}"', "outside ASCII - no header can carry it"),
    ],
)
def test_an_api_key_that_no_header_can_carry_is_a_mistake_and_is_not_shown(
    tmp_path: Path, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "sk-“quoted”")
    (tmp_path / "key").write_text("sk-secret\nsecond line\n")
    (tmp_path / "typographic").write_text("sk–secret\n")
    file = tmp_path / "routes.yaml"
    file.write_text(f"backends: {{a: {{{BACKEND}, api_key: {value}}}}}\n")
    with pytest.raises(ConfigError) as error:
        load(file)
    assert words in str(error.value)
    assert "sk" not in str(error.value).replace(str(tmp_path), "")


@pytest.mark.parametrize("value", ["sk-1", "none", '"${X:-}"', '"a/b+c=="', '"${file:key}"'])
def test_usual_api_keys_are_taken(tmp_path: Path, value: str) -> None:
    (tmp_path / "key").write_text("sk-secret\n")
    file = tmp_path / "routes.yaml"
    file.write_text(f"backends: {{a: {{{BACKEND}, api_key: {value}}}}}\n")
    assert load(file, {}).snapshot.backends["a"]


@given(st.text(min_size=1, max_size=20))
def test_every_api_key_that_is_taken_fits_into_a_header(key: str) -> None:
    text = f'backends: {{a: {{{BACKEND}, api_key: "${{KEY}}"}}}}'
    try:
        secret = load_text(text, environ={"KEY": key}).snapshot.backends["a"].api_key
    except (ConfigError, ValueError):
        return
    assert secret is None or (secret.reveal().isascii() and secret.reveal().isprintable())


@pytest.mark.parametrize("password", ["hush-hush", "hush@hush", "hush/hush"], ids=["plain", "at", "slash"])
@pytest.mark.parametrize(
    "text",
    [
        f"backends: {{a: {{{BACKEND}}}}}\nserver: {{proxies: 'URL'}}",
        f"backends: {{a: {{{BACKEND}}}}}\nserver: {{hosts: 'URL'}}",
        f"backends: {{a: {{{BACKEND}}}}}\nserver: {{hosts: ['URL']}}",
        f"backends: {{a: {{{BACKEND}}}}}\nserver: {{env_file: 'URL'}}",
        f"backends: {{a: {{{BACKEND}}}}}\naliases: {{b: 'URL'}}",
        f"backends: {{a: {{{BACKEND}}}}}\naliases: {{b: ['URL']}}",
        f"backends: {{a: {{{BACKEND}, health: {{path: 'URL'}}}}}}",
        f"backends: {{a: {{{BACKEND}, node: 'URL'}}}}\nnodes: {{n: {{}}}}",
        f"backends: {{a: {{{BACKEND}, 'URL': 1}}}}",
        f"backends: {{'URL': {{{BACKEND}}}}}",
        "backends: {a: {url: '[URL]'}}",
    ],
    ids=lambda text: text.replace("\n", " ")[-40:],
)
def test_credentials_of_a_url_are_shown_nowhere_wherever_it_stands(text: str, password: str) -> None:
    found = problems(text.replace("URL", f"http://someone:{password}@proxy:3128"))
    assert found
    assert "hush" not in found
    assert "someone" not in found


def test_a_url_without_credentials_is_shown_whole() -> None:
    for path in ("http://h:8000/p@th", "https://h/@cf/model", "http://[::1]:8/x@y"):
        assert path in problems(f"backends: {{a: {{{BACKEND}}}}}\nserver: {{proxies: '{path}'}}")
