"""A request that is always answered with an error takes no backend from anybody else; a backend that is broken goes."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest

from gateway.domain.health_state import State
from gateway.inspection.known_errors import POOL_FULL
from tests.failing_fleet import CHUNK, CLOUD, ERROR, FAILURES, POISON, SAID, Script, both_ways, fail, fleet, good, picky
from tests.scripted import Turn, answer, json_answer, raw_post

# -- the culprit ------------------------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("name", FAILURES)
async def test_a_body_that_two_backends_fail_is_the_culprit(name: str, stream: bool) -> None:
    script = picky(FAILURES[name])
    async with fleet(script, script, script) as f:
        for _ in range(3):
            reply = await f.ask(stream=stream)
            assert reply.status == (500 if name == "500" else 502)
            assert reply.json["error"]["code"] == "upstream_error"
            if name == "500":
                assert reply.json["error"]["message"] == SAID
            assert (await f.ask("hello", stream=stream)).status == 200
        assert f.poisoned("c") == 0, "two are enough"
        stale = 2 if name == "a reset" else 0  # a reused connection that dies is replaced once
        assert (f.poisoned("a"), f.poisoned("b")) == (3 + stale, 1), "what is known goes to one"
        f.untouched()


@both_ways
async def test_with_one_backend_the_second_time_tells(stream: bool) -> None:
    async with fleet(picky()) as f:
        first = await f.ask(stream=stream)
        assert (first.status, first.json["error"]["code"]) == (502, "upstream_error")
        for _ in range(3):
            reply = await f.ask(stream=stream)
            assert (reply.status, reply.json["error"]["message"]) == (500, SAID)
        assert f.poisoned("a") == 4
        assert (await f.ask("hello", stream=stream)).status == 200
        f.untouched()


@pytest.mark.parametrize("ends", ["whole", "cut off"])
async def test_a_refusal_with_a_body_beyond_the_limit_is_the_clients_all_the_same(ends: str) -> None:
    """The status has been told: what becomes of the text says nothing of the backend."""

    async def refuses(turn: Turn) -> None:
        head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 3000000\r\n\r\n"
        await turn.send(head, b"no such field " * 100)
        if ends == "cut off":
            turn.close()
            return
        with suppress(ConnectionError):
            for _ in range(29):
                await turn.send(b"x" * 100_000)

    async with fleet(picky(refuses), picky(refuses)) as f:
        for number in range(5):
            assert (await f.ask(f"{POISON} {number}")).status == 400
        f.untouched()
        assert (await f.ask("hello")).status == 200


async def test_different_poisons_of_one_client_take_nobody_from_others() -> None:
    async with fleet(picky(), picky()) as f:
        for number in range(12):
            assert (await f.ask(f"{POISON} {number}")).status == 500
            assert (await f.ask("hello")).status == 200
        f.untouched()


async def test_the_messages_dialect_gets_the_backends_words_in_its_own_envelope() -> None:
    async with fleet(picky(), picky()) as f:
        for stream in (False, True):
            reply = await f.ask(path="/v1/messages", stream=stream)
            assert reply.status == 500
            assert reply.json["type"] == "error"
            assert (reply.json["error"]["type"], reply.json["error"]["message"]) == ("api_error", SAID)
        f.untouched()


async def test_embeddings_that_fail_do_not_take_chats_with_them() -> None:
    async def chat_only(turn: Turn) -> None:
        await (fail if b'"input"' in turn.body else good)(turn)

    async with fleet(chat_only, chat_only) as f:
        for number in range(6):
            reply = await raw_post(f.gateway.url, {"model": "chat", "input": f"text {number}"}, "/v1/embeddings")
            assert reply.status == 500
            assert (await f.ask("hello")).status == 200
        f.untouched()


async def test_a_server_of_embeddings_alone_that_is_broken_is_down() -> None:
    async def embeds_no_more(turn: Turn) -> None:
        if b'"input"' in turn.body:
            await fail(turn)
        else:
            await turn.send(json_answer({"error": {"message": "does not support Chat Completions"}}, "400 Bad Request"))

    async with fleet(embeds_no_more) as f:
        reply = await raw_post(f.gateway.url, {"model": "chat", "input": "text"}, "/v1/embeddings")
        assert reply.status == 502
        await f.gateway.until(lambda: f.gateway.state("a") is State.DOWN)


async def test_a_stream_that_always_breaks_after_content_takes_nobody_from_others() -> None:
    said = CHUNK.replace(b'"finish_reason":"stop"', b'"finish_reason":null')

    async def broken(turn: Turn) -> None:
        await turn.stream(said, b"data: " + json.dumps(ERROR).encode() + b"\n\n", b"data: [DONE]\n\n")

    async with fleet(picky(broken)) as f:
        for number in range(6):
            reply = await f.ask(f"{POISON} {number}", stream=True)
            assert b"stream_interrupted" in reply.body
            assert (await f.ask("hello", stream=True)).ended
        await f.gateway.until(lambda: f.states() == {State.READY})
        assert f.gateway.metric("gateway_backend_transitions_total", backend="a", state="down") == 0


@pytest.mark.parametrize(("said", "status"), [("Context size was exceeded.", 500), (POOL_FULL, 429)])
async def test_words_that_make_agents_throw_history_away_are_not_repeated(said: str, status: int) -> None:
    """The second text is llama-server's when the memory of all its slots is full."""

    async def full(turn: Turn) -> None:
        await turn.send(json_answer({"error": {"message": said}}, "500 Internal Server Error"))

    async with fleet(picky(full), picky(full)) as f:
        reply = await f.ask()
        assert reply.status == status
        assert "[...] size" in reply.json["error"]["message"]
        assert "context" not in reply.json["error"]["message"].lower()


