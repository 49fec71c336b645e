"""One stream on the fast lane: a relay takes what is content behind content, or the end."""

from __future__ import annotations

import time

from gateway.admission.caller import Caller
from gateway.admission.memory import Memory
from gateway.domain.request import InferenceRequest
from gateway.domain.request_timer import RequestTimer
from gateway.inspection.stream_track import StreamTrack
from gateway.proxy.attempt import LAST_MOST, TAIL
from gateway.proxy.fast.client import FastClient
from gateway.proxy.fast.decisions import Decision
from gateway.proxy.fast.request import FastRequest, Fields
from gateway.proxy.fast.under_way import UnderWay
from gateway.proxy.feedback import Feedback, count_found
from gateway.proxy.reply import HEARTBEAT, StreamReply, base_headers
from gateway.proxy.services import Services
from gateway.proxy.stream_relay import StreamRelay, is_stream
from gateway.routing.inspection_policy import policy_for
from gateway.transport.h1_response import H1Response
from gateway.transport.sse import DONE

DONE_EVENT = b"data: %s\n\n" % DONE


class FastStream(FastRequest):
    """Between the end of the client's stream and that of the backend's answer, it is `draining`."""

    __slots__ = ("_draining",)

    def __init__(
        self,
        services: Services,
        memory: Memory,
        client: FastClient,
        caller: Caller,
        decision: Decision,
        fields: Fields,
        since: float,
    ) -> None:
        super().__init__(services, memory, client, caller, decision, fields, since)
        self._draining = False

    def _set(self, under_way: UnderWay, request: InferenceRequest) -> None:
        super()._set(under_way, request)
        under_way.timer.beat_at = self.began + self.member.state.backend.timeouts.hold

    def _read(self, response: H1Response) -> None:
        """Send what has arrived, if that needs nothing else."""
        under_way = self._under_way or self.begin_under_way()
        relay = under_way.relay
        if relay is None:
            if under_way.error is not None or not is_stream(response):
                self.hand_over()
                return
            relay = self._begin_relay(under_way)
            response.follower = relay.goes_on
        data = response.take()
        if data and not relay.pass_on(data):
            if not self._pass_on_other(under_way, relay):
                under_way.unread = data
                self.hand_over()
                return
            if self.answered_whole:
                return
        if response.complete or response.failure is not None:
            self.hand_over()

    def _begin_relay(self, under_way: UnderWay) -> StreamRelay:
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
        if relay.unread or track.failure is not None or track.disobeyed or exchange.flow.write_paused:
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
        under_way.exchange.begin(200, self._lines(), chunked=True)

    def _lines(self) -> bytes:
        """The fields of the head of the client's stream."""
        return b"%sx-request-id: %s\r\n%s" % (self.decision.stream_lines, self.id.encode(), self.member.lines)

    def _finish(self, under_way: UnderWay, relay: StreamRelay) -> None:
        """Send the end of the stream, then wait for that of the answer, so that its connection can be used again."""
        track, exchange, response = relay.track, under_way.exchange, self._response
        track.conclude()
        several = len(self.decision.snapshot.clients) > 1
        feedback = Feedback(under_way.request, self.id, several_clients=several)
        count_found(track, self.member.state, feedback, self.services.metrics)
        exchange.stop_watching()
        exchange.write_last(relay.out + DONE_EVENT)
        self.answered_whole = self._draining = True
        assert response is not None
        if response.complete:
            self._end_stream()
        else:
            response.watcher, response.follower = self._drained, None
            self._time_tail(under_way.timer)

    # -- its end --------------------------------------------------------------------------------------------------

    def _time_tail(self, timer: RequestTimer) -> None:
        timer.rest()
        timer.expect(TAIL)

    def expect(self, response: H1Response) -> None:
        """As `Taker`."""
        self._response = response
        if self._draining:
            response.watcher = self._drained

    def _drained(self) -> None:
        """More of the answer has come behind its last event."""
        response = self._response
        if response is None or not self._draining:
            return
        response.take()
        if response.complete or response.failure is not None:
            self._end_stream()

    def _end_stream(self) -> None:
        under_way = self._under_way
        self._draining = False
        assert under_way is not None
        assert under_way.relay is not None
        track = under_way.relay.track
        self._end(under_way.first_token, track, track.usage)
        self._client.completed()

    # -- something else -------------------------------------------------------------------------------------------

    def _interrupted(self, reason: BaseException) -> None:
        if not self.answered_whole:
            super()._interrupted(reason)
        elif self._draining:
            self._end_stream()
