"""Headers that come more than once: no value hides another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.proxy.header_map import header_map
from simulator import SimVllm
from tests.admission.test_access import HERMES, OPS, guarded
from tests.raw_client import chat
from tests.scripted import RawReply, raw_post
from tests.support import RunningGateway

names = st.sampled_from([b"accept", b"x-api-key", b"host", b"traceparent"])


@given(st.lists(st.tuples(names, st.binary(max_size=4)), max_size=8))
def test_no_value_is_lost_and_single_ones_stay_as_they_are(pairs: list[tuple[bytes, bytes]]) -> None:
    found = header_map(pairs)
    for name in {name for name, _ in pairs}:
        said = list(dict.fromkeys(value for other, value in pairs if other == name))
        if len(said) == 1:
            assert found[name] == said[0]
        elif name == b"traceparent":
            assert name not in found, "two parents are none"
        else:
            assert found[name] == b", ".join(said)


async def ask(gateway: RunningGateway, *headers: str) -> RawReply:
    return await raw_post(gateway.url, chat("writer"), headers=headers)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ((f"x-api-key: {HERMES}", f"x-api-key: {HERMES}"), 200),
        ((f"authorization: Bearer {HERMES}", f"authorization: Bearer {HERMES}"), 200),
        ((f"x-api-key: {HERMES}", f"x-api-key: {OPS}"), 401),
        ((f"authorization: Bearer {HERMES}", f"authorization: Bearer {OPS}"), 401),
        ((f"authorization: Bearer {OPS}", "authorization: Bearer wrong"), 401),
        (("authorization: Bearer wrong", f"authorization: Bearer {OPS}"), 401),
        ((f"authorization: Bearer {HERMES}", "x-api-key: an-sdk-sends-this"), 200),
        (("authorization: Bearer wrong", f"x-api-key: {HERMES}"), 401),
        (("authorization: Bearer ", f"x-api-key: {HERMES}"), 200),
        (("authorization: Basic abc", f"x-api-key: {HERMES}"), 200),
    ],
)
async def test_two_keys_that_differ_are_no_key(headers: tuple[str, ...], status: int) -> None:
    async with guarded(SimVllm("a", api_key="backend-key-4")) as gateway:
        assert (await ask(gateway, *headers)).status == status


async def test_two_request_ids_are_none_and_two_encodings_are_refused() -> None:
    sim = SimVllm("a", api_key="backend-key-4")
    async with guarded(sim, clients="") as gateway:
        reply = await ask(gateway, "x-request-id: one", "x-request-id: two")
        assert reply.headers["x-request-id"] not in ("one", "two", "one, two")
        assert sim.requests[-1].headers["x-request-id"] == reply.headers["x-request-id"]
        assert (await ask(gateway, "x-request-id: one", "x-request-id: one")).headers["x-request-id"] == "one"
        assert (await ask(gateway, "content-encoding: identity", "content-encoding: gzip")).status == 415


async def test_a_list_that_was_sent_in_two_parts_goes_up_whole() -> None:
    sim = SimVllm("a", api_key="backend-key-4")
    async with guarded(sim, clients="") as gateway:
        assert (await ask(gateway, "anthropic-beta: one", "anthropic-beta: two")).status == 200
        assert sim.requests[-1].headers["anthropic-beta"] == "one, two"
