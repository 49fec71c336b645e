"""What a backend quotes of one client teaches the gateway nothing, and that client gets its own mistake told. What a
backend says in its own words is learned, with the name of the request that taught it."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import product
from typing import Any

import pytest

from gateway.domain.health_state import State
from gateway.domain.reason import kind_of
from tests.scripted import RawReply, Script, ScriptedBackend, Turn, answer, json_answer, raw_post, scripted
from tests.support import RunningGateway, running_gateway

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}]
PICTURE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
TWO_CLIENTS = "clients:\n  ann: {key: key-of-ann}\n  bob: {key: key-of-bob}\n"

OVERFLOW = (
    "This model's maximum context length is 300 tokens. However, your prompt contains at least 301 input tokens, which "
    "exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
    "(parameter=input_tokens, value=301)"
)
NO_PARSER = 'tool_choice="required" requires --tool-call-parser to be set'
NO_TOOLS = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
WORDS = [
    "maximum context length is 9",
    OVERFLOW,
    "max_tokens=9000 cannot be greater than max_model_len=300. Please request fewer output tokens.",
    NO_PARSER,
    NO_TOOLS,
    'tool_choice=function "get_weather" requires --tool-call-parser to be set',
    "served/model is not a multimodal model",
    '"served/model" does not support thinking',
    '"served/model" does not support tools',
    "The model `served/model` does not exist.",
    "The engine is currently busy and cannot accept new requests.",
    f"x\n{OVERFLOW}\ny",
    f"'}}\n{OVERFLOW}",
]


def validation(value: object) -> str:
    """vLLM 0.32's message for an input of a wrong type, with the input in it."""
    fault = {
        "type": "float_parsing",
        "loc": "body.temperature",
        "msg": "Input should be a valid number, unable to parse string as a number",
        "input": value,
    }
    return f"1 validation error:\n  {fault}"


SHAPES: dict[str, Callable[[str], object]] = {
    "vllm": lambda text: {"error": {"message": validation(text), "type": "Bad Request", "param": "x", "code": 400}},
    "nested": lambda text: {"error": {"message": validation({"a": [{"b": text}]}), "code": 400}},
    "in the message": lambda text: {"error": {"message": f"1 validation error:\n  Value error, {text}", "code": 400}},
    "older": lambda text: {"object": "error", "message": str([{"loc": ("body",), "input": text}]), "code": 400},
    "fastapi": lambda text: {"detail": [{"type": "x", "loc": ["body"], "msg": "Field required", "input": text}]},
    "pydantic": lambda text: {"error": f"1 validation error for Chat\nx\n  bad [type=x, input_value={text!r}]"},
    "choice": lambda text: {
        "error": {"message": f"Invalid value for `tool_choice`: {text}! Only named tools", "code": 1}
    },
    "quoted": lambda text: {"error": {"message": f"No such file or role: {text!r}.", "code": 400}},
    "bare": lambda text: {"error": {"message": text, "type": "BadRequestError", "code": 400}},
    "text": lambda text: {"error": text},
}


def refuses(status: int, body: object, *, others: bool = False) -> Script:
    """Refuses what clients send, for what is in it; `others`: the gateway's own harmless requests, too."""

    async def play(turn: Turn) -> None:
        if not others and turn.headers["x-request-id"].startswith("probe-"):
            await hello(turn)
            return
        await turn.send(answer(json.dumps(body).encode(), f"{status} Refused"))

    return play


async def hello(turn: Turn) -> None:
    """A vLLM that answers; without stream."""
    message = {"role": "assistant", "content": "Hello."}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "served/model"}
    await turn.send(json_answer({**head, "choices": [choice], "usage": usage}))


class Stage:
    def __init__(self, gateway: RunningGateway, backends: dict[str, ScriptedBackend]) -> None:
        self.gateway, self.backends = gateway, backends

    async def ask(self, who: str = "ann", *, path: str = "/v1/chat/completions", **more: Any) -> RawReply:
        headers = [f"authorization: Bearer key-of-{who}", f"x-request-id: {more.pop('rid', 'some-request')}"]
        body = {"model": "chat", "messages": [{"role": "user", "content": "hello"}], **more}
        return await raw_post(self.gateway.url, body, path, headers)

    async def learned(self, backend: str = "a") -> dict[str, Any]:
        told = await self.gateway.client.get("/status", headers={"authorization": "Bearer key-of-bob"})
        found: dict[str, Any] = told.json()["backends"][backend]["learned"]
        return found

    def window(self, backend: str = "a") -> int | None:
        return self.gateway.gateway.fleet[backend].window(time.monotonic())


@asynccontextmanager
async def stage(
    *scripts: Script, keys: str = "", clients: str = TWO_CLIENTS, window: int | None = 131072
) -> AsyncIterator[Stage]:
    """Backends a, b in this order; `window`: that their lists of models tell."""
    async with AsyncExitStack() as stack:
        backends = {name: await stack.enter_async_context(scripted(s)) for name, s in zip("ab", scripts, strict=False)}
        for backend in backends.values():
            backend.window = window
        lines = [f'  {name}: {{url: "{backend.url}"{keys}}}' for name, backend in backends.items()]
        routes = "\n".join([clients, "backends:", *lines, f"aliases:\n  chat: {{use: [{', '.join(backends)}]}}"])
        gateway = await stack.enter_async_context(running_gateway(routes))
        await gateway.until_ready(*backends)
        yield Stage(gateway, backends)


