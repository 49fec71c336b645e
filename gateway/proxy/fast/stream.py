"""A streamed answer on the fast lane: its events are passed on as they arrive (proxy/stream_relay.py), from the first
content to a complete end."""

from __future__ import annotations

import time

from gateway.inspection.stream_track import StreamTrack
from gateway.proxy.attempt import LAST_MOST, TAIL, is_stream
from gateway.proxy.fast.request import FastRequest
from gateway.proxy.fast.under_way import UnderWay
from gateway.proxy.feedback import Feedback, count_found
from gateway.proxy.reply import HEARTBEAT, StreamReply, base_headers
from gateway.proxy.stream_relay import StreamRelay
from gateway.routing.inspection_policy import policy_for
from gateway.transport.h1_response import H1Response


class FastStream(FastRequest):
    """Between the end of the client's stream and that of the backend's answer, it is `draining`."""

    __slots__ = ("_draining",)

    _draining: StreamTrack | None

    def _read(self, response: H1Response) -> None:
        """Send what has arrived, if that needs nothing else."""
        under_way = self._under_way or self.begin_under_way()
        relay = under_way.relay
        if relay is None:
            if not is_stream(response):
                self.hand_over()
                return
            relay = self._begin_relay(under_way)
        if (data := response.take()) and not relay.pass_on(data):
            if not self._pass_on_other(under_way, relay):
                under_way.unread = data
                self.hand_over()
                return
            if self._draining is not None:
                return
        if response.complete or response.failure is not None:
            self.hand_over()

    def _begin_relay(self, under_way: UnderWay) -> StreamRelay:
        self._draining = None
        member, request, timer = self.member, under_way.request, under_way.timer
        policy, thoughts = member.policy, member.thoughts
        if request.tools:
            policy, thoughts = policy_for(request, self.decision.alias, member.candidate, time.monotonic())
        base = base_headers(self.id, self.decision.alias.name)
        reply = StreamReply(under_way.exchange, timer, request.endpoint, request.model, self.id, base)
        track = StreamTrack(request, reply.identity, policy, thoughts)
        gaps = self.services.metrics.inter_token.child(member.state.name)
        under_way.reply = reply
        relay = under_way.relay = StreamRelay(reply, track, member.state, timer, gaps, None)
        return relay

    def _pass_on_other(self, under_way: UnderWay, relay: StreamRelay) -> bool:
        """What the relay has left: the first content, and the end of a complete stream. False = something else."""
        track, reply, exchange = relay.track, under_way.reply, under_way.exchange
        assert reply is not None
        if relay.unread or track.failure is not None or track.disobeyed or not exchange.ready:
            return False
        ends = track.complete and len(relay.out) <= LAST_MOST
        if track.done and not ends:
            return False
        if relay.out:
            if not reply.committed:
                self._begin_reply(reply, under_way)
            if track.content and not reply.content:
                reply.content = True
                under_way.first_token = under_way.timer.now()
        if ends:
            self._finish(under_way, relay)
        elif relay.out:
            exchange.put(relay.out)
            relay.out = b""
            under_way.timer.beat_at = under_way.timer.heard + HEARTBEAT
        return True

    def _begin_reply(self, reply: StreamReply, under_way: UnderWay) -> None:
        member = self.member
        reply.committed, reply.served_by = True, member.state.name
        lines = b"%sx-request-id: %s\r\n%s" % (self.decision.stream_lines, self.id.encode(), member.lines)
        under_way.exchange.begin(200, lines, chunked=True)

    def _finish(self, under_way: UnderWay, relay: StreamRelay) -> None:
        """Send the end of the stream, then wait for that of the answer, so that its connection can be used again."""
        track, exchange, response = relay.track, under_way.exchange, self._response
        track.conclude()
        several = len(self.decision.snapshot.clients) > 1
        feedback = Feedback(under_way.request, self.id, several_clients=several)
        count_found(track, self.member.state, feedback, self.services.metrics)
        exchange.stop_watching()
        exchange.write_last(relay.out + b"data: [DONE]\n\n")
        self._draining = track
        self.answered_whole = True
        assert response is not None
        if response.complete:
            self._end_stream(under_way, track)
        else:
            response.watcher = self._drained
            under_way.timer.rest()
            under_way.timer.expect(TAIL)

    def _drained(self) -> None:
        """More of the answer has come behind its last event."""
        response, under_way, track = self._response, self._under_way, self._draining
        if response is None or under_way is None or track is None:
            return
        response.take()
        if response.complete or response.failure is not None:
            self._end_stream(under_way, track)

    def _end_stream(self, under_way: UnderWay, track: StreamTrack) -> None:
        self._draining = None
        self._end(under_way.first_token, track, track.usage)
        under_way.exchange.completed()

    def _interrupted(self, reason: BaseException) -> None:
        if not self.answered_whole:
            super()._interrupted(reason)
        elif self._draining is not None and self._under_way is not None:
            self._end_stream(self._under_way, self._draining)