# -- no culprit -------------------------------------------------------------------------------------------------------


@both_ways
async def test_a_body_that_another_answers_is_no_culprit(stream: bool) -> None:
    """The first failure is evidence; the harmless request that is asked then clears it."""
    async with fleet(picky(), good) as f:
        for _ in range(5):
            reply = await f.ask(stream=stream)
            assert (reply.status, reply.headers["x-gateway-backend"]) == (200, "b")
            await f.gateway.until(lambda: f.states() == {State.READY})
        assert f.gateway.metric("gateway_backend_transitions_total", backend="a", state="down") == 0


@both_ways
async def test_a_broken_backend_is_down_soon_and_the_others_serve(stream: bool) -> None:
    async with fleet(fail, good) as f:
        assert (await f.ask("hello", stream=stream)).headers["x-gateway-backend"] == "b"
        await f.gateway.until(lambda: f.gateway.state("a") is State.DOWN)  # without another request
        assert (await f.ask("hello", stream=stream)).headers["x-gateway-attempts"] == "1"


@both_ways
async def test_two_broken_backends_are_left_for_the_third(stream: bool) -> None:
    """They answer nobody, so the body is no culprit."""
    async with fleet(fail, fail, good) as f:
        reply = await f.ask("hello", stream=stream)
        assert (reply.status, reply.headers["x-gateway-backend"]) == (200, "c")
        await f.gateway.until(lambda: f.gateway.state("a") is f.gateway.state("b") is State.DOWN)


async def test_where_all_are_broken_the_request_is_not_to_blame() -> None:
    async with fleet(fail, fail) as f:
        reply = await f.ask("hello")
        assert (reply.status, reply.json["error"]["code"]) == (502, "upstream_error")
        assert "a answered 500" in reply.json["error"]["message"]
        await f.gateway.until(lambda: f.states() == {State.DOWN})


async def test_a_culprit_that_is_answered_after_all_is_forgiven() -> None:
    async with fleet(picky(), picky()) as f:
        assert (await f.ask()).status == 500
        for backend in f.backends.values():
            backend.play(good)
        assert (await f.ask()).status == 200
        f.backends["a"].play(picky())
        assert (await f.ask()).headers["x-gateway-backend"] == "b", "it may go on to the next again"


