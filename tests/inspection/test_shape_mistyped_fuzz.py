"""Mutated answers over sockets, by every dialect and engine: whatever the first backend says, the reply is the second
one's, or one that the first has given, whole or interrupted; and nothing fails inside the gateway."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.pooled import NO_POOLED_FACTS
from tests.engines.test_mistyped_engines import LINES
from tests.inspection.test_shape_mistyped import COMPLETION, EMBEDDED, STREAMS, WHOLE, events
from tests.mutations import mutated, mutated_one_of
from tests.scripted import RawReply, Turn, answer, scripted
from tests.support import RunningGateway, running_gateway
from tests.two_backends import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, ROUTES, House, good

PAGES = "/metrics", "/status", "/status/history", "/status/usage"


@dataclass
class Case:
    """What is asked, and what the first backend answers: a body, or events; `lines` where it is an `ollama`."""

    path: str
    stream: bool
    tools: bool
    whole: bytes
    events: list[bytes]
    lines: list[bytes]
    ollama: bool
    at_once: bool  # its events come in one piece

    async def play(self, turn: Turn) -> None:
        if self.ollama:
            await turn.send(answer(b"".join(line + b"\n" for line in self.lines), "200 OK", "application/x-ndjson"))
        elif not self.stream:
            await turn.send(answer(self.whole))
        elif self.at_once:
            await turn.send(answer(b"".join(events(self.events)), "200 OK", "text/event-stream"))
        else:
            await turn.stream(*events(self.events))


chats = st.builds(
    Case,
    st.sampled_from([CHAT, MESSAGES]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(WHOLE).flatmap(mutated),
    st.sampled_from(STREAMS).flatmap(mutated_one_of),
    st.sampled_from(LINES).flatmap(mutated_one_of),
    st.booleans(),
    st.booleans(),
)


def other(path: str, value: Any, stream: st.SearchStrategy[bool]) -> st.SearchStrategy[Case]:
    no, sent = st.just(False), mutated(value).map(lambda one: [one])
    return st.builds(Case, st.just(path), stream, no, mutated(value), sent, st.just(list[bytes]()), no, st.booleans())


cases = chats | chats | other(COMPLETIONS, COMPLETION, st.booleans()) | other(EMBEDDINGS, EMBEDDED, st.just(False))


async def ask(house: House, case: Case) -> RawReply:
    if case.path == EMBEDDINGS:
        return await house.ask(EMBEDDINGS, input="x")
    if case.path == COMPLETIONS:
        return await house.ask(COMPLETIONS, prompt="x", stream=case.stream)
    model = "ollamas" if case.ollama else "pair"
    return await house.chat(case.path, stream=case.stream, tools=case.tools, model=model)


async def follow(asked: list[Case]) -> None:
    async with AsyncExitStack() as stack:
        a, b, o = [await stack.enter_async_context(scripted(good)) for _ in "abo"]
        gateway = await stack.enter_async_context(running_gateway(ROUTES.format(a=a.url, b=b.url, o=o.url)))
        await gateway.until_ready("a", "b")
        for case in asked:
            for state in gateway.gateway.fleet.states.values():
                state.evidence.succeeded()
                state.facts.pooled = NO_POOLED_FACTS  # the size of one case's vectors is nothing to the next one
            (o if case.ollama else a).play(case.play)
            check(await ask(House(gateway, a, b, o), case), case)
        await nothing_failed(gateway)


def check(reply: RawReply, case: Case) -> None:
    assert reply.status == 200, (reply, case)
    assert reply.ended or b"stream_interrupted" in reply.body, (reply, case)
    assert b"internal_error" not in reply.body, (reply, case)


async def nothing_failed(gateway: RunningGateway) -> None:
    assert gateway.gateway.failed_parts() == {}
    assert set(gateway.gateway._lost().values()) == {0}
    for page in PAGES:
        assert (await gateway.client.get(page)).status_code == 200, page


@settings(max_examples=12)  # each starts a gateway
@given(st.lists(cases, min_size=15, max_size=25))
def test_no_answer_makes_the_gateway_fail(asked: list[Case]) -> None:
    asyncio.run(follow(asked))
