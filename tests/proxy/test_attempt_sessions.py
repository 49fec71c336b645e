"""A session's id goes on to servers that read one, in their form, and to no other."""

from __future__ import annotations

from typing import Any

import pytest

from simulator import SimVllm
from tests.scripted import Turn, _answer_well, raw_post, scripted
from tests.support import running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROWS = ["openai-cloud", "opencode", "chatgpt", "router", "vllm", "mistral"]
SERVERS = dict(zip(("cloud", "zen", "codex", "hop", "own", "mist"), ROWS, strict=True))
NAMES = ("x-opencode-session", "session-id", "x-session-id", "session_id", "x-claude-code-session-id")
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
USER_ID = '{"device_id":"d","session_id":"of-claude"}'
SAID: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    MESSAGES: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "metadata": {"user_id": USER_ID}},
    RESPONSES: {"input": "hi"},
}


def told(turn: Turn) -> dict[str, str]:
    """What the server was told of sessions."""
    found = {name: turn.headers[name] for name in NAMES if name in turn.headers}
    return found | {name: turn.json[name] for name in ("prompt_cache_key", "metadata") if name in turn.json}


async def asked(path: str, *headers: str, **body: Any) -> dict[str, dict[str, str]]:
    """Backend -> what it was told, in the second of two requests."""
    async with scripted(_answer_well) as upstream:
        common = f'engine: openai, url: "{upstream.url}", model: served/model, responses: chat'
        rows = [f"  {name}: {{{common}, server: {row}}}" for name, row in SERVERS.items()]
        routes = "\n".join(["backends:", *rows, "aliases:", *(f"  to-{name}: [{name}]" for name in SERVERS)])
        found: dict[str, dict[str, str]] = {}
        async with running_gateway(routes) as gateway:
            for name in SERVERS:
                for _ in range(2):
                    upstream.play(_answer_well)
                    reply = await raw_post(gateway.url, {"model": f"to-{name}", **SAID[path], **body}, path, headers)
                    assert reply.status == 200, reply.body
                found[name] = told(next(turn for turn in upstream.turns if turn.path.startswith("/v1/")))
        return found


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_a_header_of_the_client_goes_on_in_the_servers_form(path: str) -> None:
    assert await asked(path, "session-id: s-1") == {
        "cloud": {"prompt_cache_key": "s-1"},
        "zen": {"x-opencode-session": "s-1"},
        "codex": {"session-id": "s-1"},
        "hop": {"x-session-id": "s-1"},
        "own": {},
        "mist": {},
    }


async def test_the_user_id_of_a_message_goes_on_as_the_session_alone() -> None:
    found = await asked(MESSAGES)
    assert found["zen"] == {"x-opencode-session": "of-claude"}
    assert found["cloud"] == {"prompt_cache_key": "of-claude"}
    assert found["own"] == found["mist"] == {}


async def test_the_clients_own_cache_key_stays_beside_a_header() -> None:
    found = await asked(CHAT, "x-session-id: s-1", prompt_cache_key="mine")
    assert found["cloud"] == {"prompt_cache_key": "mine"}
    assert found["hop"]["x-session-id"] == "s-1"


async def test_without_an_id_a_header_names_the_conversation() -> None:
    """OpenCode's cloud refuses requests without one."""
    one, again = await asked(CHAT), await asked(CHAT, temperature=0.5)
    other = await asked(CHAT, messages=[{"role": "user", "content": "other"}])
    assert len(one["zen"]["x-opencode-session"]) == 32
    assert one == again
    assert one["hop"]["x-session-id"] != other["hop"]["x-session-id"]
    assert one["cloud"] == one["own"] == {}


async def test_a_conversation_stays_where_it_was_and_only_a_choice_is_remembered() -> None:
    one, two = SimVllm("one"), SimVllm("two")
    async with one.serve() as first, two.serve() as second:
        routes = f"""
backends: {{a: {{url: "{first}"}}, b: {{url: "{second}"}}}}
aliases:
  both: [[a, b]]
  alone: [a]
  later: {{use: [[a, b]], priority: batch}}
"""
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a", "b")
            placements = gateway.gateway.services.placements
            states = gateway.gateway.fleet.states

            async def ask(alias: str, session: str, turn: int) -> str:
                messages = [{"role": "user", "content": f"{session} {number} " * 2000} for number in range(turn + 1)]
                body = {"model": alias, "messages": messages, "max_tokens": 2, "stream": bool(turn % 2)}
                answer = await gateway.client.post("/v1/chat/completions", json=body, headers={"x-session-id": session})
                assert answer.status_code == 200
                return answer.headers["x-gateway-backend"]

            for alias in ("alone", "later"):
                await ask(alias, "s", 0)
                assert len(placements) == 0
            for session in ("s", "t", "u"):
                places = [await ask("both", session, turn) for turn in range(4)]
                assert len(set(places)) == 1, "it stays"
            assert len(placements) > 3
            assert all(state.prefill.tokens == 0 for state in states.values()), "nothing is counted twice"
            assert any(state.prefill.rate is not None for state in states.values()), "the speed is learned"
