"""Every error that a client can get: status, envelope, and the words that agents act on."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from gateway.errors import context_length_exceeded
from simulator import SimVllm
from tests.envelope import is_error
from tests.scripted import RawReply, chunked, raw_post
from tests.support import RunningGateway, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


ASK: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}


@dataclass
class Fleet:
    """Alias `chat` is the backend `sim`; `forbidden` is one that the client `narrow` may not use; `gone` is not there,
    `starting` neither, but may come."""

    gateway: RunningGateway
    sim: SimVllm

    async def post(self, body: bytes | object, *headers: str, path: str = "/v1/chat/completions") -> RawReply:
        return await raw_post(self.gateway.url, body, path, headers)


ROUTES = """
server: {{max_body: 64KiB}}
defaults: {{queue: {{max_wait: 100ms}}}}
backends:
  chat: {{url: "{url}"}}
  forbidden: {{url: "{url}"}}
  gone: {{url: "http://127.0.0.1:9", health: {{start_grace: 0s, fail_after: 1}}}}
  starting: {{url: "http://127.0.0.1:9", health: {{fail_after: 1}}}}
  asleep: {{url: "http://127.0.0.1:9", run: on_demand}}
"""
KEYS = """
clients:
  narrow: {key: narrow-key, aliases: [chat, "ch*"]}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    """Without clients: everybody is let in."""
    async for running in serving(""):
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded() -> AsyncIterator[Fleet]:
    """With clients: a key is needed."""
    async for running in serving(KEYS):
        yield running


async def serving(more: str) -> AsyncIterator[Fleet]:
    sim = SimVllm(name="sim", served=["m"], context=32768)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(sim.serve(port=0))
        gateway = await stack.enter_async_context(running_gateway(ROUTES.format(url=url) + more))
        await gateway.until_ready("chat", "forbidden")
        await gateway.until(lambda: all(gateway.state(b).value in ("down", "parked") for b in ("gone", "asleep")))
        await gateway.until(lambda: gateway.state("starting").value == "warming")
        yield Fleet(gateway, sim)


# -- bad bodies -------------------------------------------------------------------------------------------------------