# -- quoted words -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
async def test_what_a_refusal_quotes_of_the_client_teaches_nothing(shape: str) -> None:
    async with stage(hello) as on:
        before = await on.learned()
        for text, status in product(WORDS, (400, 404, 422)):
            on.backends["a"].play(refuses(status, SHAPES[shape](text)))
            reply = await on.ask("ann", temperature=text, tools=TOOLS, tool_choice="required")
            # (A 404 of no known kind may be the path's. A message that is nothing but the client's words is read as
            # the server's for this one request.)
            assert reply.status == status or status == 404 or shape in ("bare", "text"), reply.body
        on.backends["a"].play(hello)
        assert await on.learned() == before
        assert on.window() == 131072
        assert on.gateway.state("a") is State.READY
        fields: dict[str, Any]
        for fields in ({}, {"tools": TOOLS}, {"messages": [{"role": "user", "content": PICTURE}]}, {"think": True}):
            assert (await on.ask("bob", **fields)).status == 200


async def test_the_client_whose_words_were_quoted_is_told_its_own_mistake() -> None:
    message = validation("maximum context length is 9")
    async with stage(refuses(400, {"error": {"message": message, "type": "Bad Request", "code": 400}}), hello) as on:
        reply = await on.ask(temperature="maximum context length is 9")
        assert (reply.status, reply.json["error"]["message"]) == (400, message)
        assert on.backends["b"].turns == []


async def test_words_of_a_client_in_a_503_are_no_full_queue() -> None:
    said = {"error": {"message": "Bad role: The engine is currently busy and cannot accept new requests. Sorry."}}
    async with stage(refuses(503, said), hello) as on:
        assert (await on.ask()).headers["x-gateway-backend"] == "b"
        assert (await on.learned())["pause_until"] is None


async def test_numbers_that_no_server_has_teach_no_window() -> None:
    async with stage(hello, window=None) as on:
        for window in ("0", "-5", "9", "1" + "0" * 400, "٩٩٩٩", "3e5", "0300"):
            text = OVERFLOW.replace("300", window)
            on.backends["a"].play(refuses(400, {"error": {"message": text, "code": 400}}))
            await on.ask()
            assert on.window() is None


# -- a server's own words ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "asked", "fact"),
    [
        (NO_TOOLS, {"tools": TOOLS}, "tools"),
        (NO_PARSER, {"tools": TOOLS, "tool_choice": "required"}, "tool_parser"),
        ("/models/x is not a multimodal model", {"messages": [{"role": "user", "content": PICTURE}]}, "images"),
    ],
)
async def test_a_learned_lack_names_the_request_that_taught_it(text: str, asked: dict[str, Any], fact: str) -> None:
    async with stage(refuses(400, {"error": {"message": text, "code": 400}}), hello) as on:
        await on.ask(rid="the-teacher", **asked)
        learned = await on.learned()
        assert set(learned["lacks"]) == set(learned["taught"]) == {fact}
        assert learned["taught"][fact]["request"] == "the-teacher"
        assert learned["taught"][fact]["at"] > 1e9
        await on.ask("bob", **asked)
        assert len(on.backends["a"].turns) == 1


async def test_a_request_that_asked_for_no_tools_cannot_teach_that_there_are_none() -> None:
    async with stage(refuses(400, {"error": {"message": NO_TOOLS, "code": 400}}), hello) as on:
        await on.ask()
        assert (await on.learned())["lacks"] == {}


async def test_what_goes_against_routes_yaml_needs_two_clients() -> None:
    refusal = refuses(400, {"error": {"message": NO_TOOLS, "code": 400}})
    async with stage(refusal, hello, keys=", tool_parser: hermes") as on:
        for number in range(3):  # her own requests go on to the next backend each time
            said = [{"role": "user", "content": f"prompt {number}"}]
            assert (await on.ask("ann", tools=TOOLS, messages=said)).headers["x-gateway-attempts"] == "2"
            assert (await on.learned())["lacks"] == {}
        await on.ask("bob", tools=TOOLS, rid="by-bob")
        assert (await on.learned())["taught"]["tools"]["request"] == "by-bob"


async def test_an_endpoint_is_missing_only_where_a_harmless_request_does_not_find_it_either() -> None:
    missing = {"detail": "Not Found"}
    async with stage(hello, hello) as on:
        on.backends["a"].play(refuses(404, missing))
        for who in ("ann", "bob"):
            assert (await on.ask(who)).headers["x-gateway-backend"] == "b"
            assert (await on.learned())["lacks"] == {}
        on.backends["a"].play(refuses(404, missing, others=True))
        assert (await on.ask("ann")).headers["x-gateway-backend"] == "b"
        learned = await on.learned()
        assert set(learned["lacks"]) == {"endpoint:chat"}
        assert learned["taught"]["endpoint:chat"]["request"] == "harmless request"


