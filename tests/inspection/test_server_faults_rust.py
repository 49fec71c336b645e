"""What the refusals of vLLM's Rust front end mean, as a real one sent them, and what follows for its backend."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.domain.health_state import State
from gateway.inspection.error_replies import judge
from simulator import SimRustFrontEnd, SimVllm
from simulator.faults import Fault
from tests.raw_client import chat
from tests.support import from_clients, running_gateway

ERRORS = Path(__file__).parent.parent / "data" / "errors" / "vllm-rs"
CHAT = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]

# name -> (kind, what it lacks); every other one is the client's own mistake
MEANINGS: dict[str, tuple[str, str | None]] = {
    "audio": ("incapable", "audio"),
    "body_too_large": ("incapable", "body"),
    "count_tokens": ("unserved", "endpoint:chat"),
    "embeddings": ("unserved", "endpoint:chat"),
    "messages": ("unserved", "endpoint:chat"),
    "picture": ("incapable", "images"),
    "responses": ("unserved", "endpoint:chat"),
    "several_choices": ("incapable", None),
    "too_long": ("too_long", None),
    "tools_without_parser": ("incapable", "tool_parser"),
    "two_parsers": ("misconfigured", None),
    "unknown_model": ("misconfigured", None),
}


@pytest.mark.parametrize("name", sorted(path.stem for path in ERRORS.glob("*.json")))
def test_every_captured_refusal_has_its_meaning(name: str) -> None:
    kept = json.loads((ERRORS / f"{name}.json").read_text())
    verdict = judge(kept["status"], {"content-type": kept["content_type"]}, kept["body"].encode(), "chat")
    assert (verdict.kind, verdict.lack) == MEANINGS.get(name, ("client", None))
    if verdict.kind == "client":
        assert verdict.status == 400
    if name == "too_long":
        assert (verdict.window, verdict.prompt_tokens, verdict.least) == (2048, 15012, False)


def test_a_refusal_that_may_quote_the_client_teaches_nothing() -> None:
    kept = json.loads((ERRORS / "tools_without_parser.json").read_text())
    assert judge(500, {}, kept["body"].encode(), "chat", echoed=lambda *_: True).unverified


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_front_end_without_a_parser_is_left_once_and_stays_well(choice: object, stream: bool) -> None:
    bare, whole = SimRustFrontEnd("bare", tool_parser=None), SimVllm("whole")
    async with bare.serve() as one, whole.serve() as two:
        routes = f"backends: {{a: {{url: '{one}'}}, b: {{url: '{two}'}}}}\naliases: {{chain: [a, b]}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a", "b")
            for _ in range(4):
                body = chat("chain", stream=stream, tools=TOOLS, tool_choice=choice)
                assert (await gateway.client.post(CHAT, json=body)).status_code == 200
            assert (len(from_clients(bare.requests)), len(from_clients(whole.requests))) == (1, 4)
            health = gateway.gateway.fleet["a"].health
            assert (health.state, health.fails) == (State.READY, 0)
            assert (await gateway.client.post(CHAT, json=chat("chain"))).status_code == 200
            assert len(from_clients(bare.requests)) == 2


async def test_alone_it_is_a_400_that_names_the_flag() -> None:
    bare = SimRustFrontEnd(tool_parser=None)
    async with bare.serve() as url, running_gateway(f"backends: {{a: {{url: '{url}'}}}}") as gateway:
        await gateway.until_ready("a")
        for _ in range(2):
            answer = await gateway.client.post(CHAT, json=chat("a", tools=TOOLS))
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, "tool_choice_unsupported")
            assert "--tool-call-parser" in error["message"]
        assert gateway.gateway.fleet["a"].health.state is State.READY


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_body_that_is_too_large_there_goes_elsewhere_and_the_next_one_does_not(stream: bool) -> None:
    small, large = SimVllm("small"), SimVllm("large")
    async with small.serve() as one, large.serve() as two:
        routes = f"backends: {{a: {{url: '{one}'}}, b: {{url: '{two}'}}}}\naliases: {{chain: [a, b]}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a", "b")
            kept = json.loads((ERRORS / "body_too_large.json").read_text())
            small.faults.add(Fault("status", status=400, body=json.loads(kept["body"]), count=1))
            assert (await gateway.client.post(CHAT, json=chat("chain", stream=stream))).status_code == 200
            assert (await gateway.client.post(CHAT, json=chat("chain", stream=stream))).status_code == 200
            assert (len(from_clients(small.requests)), len(from_clients(large.requests))) == (2, 1)