DEEP = b"[" * 50_000 + b"]" * 50_000
BAD = {
    "empty": (b"", None, "empty"),
    "blank": (b" \n ", None, "empty"),
    "not JSON": (b"{oops", None, "not valid JSON"),
    "cut short": (b'{"model": "chat", "messages": [', None, "not valid JSON"),
    "two values": (b'{"model": "chat"} {}', None, "not valid JSON"),
    "not UTF-8": (b'{"model": "\xff"}', "model", "model"),
    "a list": (b"[]", None, "must be a JSON object"),
    "a string": (b'"chat"', None, "must be a JSON object"),
    "null": (b"null", None, "must be a JSON object"),
    "no model": (b'{"messages": []}', "model", "`model`"),
    "null as model": (b'{"model": null}', "model", "`model`"),
    "a number as model": (b'{"model": 7}', "model", "`model`"),
    "an empty model": (b'{"model": ""}', "model", "`model`"),
    "a list as model": (b'{"model": ["chat"]}', "model", "`model`"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_body_is_refused_with_what_is_wrong(fleet: Fleet, name: str) -> None:
    body, param, words = BAD[name]
    asked = len(fleet.sim.requests)
    error = is_error(await fleet.post(body), "invalid_request_body")
    assert error["param"] == param
    assert words in error["message"]
    assert len(fleet.sim.requests) == asked


def can_be_skipped(body: bytes) -> bool:
    """Can its fields be passed over, to be sent on as they are? How deep they may be depends on Python's version."""
    try:
        msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except RecursionError:
        return False
    return True


@pytest.mark.parametrize("where", ["the body", "an unknown field", "messages"])
async def test_deep_nesting_breaks_nothing(fleet: Fleet, where: str) -> None:
    deep = DEEP[30_000:-30_000]
    if where == "the body":
        is_error(await fleet.post(deep), "invalid_request_body")
        return
    messages = deep if where == "messages" else b'[{"role": "user", "content": "hi"}]'
    body = b'{"model": "chat", "messages": %b, "odd": %b}' % (messages, deep if where != "messages" else b"1")
    reply = await fleet.post(body)
    assert reply.status == (200 if can_be_skipped(body) else 400)
    if reply.status == 400:
        assert reply.json["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/chat/completions"])
async def test_every_endpoint_refuses_alike(fleet: Fleet, path: str) -> None:
    is_error(await fleet.post(b"{oops", path=path), "invalid_request_body")
    is_error(await fleet.post({"model": "nope"}, path=path), "model_not_found")


async def test_a_refused_body_leaves_the_connection_usable(fleet: Fleet) -> None:
    for body in (b"", b"{oops", b"[]"):
        assert (await fleet.gateway.client.post("/v1/chat/completions", content=body)).status_code == 400
    assert (await fleet.gateway.client.post("/v1/chat/completions", json=ASK)).status_code == 200


# -- encodings and sizes ----------------------------------------------------------------------------------------------


async def test_a_gzip_body_is_decoded(fleet: Fleet) -> None:
    packed = gzip.compress(json.dumps(ASK).encode())
    for encoding in ("gzip", "x-gzip", "GZIP"):
        reply = await fleet.post(packed, f"content-encoding: {encoding}")
        assert reply.status == 200
        assert "content-encoding" not in fleet.sim.requests[-1].headers
        assert fleet.sim.requests[-1].json["messages"] == ASK["messages"]


async def test_a_gzip_body_of_several_members_is_read_to_its_end(fleet: Fleet) -> None:
    body = json.dumps(ASK).encode()
    members = [gzip.compress(body[at : at + 20]) for at in range(0, len(body), 20)]
    assert (await fleet.post(b"".join(members), "content-encoding: gzip")).status == 200
    assert fleet.sim.requests[-1].json["messages"] == ASK["messages"]
    many = b"".join(gzip.compress(b" ") for _ in range(101)) + gzip.compress(body)
    assert "members" in is_error(await fleet.post(many, "content-encoding: gzip"), "invalid_request_body")["message"]
    rest = gzip.compress(body) + b"more"
    assert "gzip" in is_error(await fleet.post(rest, "content-encoding: gzip"), "invalid_request_body")["message"]


@pytest.mark.parametrize("packed", [b"not gzip", b"", gzip.compress(b"{}" * 99, mtime=0)[:-9], b"\x1f\x8b"])
async def test_bad_gzip_is_refused(fleet: Fleet, packed: bytes) -> None:
    assert "gzip" in is_error(await fleet.post(packed, "content-encoding: gzip"), "invalid_request_body")["message"]


async def test_a_gzip_bomb_is_refused_by_its_decoded_size(fleet: Fleet) -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    assert len(bomb) < 64 * 1024
    is_error(await fleet.post(bomb, "content-encoding: gzip"), "request_too_large")


@pytest.mark.parametrize("encoding", ["br", "zstd", "deflate", "gzip, gzip", "nonsense"])
async def test_other_encodings_are_refused(fleet: Fleet, encoding: str) -> None:
    is_error(await fleet.post(ASK, f"content-encoding: {encoding}"), "unsupported_encoding")


async def test_a_body_beyond_the_limit_is_refused_by_its_length(fleet: Fleet) -> None:
    for size in (64 * 1024 + 1, 3_000_000):
        is_error(await fleet.post(b" " * size), "request_too_large")


async def test_a_length_is_believed_before_the_body_comes(fleet: Fleet) -> None:
    is_error(await fleet.post(b"{", "content-length: 100000000"), "request_too_large")


async def test_a_chunked_body_beyond_the_limit_is_refused(fleet: Fleet) -> None:
    body = chunked(*[b" " * 16384] * 5) + b"0\r\n\r\n"
    is_error(await fleet.post(body, "transfer-encoding: chunked"), "request_too_large")


async def test_a_body_of_just_the_limit_is_read(fleet: Fleet) -> None:
    body = json.dumps(ASK).encode()
    body += b" " * (64 * 1024 - len(body))
    assert (await fleet.post(body)).status == 200
    assert (await fleet.post(chunked(body) + b"0\r\n\r\n", "transfer-encoding: chunked")).status == 200


# -- who and what -----------------------------------------------------------------------------------------------------


async def test_an_unknown_model_is_told_in_the_words_agents_know(fleet: Fleet) -> None:
    error = is_error(await fleet.post({**ASK, "model": "nope-at-all"}), "model_not_found")
    assert (error["message"], error["param"]) == ("The model 'nope-at-all' does not exist", "model")
    error = is_error(await fleet.post({**ASK, "model": "forbiden"}), "model_not_found")
    assert error["message"] == "The model 'forbiden' does not exist. Did you mean 'forbidden'?"
    error = is_error(await fleet.post({**ASK, "model": "FORBIDDEN"}), "model_not_found")
    assert error["message"] == "The model 'FORBIDDEN' does not exist. Did you mean 'forbidden'?"


async def test_without_a_right_key_nobody_is_let_in(guarded: Fleet) -> None:
    for headers in (
        [],
        ["authorization: Bearer wrong"],
        ["x-api-key: wrong"],
        ["authorization: Basic bmFycm93LWtleQ=="],
    ):
        is_error(await guarded.post(ASK, *headers), "invalid_api_key")
    for headers in (
        ["authorization: Bearer narrow-key"],
        ["authorization: bearer narrow-key"],
        ["x-api-key: narrow-key"],
    ):
        assert (await guarded.post(ASK, *headers)).status == 200


async def test_a_key_is_asked_for_before_the_body_is_judged(guarded: Fleet) -> None:
    is_error(await guarded.post(b"{oops"), "invalid_api_key")


async def test_a_client_may_use_its_aliases_only(guarded: Fleet) -> None:
    error = is_error(await guarded.post({**ASK, "model": "forbidden"}, "x-api-key: narrow-key"), "model_not_allowed")
    assert error["param"] == "model"


async def test_a_did_you_mean_does_not_tell_what_the_client_may_not_use(guarded: Fleet) -> None:
    error = is_error(await guarded.post({**ASK, "model": "forbiden"}, "x-api-key: narrow-key"), "model_not_found")
    assert "forbidden" not in error["message"]


@pytest.mark.parametrize("order", [("chat", "forbidden"), ("forbidden", "chat")])
async def test_a_second_model_key_does_not_pass_the_check(guarded: Fleet, order: tuple[str, str]) -> None:
    """What was checked is what is asked: never one name for us and another for the backend."""
    guarded.sim.requests.clear()
    body = f'{{"model": "{order[0]}", "messages": [], "model": "{order[1]}"}}'.encode()
    reply = await guarded.post(body, "x-api-key: narrow-key")
    if reply.status == 403:
        assert guarded.sim.requests == []
    else:
        assert reply.headers["x-gateway-alias"] == "chat"
        for request in guarded.sim.requests:
            assert request.body.count(b'"model"') == 1


# -- no backend -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("model", "code"), [("gone", "no_backend_available"), ("starting", "backend_warming")])
async def test_a_backend_that_is_not_there_is_named(fleet: Fleet, model: str, code: str, stream: bool) -> None:
    reply = await fleet.post({**ASK, "model": model, "stream": stream})
    error = is_error(reply, code)
    assert error["message"].startswith(f"No healthy backend for alias '{model}': {model} is ")
    assert "not found" not in error["message"].lower()
    assert 1 <= int(reply.headers["retry-after"]) <= 600


async def test_a_parked_backend_is_not_waited_for(fleet: Fleet) -> None:
    error = is_error(await fleet.post({**ASK, "model": "asleep"}), "no_backend_available")
    assert "asleep is parked" in error["message"]


async def test_a_backends_misleading_words_are_not_repeated(fleet: Fleet) -> None:
    words = "The context has too many tokens, max_tokens exceeds the limit: overloaded, at capacity, Not Found"
    for status, code in ((500, "upstream_error"), (429, "rate_limit_exceeded")):
        more = {"retry-after": "60"} if status == 429 else {}
        fleet.sim.fault("status", status=status, body={"error": {"message": words}}, headers=more, count=1)
        message = is_error(await fleet.post({**ASK, "model": "forbidden"}), code)["message"].lower()
        assert "not found" not in message
        assert f"answered {status}" in message


async def test_a_prompt_that_fits_nowhere_gets_the_words_that_compact_it() -> None:
    error = context_length_exceeded(131072, 140000)
    assert json.loads(error.envelope()) == {
        "error": {
            "message": "This model's maximum context length is 131072 tokens. However, your prompt contains 140000 "
            "input tokens. Please reduce the length of the messages.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    }
    assert error.status == 400


async def test_an_overflow_is_told_through_the_gateway(fleet: Fleet) -> None:
    # The body limit here is 64 KiB, which a window of 32768 tokens takes: so the window is made small.
    fleet.gateway.gateway.fleet["chat"].saw_model(None, 2048)
    try:
        body = {**ASK, "messages": [{"role": "user", "content": "x" * 30_000}]}
        error = is_error(await fleet.post(body), "context_length_exceeded")
        assert error["message"].startswith("This model's maximum context length is 2048 tokens. However, your prompt")
        assert error["message"].endswith("input tokens. Please reduce the length of the messages.")
    finally:
        fleet.gateway.gateway.fleet["chat"].saw_model(None, 32768)


async def test_a_defect_of_ours_is_a_plain_500(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(*_: object, **__: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("gateway.proxy.stages.Planner.first_choice", defect)
    error = is_error(await fleet.post(ASK), "internal_error")
    assert "secret" not in error["message"]


# -- paths ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/api/v1/models", "/api/blobs", "/v1/props", "/props", "/nope", "/v1/chat/completions/x"]
)
async def test_an_unknown_path_is_a_404_at_once_and_never_forwarded(fleet: Fleet, path: str) -> None:
    before = dict(fleet.sim.seen)
    for method in ("GET", "POST"):
        reply = await fleet.gateway.client.request(method, path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")
    assert set(fleet.sim.seen) == set(before)


async def test_the_wrong_method_is_a_405(fleet: Fleet) -> None:
    for method, path in (("GET", "/v1/chat/completions"), ("PUT", "/v1/completions"), ("POST", "/health")):
        reply = await fleet.gateway.client.request(method, path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (405, "method_not_allowed")
