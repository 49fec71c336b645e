"""The way of a stream's bytes from one backend to the client, while nothing about the attempt changes.

Most reads of a stream hold content behind content. They cross in the callback in which they arrive (`pass_on`), without
waking the task of the request. Whatever else a read holds is left to the task (attempt.py)."""

from __future__ import annotations

from gateway.domain.backend import BackendState
from gateway.domain.endpoints import Endpoint
from gateway.domain.reason import quoting
from gateway.domain.request_timer import RequestTimer
from gateway.domain.upstream import Response, read_counted
from gateway.inspection.assembler import begins_events, events_of
from gateway.inspection.error_replies import Verdict
from gateway.inspection.sent_text import SentText
from gateway.inspection.stream_track import StreamTrack
from gateway.large_bodies import LARGE, apart
from gateway.metrics.registry import Histogram
from gateway.proxy.exchange import Exchange
from gateway.proxy.failures import AttemptFailed
from gateway.proxy.notice import Notice
from gateway.proxy.reply import HEARTBEAT, StreamReply
from gateway.transport.sse import Framer, HeldBytes

KIND_MOST = 100  # characters of a content-type in a message


def is_stream(response: Response) -> bool:
    return "text/event-stream" in response.headers.get("content-type", "").lower()


async def read_otherwise(response: Response, endpoint: Endpoint, most: int, exchange: Exchange) -> bytes:
    """The first events of a stream whose content type is another: they are events all the same, or are made of a whole
    answer (up to `most` bytes). Raises AttemptFailed for anything else."""
    first = await response.read_some()
    if begins_events(first):
        return first
    events = events_of(first + await read_counted(response, most, exchange.share.add), endpoint)
    if events is None:
        kind = response.headers.get("content-type", "no content-type")[:KIND_MOST]
        raise AttemptFailed(Verdict("failed", quoting("answered a stream with another type", repr(kind))))
    return events


class StreamRelay:
    """`out`: bytes for the client from the latest read, not sent yet. `begun`: the backend has sent output.
    `unread`: the latest read, which may complete a large event. `kept`: what was sent, where another backend could go
    on with it. `notice`: the line for the end of the text, if there is one."""

    __slots__ = (
        "_framer",
        "_gaps",
        "_held",
        "_kept",
        "_notice",
        "_reply",
        "_state",
        "_timer",
        "begun",
        "out",
        "track",
        "unread",
    )

    def __init__(
        self,
        reply: StreamReply,
        track: StreamTrack,
        state: BackendState,
        timer: RequestTimer,
        gaps: Histogram,
        kept: SentText | None,
        notice: Notice | None = None,
    ) -> None:
        self.track = track
        self.out = b""
        self.unread = b""
        self.begun = False
        self._reply = reply
        self._state = state
        self._timer = timer
        self._gaps = gaps
        self._kept = kept
        self._notice = notice
        self._framer = Framer()
        self._held = HeldBytes(reply.exchange.share)

    def pass_on(self, data: bytes) -> bool:
        """Read `data` and send what it holds, if that needs nothing else. False = `out` and `track` are to be looked
        at."""
        if self._pass_one(data):
            return True
        track, reply, begun = self.track, self._reply, self.begun
        if self._framer.unfinished > LARGE:
            self._held.set(self._framer.unfinished + len(data))
            self.unread = data
            return False
        self._read(self._framer.feed(data))
        if track.failure is not None or track.done or track.disobeyed or not begun:
            return False
        if not self.out:
            return True
        exchange = reply.exchange
        if not reply.committed or (track.content and not reply.content) or exchange.flow.write_paused:
            return False
        exchange.put(self.out)
        self._timer.beat_at = self._timer.heard + HEARTBEAT
        if self._kept is not None:
            self._kept.add(self.out)
        self.out = b""
        return True

    def _pass_one(self, data: bytes) -> bool:
        """Send `data` if it is one event that only adds to the text, the thoughts or the arguments of a call, as nearly
        all do. False: nothing was done."""
        reply = self._reply
        if not (self.begun and reply.committed and self._framer.between) or reply.exchange.flow.write_paused:
            return False
        if self.track.content and not reply.content:
            return False  # the first content commits: the task sees to it
        out = self.track.pass_text(data)
        if out is None and self._framer.is_event(data):
            out = self.track.pass_event(data)
        if out is None:
            return False
        timer = self._timer
        now = self._state.last_event = timer.now()
        self._gaps.observe(now - timer.heard)
        timer.heard, timer.beat_at = now, now + HEARTBEAT
        reply.exchange.put(out)
        if self._kept is not None:
            self._kept.add(out)
        return True

    async def read_apart(self) -> None:
        """Read `unread`, without keeping other requests waiting."""
        data, self.unread = self.unread, b""
        events = self._framer.feed(data)
        self._read(events, await self._apart(events))

    async def finish(self) -> None:
        """The backend's answer has ended."""
        large, events = self._framer.unfinished > LARGE, self._framer.finish()
        self._read(events, await self._apart(events) if large else None)

    async def send(self) -> None:
        """Send `out`."""
        out, self.out = self.out, b""
        await self._reply.send(out)
        if self._kept is not None:
            self._kept.add(out)

    async def _apart(self, events: list[bytes]) -> bytes:
        return await apart(self._reply.exchange.caller.sender, lambda: self.track.feed(events))

    def _read(self, events: list[bytes], out: bytes | None = None) -> None:
        """Sets `out` (given where the events are read already), and notes when the backend was heard."""
        track, timer = self.track, self._timer
        self.out = track.feed(events) if out is None else out
        if self._notice is not None:
            self.out = self._notice.put_into(self.out)
        self._held.set(self._framer.unfinished + track.held.size)
        if not track.progress:
            return
        now = self._state.last_event = timer.now()
        if self.begun:
            self._gaps.observe(now - timer.heard)
        elif track.content or track.reasoning:
            self.begun = True
            timer.expect(self._state.backend.timeouts.idle)
        timer.heard = now
