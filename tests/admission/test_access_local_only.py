"""`x-gateway-local-only`: what a request says of the LAN, and that nothing but an unmistakable no lets it out."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.access import asks_local_only
from gateway.proxy.header_map import header_map
from tests.routing.test_plan_cloud import ASK, KEYED, House, house
from tests.scripted import raw_post

NAME = "x-gateway-local-only"
REFUSED = (429, 503)
YES = [
    "1", "true", "True", "TRUE", "yes", "Yes", "on", "ON", "y", "t", "01", "001", "+1", "1.0", "2", "-1", "00", "0x0",
    "0.0", "1, 1", "0, 1", "1, 0", "1,0", "0,", ",", "1;q=0", "0;q=1", "", '"0"', "'0'", "no thanks", "nope", "not",
    "offline", "falsey", "false!", "none", "null", "nil", "n", "f", "disabled", "local", "ja", "\xa00", "é", "0 0",
    "no no", "false true",
]  # fmt: skip
NO = ["0", "false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF", "0, 0", "no,off", "false ,FALSE"]


async def down(h: House) -> None:
    """Nothing local answers: whoever may goes to the cloud."""
    await h.sims["a"].kill()
    await h.sims["b"].kill()


async def test_every_value_but_a_plain_no_keeps_the_prompt_inside() -> None:
    async with house() as h:
        await down(h)
        for value in YES:
            for line in (f"{NAME}: {value}", f"X-Gateway-Local-Only:{value}", f"{NAME}: \t{value}  "):
                reply = await h.ask(line)
                assert reply.status in REFUSED, (value, reply.headers)
                assert not h.left(), value


async def test_a_plain_no_is_as_good_as_no_header() -> None:
    async with house() as h:
        await down(h)
        for value in NO:
            reply = await h.ask(f"{NAME}: {value}")
            assert (reply.status, reply.headers["x-gateway-backend"][0]) == (200, "c"), value


async def test_sent_twice_one_yes_is_enough_wherever_it_stands() -> None:
    async with house() as h:
        await down(h)
        for values in (
            ("1", "0"),
            ("0", "1"),
            ("0", "0", "yes"),
            ("yes", "no", "off"),
            ("1", "1"),
            ("", "0"),
            ("0", ""),
        ):
            reply = await h.ask(*(f"{NAME}: {value}" for value in values))
            assert reply.status in REFUSED, values
            assert not h.left(), values
        assert (await h.ask(f"{NAME}: 0", f"{NAME}: 0")).status == 200
        assert (await h.ask(f"{NAME}: 0", f"{NAME}: off")).status == 200


async def test_local_only_counts_for_every_api_and_every_stream() -> None:
    async with house() as h:
        await down(h)
        bodies: dict[str, dict[str, Any]] = {
            "/v1/chat/completions": ASK,
            "/chat/completions": {**ASK, "stream": True},
            "/v1/messages": {**ASK, "max_tokens": 9},
            "/v1/completions": {"model": "chat", "prompt": "hello"},
        }
        for path, body in bodies.items():
            reply = await raw_post(h.gateway.url, body, path, headers=[f"{NAME}: true"])
            assert reply.status in REFUSED, path
        assert not h.left()


async def test_a_no_does_not_undo_what_routes_yaml_says_of_the_client() -> None:
    async with house(clients=KEYED) as h:
        await down(h)
        assert (await h.ask("authorization: Bearer inside-key", f"{NAME}: 0")).status in REFUSED
        assert not h.left()
        assert (await h.ask("authorization: Bearer free-key", f"{NAME}: 0")).status == 200


@given(st.binary(max_size=12))
def test_a_value_of_local_only_outside_the_list_of_noes_is_a_yes(value: bytes) -> None:
    words = [word.strip().lower() for word in value.split(b",")]
    plain = all(word in (b"0", b"false", b"no", b"off") for word in words)
    assert asks_local_only({NAME.encode(): value}) is not plain
    assert not asks_local_only({})


values = st.sampled_from([b"0", b"no", b"off", b"FALSE", b"1", b"yes", b"", b"x"])


@given(st.lists(values, min_size=1, max_size=5), st.booleans())
def test_of_several_headers_a_single_yes_is_enough(said: list[bytes], other: bool) -> None:
    pairs = [(NAME.encode(), value) for value in said] + [(b"accept", b"*/*")] * other
    plain = all(value.lower() in (b"0", b"no", b"off", b"false") for value in said)
    assert asks_local_only(header_map(pairs)) is not plain