async def test_a_body_that_kills_backends_is_sent_to_nobody_for_a_while() -> None:
    async with fleet(picky(), picky(), good) as f:

        def deadly(name: str) -> Script:
            async def die(turn: Turn) -> None:
                f.backends[name].deafen()
                turn.reset()

            return die

        for name in ("a", "b"):
            f.backends[name].play(picky(deadly(name)))
        assert (await f.ask()).status == 502
        reply = await f.ask()
        assert (reply.status, reply.json["error"]["code"]) == (503, "no_backend_available")
        assert 1 <= int(reply.headers["retry-after"]) <= 60
        assert f.poisoned("c") == 0
        assert (await f.ask("hello")).headers["x-gateway-backend"] == "c"


# -- keys, names and pauses -------------------------------------------------------------------------------------------


def refusing(status: str, message: str) -> Script:
    async def script(turn: Turn) -> None:
        await turn.send(json_answer({"error": {"message": message}}, status))

    return script


REFUSALS = {
    "403": refusing("403 Forbidden", "this prompt was flagged"),
    "401": refusing("401 Unauthorized", "not for this prompt"),
    "404": refusing("404 Not Found", "The model `served/model` does not exist."),
}


@both_ways
@pytest.mark.parametrize("keys", ["", CLOUD], ids=["local", "cloud"])
@pytest.mark.parametrize("name", REFUSALS)
async def test_a_refusal_that_a_harmless_request_does_not_get_says_nothing_of_the_key(
    name: str, keys: str, stream: bool
) -> None:
    async with fleet(picky(REFUSALS[name]), keys=keys) as f:
        for number in range(4):
            reply = await f.ask(f"{POISON} {number}", stream=stream)
            assert (reply.status, reply.json["error"]["code"]) == (502, "upstream_error")
            assert (await f.ask("hello", stream=stream)).status == 200
        assert f.states() == {State.READY}
        assert len(f.backends["a"].turns) <= 12


@pytest.mark.parametrize("keys", ["", CLOUD], ids=["local", "cloud"])
@pytest.mark.parametrize("name", REFUSALS)
async def test_a_refusal_that_a_harmless_request_gets_too_is_about_us(name: str, keys: str) -> None:
    async with fleet(REFUSALS[name], keys=keys) as f:
        reply = await f.ask("hello")
        assert (reply.status, reply.json["error"]["code"]) == (502, "upstream_error")
        await f.gateway.until(lambda: f.states() == {State.MISCONFIGURED})
        assert (await f.ask("hello")).json["error"]["code"] == "no_backend_available"
        assert len(f.backends["a"].turns) == 2, "the request, and the harmless one"


async def test_the_first_pause_that_is_asked_for_is_short_for_the_others() -> None:
    """It may be meant for one large request; asked for again, with nobody answered in between, it is believed."""

    async def pause(turn: Turn) -> None:
        await turn.send(answer(b"{}", "429 Too Many Requests", "application/json", "retry-after: 3600"))

    async with fleet(picky(pause)) as f:
        state = f.gateway.gateway.fleet["a"]
        reply = await f.ask()
        assert (reply.status, reply.json["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(reply.headers["retry-after"]) <= 60
        state.cooldown_until = 0.0  # the pause is over
        assert (await f.ask("hello")).status == 200
        assert int((await f.ask()).headers["retry-after"]) <= 60
        state.cooldown_until = 0.0
        assert 500 < int((await f.ask()).headers["retry-after"]) <= 600


@pytest.mark.parametrize("body", [b'{"detail": "no such picture"}', b"<html>lost</html>", b""])
async def test_a_404_that_a_harmless_request_does_not_get_says_nothing_of_the_endpoint(body: bytes) -> None:
    async def lost(turn: Turn) -> None:
        await turn.send(answer(body, "404 Not Found"))

    async with fleet(picky(lost)) as f:
        assert (await f.ask()).status == 400
        assert (await f.ask("hello")).status == 200
        f.backends["a"].play(lost)
        assert (await f.ask("hello")).status == 400
        turns = len(f.backends["a"].turns)
        assert (await f.ask("hello")).status == 400, "now it is known"
        assert len(f.backends["a"].turns) == turns