@pytest.mark.parametrize("detail", ["No such file X", "Item not found", {"loc": ["x"]}])
async def test_another_404_says_nothing_of_the_endpoint(detail: object) -> None:
    async with stage(refuses(404, {"detail": detail}), hello) as on:
        for who in ("ann", "bob"):
            assert (await on.ask(who)).headers["x-gateway-backend"] == "b"
        assert (await on.learned())["lacks"] == {}


@pytest.mark.parametrize(
    "text",
    [
        "The model `another` does not exist.",
        "The model you asked about, maximum, was not found in our library",
        "model 'served/model' not found in the prompt",
    ],
)
async def test_a_404_about_another_model_leaves_the_backend_as_it_is(text: str) -> None:
    async with stage(refuses(404, {"error": {"message": text, "code": 404}}), hello) as on:
        assert (await on.ask()).headers["x-gateway-backend"] == "b"
        assert on.gateway.state("a") is State.READY


async def test_a_404_about_the_model_that_was_asked_for_is_believed_without_its_words() -> None:
    text = "The model `served/model` does not exist. Valid aliases: secret."
    refusal = {"error": {"message": text, "code": 404}}
    async with stage(refuses(404, refusal, others=True), hello) as on:
        await on.ask()
        state = on.gateway.gateway.fleet["a"].health
        await on.gateway.until(lambda: state.state is State.MISCONFIGURED)
        assert kind_of(state.reason) == "does not serve this model"


@pytest.mark.parametrize("others", [False, True], ids=["harmless ones are answered", "harmless ones too"])
async def test_a_404_in_words_that_are_not_known_is_believed_when_a_harmless_request_gets_it_too(others: bool) -> None:
    refusal = {"error": {"message": "There is no such model any more; the model was not found.", "code": 404}}
    async with stage(refuses(404, refusal, others=others), hello) as on:
        assert (await on.ask()).headers["x-gateway-backend"] == "b"
        await on.gateway.until(lambda: not on.gateway.gateway.prober.suspicion.busy)
        assert on.gateway.state("a") is (State.MISCONFIGURED if others else State.READY)


# -- windows ----------------------------------------------------------------------------------------------------------


async def test_a_smaller_window_than_is_known_takes_two_clients() -> None:
    async with stage(refuses(400, {"error": {"message": OVERFLOW, "code": 400}}), hello) as on:
        for number in range(3):
            said = [{"role": "user", "content": f"prompt {number}"}]
            assert (await on.ask("ann", messages=said)).headers["x-gateway-routed"] == "too_long"
            assert on.window() == 131072
        assert "window" not in await on.learned()
        await on.ask("bob", rid="by-bob")
        assert on.window() == 300
        learned = await on.learned()
        assert (learned["window"], learned["taught"]["window"]["request"]) == (300, "by-bob")


async def test_a_smaller_window_is_confirmed_by_the_list_of_models() -> None:
    async with stage(refuses(400, {"error": {"message": OVERFLOW, "code": 400}}), hello) as on:
        on.backends["a"].window = 300  # started anew with less, and not looked at since
        await on.ask("ann")
        await on.gateway.until(lambda: on.window() == 300)


async def test_a_window_that_nobody_declared_is_learned_at_once() -> None:
    async with stage(refuses(400, {"error": {"message": OVERFLOW, "code": 400}}), hello, window=None) as on:
        await on.ask("ann", rid="the-teacher")
        learned = await on.learned()
        assert (learned["window"], learned["taught"]["window"]["request"]) == (300, "the-teacher")


async def test_a_prompt_that_holds_the_very_refusal_does_not_teach_it() -> None:
    """A server that repeats a text of the request is no witness, and an agent may well send its log."""
    async with stage(refuses(400, {"error": {"message": OVERFLOW, "code": 400}}), hello, window=None) as on:
        for who in ("ann", "bob"):
            said = [{"role": "user", "content": f"What does this mean? {OVERFLOW}"}]
            assert (await on.ask(who, messages=said)).headers["x-gateway-backend"] == "b"
        assert on.window() is None


async def test_without_clients_another_prompt_is_another_witness() -> None:
    refusal = refuses(400, {"error": {"message": OVERFLOW, "code": 400}})
    async with stage(refusal, hello, clients="") as on:
        for _ in range(2):
            await on.ask()
            assert on.window() == 131072
        await on.ask(messages=[{"role": "user", "content": "another"}])
        assert on.window() == 300


# -- usage ------------------------------------------------------------------------------------------------------------


async def test_the_odd_prompts_of_one_client_do_not_change_how_those_of_others_are_counted() -> None:
    async with stage(hello) as on:
        ratio = on.gateway.gateway.fleet["a"].ratio
        before = ratio.estimate(60_000, sender="bob")
        for _ in range(20):
            await on.ask("ann", messages=[{"role": "user", "content": " " * 5000}])
        assert ratio.estimate(60_000, sender="ann") != before
        assert ratio.estimate(60_000, sender="bob") == before
