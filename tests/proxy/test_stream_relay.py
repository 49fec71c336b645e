"""The relay of a stream: what crosses in the callback of a read, what is left to the request's task, and that both
ways give the client the same bytes."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admission.memory import Memory, Share
from gateway.config.load import load_text
from gateway.domain.backend import BackendState
from gateway.domain.endpoints import CHAT
from gateway.domain.health_machine import Health
from gateway.domain.request_timer import Pulse, RequestTimer
from gateway.inspection.rewrite import ReplyIdentity
from gateway.inspection.sent_text import SentText
from gateway.inspection.stream_track import StreamTrack
from gateway.metrics.registry import Histogram
from gateway.proxy.inner_exchange import InnerExchange
from gateway.proxy.reply import StreamReply
from gateway.proxy.stream_relay import StreamRelay
from gateway.transport.sse import Framer
from tests.proxy.streams.stage import DONE, captured, event
from tests.routing.parts import request

STREAMS = ("chat_stream", "chat_stream_usage_cont", "reason_stream", "tool_auto_scripted_stream", "chat_n2_stream")
ROLE, END = event({"role": "assistant", "content": ""}), event({}, "stop")
HI, YOU, THOUGHT, END = (
    event({"content": "Hi"}),
    event({"content": " you"}),
    event({"reasoning": "Hm"}),
    event({}, "stop"),
)


class Pace:
    """How fast the client reads."""

    write_paused = False


class Client(InnerExchange):
    """Keeps what it gets."""

    flow: Pace

    def __init__(self) -> None:
        share = Share(Memory(None))
        super().__init__({}, "local", b"", share, share)
        self.flow = Pace()
        self.puts = 0  # pieces that were not waited for

    def put(self, data: bytes) -> None:
        self.puts += 1
        self.body += data


@dataclass
class Rig:
    """A relay to a client, and what the request's task does with the reads that are left to it."""

    choices: int = 1
    client: Client = field(default_factory=Client)
    left: int = 0  # reads that were left to the task

    def __post_init__(self) -> None:
        backend = load_text("backends: {a: {url: 'http://127.0.0.1:9', model: m}}", environ={}).snapshot.backends["a"]
        now = time.monotonic()
        self.state = BackendState(backend, None, Health("a", backend.health, False, since=now, born=now))
        task = asyncio.current_task()
        assert task is not None
        self.timer = RequestTimer(Pulse(), task, lambda: None)
        asked = request(stream=True, n=self.choices)
        self.reply = StreamReply(self.client, self.timer, CHAT, "chat", "r1", [])
        self.sent = SentText(lambda _: None)
        self.track = StreamTrack(asked, self.reply.identity)
        self.gaps = Histogram([0.1, 1.0])
        self.relay = StreamRelay(self.reply, self.track, self.state, self.timer, self.gaps, self.sent)

    async def read(self, data: bytes) -> bool:
        """One read. False = it was left to the task, which has sent it now."""
        if self.relay.pass_on(data):
            return True
        self.left += 1
        if self.relay.out:
            await self.reply.begin("a", [])
            self.reply.content = self.track.content
            await self.relay.send()
        return False


async def test_content_behind_content_crosses_at_once() -> None:
    rig = Rig()
    assert not await rig.read(ROLE + HI)
    assert await rig.read(YOU)
    assert await rig.read(YOU + YOU)
    assert rig.client.puts == 2
    assert bytes(rig.client.body).count(b" you") == 3
    assert sum(rig.gaps.counts) == 2
    assert rig.sent.text == "Hi you you you"  # for another backend, should this one break


async def test_a_comment_between_contents_needs_no_task() -> None:
    rig = Rig()
    await rig.read(ROLE + HI)
    assert await rig.read(b": ping\n\n")
    assert await rig.read(b": half")
    assert await rig.read(b" a comment\n\n")
    assert bytes(rig.client.body).endswith(b": ping\n\n: half a comment\n\n")


async def test_thoughts_behind_thoughts_cross_at_once_and_the_first_content_does_not() -> None:
    rig = Rig()
    assert not await rig.read(ROLE + THOUGHT)
    assert await rig.read(THOUGHT)
    assert not await rig.read(HI)
    assert await rig.read(YOU)


@pytest.mark.parametrize(
    "last",
    [END + DONE, b'data: {"error":{"message":"boom"}}\n\n'],
    ids=["the end", "an error"],
)
async def test_the_end_of_a_stream_is_left_to_the_task(last: bytes) -> None:
    rig = Rig()
    await rig.read(ROLE + HI)
    assert not await rig.read(last)


async def test_a_client_that_reads_slowly_is_waited_for_by_the_task() -> None:
    rig = Rig()
    await rig.read(ROLE + HI)
    rig.client.flow.write_paused = True
    assert not await rig.read(YOU)
    rig.client.flow.write_paused = False
    assert await rig.read(YOU)
    assert (rig.client.puts, bytes(rig.client.body).count(b" you")) == (1, 2)


async def test_a_status_that_was_not_sent_is_left_to_the_task() -> None:
    rig = Rig()
    assert not rig.relay.pass_on(ROLE + HI)
    assert not rig.relay.pass_on(YOU)  # the task has not seen the first read yet
    assert rig.client.puts == 0


async def test_each_piece_that_crosses_delays_the_next_heartbeat() -> None:
    rig = Rig()
    await rig.read(ROLE + HI)
    rig.timer.beat_at = 0.0
    assert await rig.read(YOU)
    assert rig.timer.beat_at > rig.timer.now()
    assert rig.state.last_event == rig.timer.heard


cuts = st.lists(st.integers(1, 400), min_size=1, max_size=40)


@settings(deadline=None)
@given(name=st.sampled_from(STREAMS), sizes=cuts, slow=st.lists(st.booleans(), min_size=1, max_size=8))
async def test_however_it_is_cut_and_read_the_client_gets_the_same_bytes(
    name: str, sizes: list[int], slow: list[bool]
) -> None:
    stream, choices = b"".join(captured(name)), 2 if "n2" in name else 1
    rig, at, number = Rig(choices=choices), 0, 0
    while at < len(stream):
        size = sizes[number % len(sizes)]
        rig.client.flow.write_paused = slow[number % len(slow)]
        await rig.read(stream[at : at + size])
        at, number = at + size, number + 1
    alone = StreamTrack(request(stream=True, n=choices), ReplyIdentity())
    expected = alone.feed(Framer().feed(stream))
    assert bytes(rig.client.body) == expected
    assert (rig.track.done, rig.track.whole) == (alone.done, alone.whole) == (True, True)
    assert all(slow) or rig.client.puts or rig.left


async def test_the_first_output_of_a_stream_that_goes_on_elsewhere_is_left_to_the_task() -> None:
    """The task tells the client who goes on."""
    rig = Rig()
    rig.reply.committed = rig.reply.content = True  # by the backend before
    assert not await rig.read(ROLE + HI)
    assert await rig.read(YOU)
