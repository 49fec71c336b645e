"""One stream on the fast lane. As long as it goes as one before, it is followed by that one's form; then, or where
there is none yet, a relay takes what is content behind content, or the end."""

from __future__ import annotations

import time

from gateway.admission.caller import Caller
from gateway.admission.memory import Memory
from gateway.domain.request import InferenceRequest
from gateway.domain.request_timer import RequestTimer
from gateway.inspection.plain_stream import DONE, Example, PlainStream
from gateway.inspection.rewrite import Identity
from gateway.inspection.stream_track import StreamTrack
from gateway.metrics.counters import Histogram
from gateway.proxy.attempt import LAST_MOST, TAIL, is_stream
from gateway.proxy.fast.client import FastClient
from gateway.proxy.fast.decisions import Decision
from gateway.proxy.fast.request import FastRequest, Fields
from gateway.proxy.fast.under_way import UnderWay
from gateway.proxy.feedback import Feedback, count_found
from gateway.proxy.reply import HEARTBEAT, StreamReply, base_headers
from gateway.proxy.services import Services
from gateway.proxy.stream_relay import StreamRelay
from gateway.routing.inspection_policy import policy_for
from gateway.transport.h1_response import H1Response


class FastStream(FastRequest):
    """Between the end of the client's stream and that of the backend's answer, it is `draining`."""

    __slots__ = ("_draining", "_example", "_first_token", "_gaps", "_heard", "_plain")

    _gaps: Histogram  # once there is content
    _heard: float  # when the backend last sent something, in the loop's seconds, while `_plain` is followed

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
        self._plain: PlainStream | None = None  # as long as it goes as one before
        # What has come, where a form is to be found; without what only goes on with the text.
        self._example: Example | None = None
        self._draining = False
        self._first_token = 0.0  # when the first content was sent, in the loop's seconds

    # -- as one before --------------------------------------------------------------------------------------------

    def goes_on(self, data: bytes) -> bool:
        """As `Taker`."""
        plain, client, under_way = self._plain, self._client, self._under_way
        if plain is None or client.flow.write_paused:
            return False
        try:
            out = plain.pass_event(data)
            if out is None:
                return False
            now = self.member.state.last_event = client.loop.time()
            self._gaps.observe(now - self._heard)
            self._heard = now
            client.pass_on(out)
            if under_way is not None:
                under_way.timer.heard, under_way.timer.beat_at = now, now + HEARTBEAT
        except Exception as error:
            self._failed(error)
            return self.answered_whole
        return True

    def streamed(self, data: bytes, *, last: bool) -> bool:
        """As `Taker`."""
        if self._under_way is not None and self._under_way.error is not None:
            return False
        try:
            return self._follow(data, last=last)
        except Exception as error:
            self._failed(error)
            return self.answered_whole

    def _follow(self, data: bytes, *, last: bool) -> bool:
        """Send what has come. False = the stream goes another way, and nothing was done."""
        plain, client, under_way = self._plain, self._client, self._under_way
        if self._draining:
            if last:
                self._end_stream()
            return True
        if plain is None:
            plain = self._begin_plain(under_way)
        if plain is None or client.flow.write_paused or len(data) > LAST_MOST:
            return False
        if not (data or last):
            self._plain = plain
            return True
        begun = plain.content
        out = plain.feed(data, last=last)
        if out is None:
            return False
        now = self.member.state.last_event = client.loop.time()
        if begun:
            self._gaps.observe(now - self._heard)
            if out and not plain.done:
                client.pass_on(out)
        elif plain.content:
            self._gaps = self.services.metrics.inter_token.child(self.member.state.name)
            self._first_token = now
            client.begin_stream(self._lines(), out)
            out = b""
        self._plain, self._heard = plain, now
        if plain.done:
            client.end_stream(out + DONE)
            self.answered_whole = self._draining = True
        if last:
            self._end_stream()
        elif under_way is not None:
            self._set_for(plain, under_way)
        return True

    def _begin_plain(self, under_way: UnderWay | None) -> PlainStream | None:
        """None = there is no form, or a relay has begun, or the connection does not stay open."""
        form = self.member.forms.form
        if form is None or not self._client.is_ready():
            return None
        keep_alive = self.keep_alive if under_way is None else under_way.exchange.keep_alive and not under_way.relay
        self._heard = self.began
        return PlainStream(form, self.member.thoughts) if keep_alive else None

    def _set(self, under_way: UnderWay, request: InferenceRequest) -> None:
        super()._set(under_way, request)
        under_way.timer.beat_at = self.began + self.member.state.backend.timeouts.hold
        if self._plain is not None:
            self._set_for(self._plain, under_way)

    def _set_for(self, plain: PlainStream, under_way: UnderWay) -> None:
        timer = under_way.timer
        timer.heard = self._heard
        if plain.done:
            self._time_tail(timer)
        elif plain.content:
            timer.budget, timer.beat_at = self.member.state.backend.timeouts.idle, self._heard + HEARTBEAT
            under_way.first_token = self._first_token

    # -- with a relay ---------------------------------------------------------------------------------------------

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
        if self._example is not None:
            self._example.add(data)
        if data and not relay.pass_on(data):
            if not self._pass_on_other(under_way, relay):
                under_way.unread = data
                self.hand_over()
                return
            if self._draining:
                return
        if response.complete or response.failure is not None:
            self.hand_over()

    def _begin_relay(self, under_way: UnderWay) -> StreamRelay:
        member, request, timer, plain = self.member, under_way.request, under_way.timer, self._plain
        policy, thoughts = member.policy, member.thoughts
        if request.tools:
            policy, thoughts = policy_for(request, self.decision.alias, member.candidate, time.monotonic())
        base = base_headers(self.id, self.decision.alias.name)
        reply = StreamReply(under_way.exchange, timer, request.endpoint, request.model, self.id, base)
        track = StreamTrack(request, reply.identity, policy, thoughts)
        gaps = self.services.metrics.inter_token.child(member.state.name)
        under_way.reply = reply
        relay = under_way.relay = StreamRelay(reply, track, member.state, timer, gaps, None)
        if plain is not None:
            self._plain = None
            relay.go_on(plain)
            reply.committed = reply.content = plain.content
            reply.served_by = member.state.name if plain.content else ""
        elif member.forms.wanted and policy is None:
            self._example = Example()
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
        exchange.write_last(relay.out + DONE)
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
        under_way, plain = self._under_way, self._plain
        self._draining = False
        if plain is not None:
            self._end(self._first_token, None, plain.usage)
        else:
            assert under_way is not None
            assert under_way.relay is not None
            track = under_way.relay.track
            self._end(under_way.first_token, track, track.usage)
        self._client.completed()
        if self._example is not None and under_way is not None:
            self._learn_form(self._example, under_way.request)

    def _learn_form(self, example: Example, request: InferenceRequest) -> None:
        member = self.member

        def track() -> StreamTrack:
            return StreamTrack(request, Identity(), None, member.thoughts)

        wants_usage = request.wants_usage or request.own_usage
        member.forms.learn(example, track, member.thoughts, wants_usage=wants_usage)

    # -- something else -------------------------------------------------------------------------------------------

    def _interrupted(self, reason: BaseException) -> None:
        if not self.answered_whole:
            super()._interrupted(reason)
        elif self._draining:
            self._end_stream()

    def hand_over(self) -> None:
        """As for any request. The relay goes on with what was followed by its form."""
        if self._plain is not None and not (self._handed_over or self.answered_whole):
            try:
                self._begin_relay(self.begin_under_way())
            except Exception as error:
                self._failed(error)
        super().hand_over()
