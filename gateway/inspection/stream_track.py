"""Follows one attempt's stream event by event, without effects: which bytes may be sent to the client now, and is the
stream complete? inspector.py checks and mends the content.

The preamble (comments, role chunks) is held until the backend has sent content, and dropped if the attempt fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from gateway.domain.request import InferenceRequest
from gateway.domain.tokens import count_of
from gateway.domain.upstream import ErrorTold, PoolFull, ProtocolFailure, UpstreamFailure
from gateway.inspection.assembler import bare_objects, whole_as_events
from gateway.inspection.event_frame import LESS, EventFrame, TextKind
from gateway.inspection.inspector import Inspector
from gateway.inspection.known_errors import is_pool_full
from gateway.inspection.policy import InspectionPolicy
from gateway.inspection.reasoning import Thoughts
from gateway.inspection.rewrite import ReplyIdentity, Rewriter, Rewrites, rebuilt, with_ends
from gateway.inspection.shape import brief, error_in, is_no_chunk
from gateway.inspection.unparsed import as_answer, calls_told
from gateway.transport.sse import (
    DONE,
    Choice,
    Chunk,
    content_of,
    data_of,
    error_line,
    error_of,
    has_content,
    has_reasoning,
    is_plain,
    is_role,
    output_size,
    read_chunk,
)

HELD_MOST = 64 * 1024  # bytes of content that are held while the required call has not come
PREAMBLE_MOST = 8 * 1024 * 1024  # bytes before the first content: a role chunk may contain a long prompt's token ids
PREAMBLE_EVENTS = 65_536  # the same in events: keep-alive comments while a request waits
TOKEN_MOST = 16  # bytes of text in an event that is one token
_ERROR_EVENT = re.compile(rb"^event: ?error\s*$", re.MULTILINE)
REPEATS = 50  # identical events in a row that count as garbage


class HeldEvents:
    """Events that are not sent yet: they have no content, or content that another backend may still have to replace."""

    __slots__ = ("_all_bytes", "_count", "_events", "content_bytes", "size")

    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._count = 0  # events that were held or dropped before content
        self._all_bytes = 0  # bytes of those events
        self.content_bytes = 0  # of held events with content
        self.size = 0  # bytes of the events that are held now

    def __bool__(self) -> bool:
        return bool(self._events)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._events)

    @property
    def too_much(self) -> bool:
        """Were so many events held or dropped before any content that the stream counts as broken?"""
        return self._count > PREAMBLE_EVENTS or self._all_bytes > PREAMBLE_MOST

    def add(self, event: bytes) -> None:
        self._events.append(event)
        self.size += len(event)
        self._count += 1
        self._all_bytes += len(event)

    def drop(self, event: bytes) -> None:
        """Count an event that will not be sent."""
        self._count += 1
        self._all_bytes += len(event)

    def release(self) -> list[bytes]:
        events, self._events, self.size = self._events, [], 0
        return events


class StreamTrack(Inspector):
    """Follows one attempt. `feed` takes whole events and returns the bytes to send.

    `content`: this attempt has sent content; `reasoning`: it has sent thoughts; `progress`: the events last fed were
    more than comments; `done`: [DONE] has arrived; `held`: events that are not sent yet; `pool_full`: it failed
    because the server's requests have filled their common memory; `told`: the data of the event that told an error;
    `output_events`, `output_bytes`: how many events had text, thoughts or a part of a call, and about how much. The
    other attributes are the inspector's."""

    __slots__ = (
        "_frame",
        "_holds",
        "_last",
        "_raw",
        "_rewriter",
        "_same",
        "content",
        "done",
        "held",
        "output_bytes",
        "output_events",
        "pool_full",
        "progress",
        "reasoning",
        "told",
    )

    def __init__(
        self,
        request: InferenceRequest,
        identity: ReplyIdentity,
        policy: InspectionPolicy | None = None,
        thoughts: Thoughts | None = None,
    ) -> None:
        super().__init__(request, policy, thoughts)
        self._rewriter = Rewriter(identity, request.model)
        self._holds = self._policy.hold
        self._raw = False  # content has begun and its inspection is finished: events are passed on unparsed
        self._frame: EventFrame | None = None  # of the kind of text that came last
        self._last = b""
        self._same = 0  # events in a row that equal `_last`
        self.held = HeldEvents()
        self.output_events = 0
        self.output_bytes = 0
        self.content = False
        self.reasoning = False
        self.progress = False
        self.done = False
        self.pool_full = False
        self.told: bytes | None = None

    @property
    def whole(self) -> bool:
        """Does every requested choice have its finish_reason, or, with [DONE], every one that has begun? Some servers
        ignore `n`. ([DONE] alone proves nothing: vLLM sends it after an error too.)"""
        if self.failure is not None or not self.finished:
            return False
        return len(self.finished) >= self._request.choices or (
            self.done and self._answers.keys() <= self.finished.keys()
        )

    @property
    def complete(self) -> bool:
        """Is the stream whole and ended with [DONE], with all its content sent or being sent now?"""
        return self.done and self.content and self.whole and not (self.disobeyed or self.held)

    def why(self) -> UpstreamFailure:
        """The failure of the stream."""
        words = self.failure or ""
        if self.pool_full:
            return PoolFull(words)
        return UpstreamFailure(words) if self.told is None else ErrorTold(words, self.told)

    @property
    def model(self) -> object:
        """The model that the stream names."""
        return self._rewriter.served

    @property
    def rewrites(self) -> Rewrites:
        """What is replaced in each event, once something was sent."""
        return self._rewriter.rewrites

    def repeat(self, event: bytes, same: int) -> None:
        """The latest event was this one, and so were `same` before it, which were passed on elsewhere."""
        self._last, self._same = event, same

    # -- each event -----------------------------------------------------------------------------------------------

    def feed(self, events: Iterable[bytes]) -> bytes:
        """The bytes to send for these events; b"" before content. Sets `failure` if one of them is an error."""
        self.progress = False
        out: list[bytes] = []
        for event in events:
            if event == self._last:
                self._same += 1
                if self._same == REPEATS and self._has_output(event):
                    self.violations.add("garbage")  # one token again and again
            else:
                self._last, self._same = event, 0
            if self._raw and is_plain(event):
                self.progress = True
                if event.find(b"think>") >= 0:
                    self._look_for_close(event)
                self._count_unread(event)
                out.append(self._rewriter.apply(event))
            else:
                try:
                    self._feed_framed(event, out)
                except ProtocolFailure as failure:
                    self.failure = str(failure)
            if self.failure is not None or self.disobeyed:
                break
        return out[0] if len(out) == 1 else b"".join(out)

    def pass_text(self, data: bytes) -> bytes | None:
        """What `feed` returns for `data`, if it is one whole event that differs from an earlier one only in its text,
        in which nothing is found: nearly all are. None = it is something else, or not sure; nothing was done."""
        frame = self._frame
        if frame is None or (text := frame.text_in(data)) is None:
            return None
        same = self._same + 1 if data == self._last else 0
        if same == REPEATS:
            return None
        if frame.kind is not TextKind.CONTENT:
            if not self._passes_unread(frame, text):
                return None
        elif self._raw:
            if LESS in text:
                return None
        elif not self._answers[0].passes(text.decode("utf-8", "replace")):
            return None
        self._last, self._same = data, same
        self.output_events += 1
        self.output_bytes += len(text)
        return b"".join((frame.sent_before, text, frame.sent_after))

    def _passes_unread(self, frame: EventFrame, text: bytes) -> bool:
        """Note a piece of the thoughts or of a call's arguments, which is sent as it is. False: nothing was done."""
        if self.held:
            return False
        answer = self._answers[0]
        if frame.kind is TextKind.THOUGHTS:
            return answer.passes_thoughts(text)
        return self.content and answer.passes_arguments(frame.call, text)

    def pass_event(self, event: bytes) -> bytes | None:
        """What `feed` returns for more text that is not inspected any more. None = something else; nothing done."""
        same = self._same + 1 if event == self._last else 0
        if same == REPEATS or not self._raw or event.find(b"think>") >= 0 or not is_plain(event):
            return None
        self._last, self._same = event, same
        self._count_unread(event)
        return self._rewriter.apply(event)

    def _count_unread(self, event: bytes) -> None:
        self.output_events += 1
        at = event.find(b'"content":"') + 11
        if at > 10 and (end := event.find(b'"}', at)) > at:
            self.output_bytes += end - at

    def output_tokens(self, tokens_in: Callable[[int], int]) -> int:
        """Tokens of what has come so far: as the backend has counted them, else one for each event; where the events
        are too long for that, as many as `tokens_in` so many bytes."""
        reported = count_of(self.usage.get("completion_tokens")) if self.usage is not None else 0
        events, size = self.output_events, self.output_bytes
        return reported or (events if size <= events * TOKEN_MOST else max(events, tokens_in(size)))

    @staticmethod
    def _has_output(event: bytes) -> bool:
        """Does this event have content or thoughts? (Keep-alive events may repeat.)"""
        chunk = read_chunk(data_of(event) or b"")
        return chunk is not None and any(has_content(choice) or has_reasoning(choice) for choice in chunk.choices or ())

    def _look_for_close(self, event: bytes) -> None:
        """Detect closing tags of thoughts in an event that is passed on unparsed."""
        chunk = read_chunk(data_of(event) or b"")
        if chunk is not None and self._chat:
            self.note_close(chunk.choices or [])

    def _feed_framed(self, event: bytes, out: list[bytes]) -> None:
        """Handle an event that differs from an earlier one only in its text, as nearly all do; else read it."""
        frame = self._frame
        if frame is None or (text := frame.text_in(event)) is None:
            self._feed_one(event, out)
        elif frame.kind is TextKind.CONTENT:
            self.output_events += 1
            self.output_bytes += len(text)
            self._feed_text(event, text.decode("utf-8", "replace"), out)
        elif self._passes_unread(frame, text):
            self.progress = True
            self.output_events += 1
            self.output_bytes += len(text)
            out.append(b"".join((frame.sent_before, text, frame.sent_after)))
        else:
            self._feed_one(event, out)

    def _feed_text(self, event: bytes, text: str, out: list[bytes]) -> None:
        """Handle a piece of content."""
        self.progress = True
        deltas = self.inspect_text(text)
        if deltas is None:
            out.append(self._rewriter.apply(event))
        elif deltas:  # otherwise the text is held: it may be part of a call
            self._place_changed(event, [Choice(0, delta) for delta in deltas], out)

    def _feed_one(self, event: bytes, out: list[bytes]) -> None:
        """Handle an event that has to be read. Sets `failure` if it is not a valid chunk."""
        data = data_of(event) or error_line(event)
        if not data:  # a comment, or nothing; or JSON that is no event
            if bare := bare_objects(event):
                for line in bare:
                    self._feed_one(b"data: %b\n\n" % line, out)
            elif self.content:
                out.append(event)
            else:
                self.held.drop(event)
                self._check_held()
            return
        self.progress = True
        if data == DONE:
            self.done = True
            return
        chunk = read_chunk(data)
        if chunk is None and _ERROR_EVENT.search(event) is not None:
            words = data.decode("utf-8", "replace")
            self.failure, self.told = f"sent an error event: {brief(words)}", error_of(words)
        elif chunk is None and is_no_chunk(data, begun=self.content):
            self.failure = "sent an event that is no chunk"
        elif chunk is None:  # not JSON, or no object: passed on unchanged, and counted as content
            self._send(event, out, content=True)
        elif chunk.error is not None or (chunk.choices is None and error_in(data) is not None):
            if (text := calls_told(data, self._policy)) is not None:
                for one in whole_as_events(as_answer(text), self._request.endpoint):
                    self._feed_one(one, out)
                return
            told = error_in(data) if chunk.error is None else chunk.error
            error = told.get("message") if isinstance(told, dict) else told
            self.failure, self.told = f"sent an error event: {brief(error)}", data
            self.pool_full = is_pool_full(error)
        elif not self._answers and b'"message"' in data and (made := whole_as_events(data, self._request.endpoint)):
            for one in made:
                self._feed_one(one, out)
        else:
            self._rewriter.note(event, chunk)
            self._feed_chunk(event, chunk, out)

    def _feed_chunk(self, event: bytes, chunk: Chunk, out: list[bytes]) -> None:
        choices = chunk.choices or []
        for choice in choices:
            if choice.finish_reason == "":
                choice.finish_reason = None  # some servers write it so until the end
            if size := output_size(choice):
                self.output_events += 1
                self.output_bytes += size
        if chunk.usage is not None:
            self.usage = chunk.usage if isinstance(chunk.usage, dict) else self.usage
            if not choices and not (self._request.wants_usage or self._request.own_usage):
                return  # the gateway requested it, the client did not
        if len(choices) == 1 and (text := self.inspect_plain(choices[0])) is not None:
            self._place_plain(event, text, out)
            if self.content:
                self._look_ahead(event, choices[0])
            return
        self.failure = self.fault_in(choices)
        if self.failure is not None:
            return
        changed = self.inspect(choices)
        if self.failure is not None:
            return
        if changed is None:
            self._place(event, choices, out)
        elif not self._chat or _only_ends_differ(choices, changed):
            self._place(with_ends(event, changed), changed, out)
        else:
            self._place_changed(event, changed, out)
        if len(choices) == 1 and (self.content or self.reasoning):
            self._look_ahead(event, choices[0], changed=changed is not None)

    def _look_ahead(self, event: bytes, choice: Choice, *, changed: bool = False) -> None:
        """Decide which further events need not be parsed. `changed`: other choices were sent for this event."""
        if self.content:
            self._raw = self._raw or self.settled
        if self._request.choices != 1 or self.held:
            return
        frame = EventFrame.of(event, self._rewriter.apply(event), choice, self._frame)
        if frame is None:
            return
        may_begin = self.content and (self._raw or self.begun) if frame.kind is TextKind.CONTENT else not changed
        if may_begin:
            self._frame = frame

    # -- sent or held ---------------------------------------------------------------------------------------------

    def _place_changed(self, event: bytes, changed: Sequence[Choice], out: list[bytes]) -> None:
        """Send or hold a changed event: one event for each of these choices."""
        for one, choice in zip(rebuilt(event, changed), changed, strict=True):
            self._place(one, [choice], out)

    def _place_plain(self, event: bytes, text: str, out: list[bytes]) -> None:
        """`_place` of an event that has nothing but this text, where no call is awaited."""
        if text:
            self._send(event, out, content=True)
        elif self.content or self.reasoning:
            out.append(self._rewriter.apply(event))
        else:
            self._hold(event)

    def _place(self, event: bytes, choices: Sequence[Choice], out: list[bytes]) -> None:
        any_content = any_reasoning = False
        for choice in choices:
            any_content = any_content or has_content(choice)
            any_reasoning = any_reasoning or has_reasoning(choice)
        if any_content:
            if self._withholds(choices):
                self._hold(event)
                self.held.content_bytes += len(event)
            else:
                self._send(event, out, content=True)
        elif any_reasoning and self._awaits and not self.content and _ends_alone(choices):
            # The end of a turn of thoughts is held, so that another backend can still be tried.
            choice = choices[0]
            parts = self._made(choice, choice.delta, None), self._made(choice, {}, choice.finish_reason)
            thoughts, end = rebuilt(event, parts)
            self._send(thoughts, out, content=False)
            self._hold(end)
        elif any_reasoning:
            self._send(event, out, content=False)
        elif self.content or (self.reasoning and not self._awaits):
            out.append(self._rewriter.apply(event))
        else:
            self._hold(event)

    def _hold(self, event: bytes) -> None:
        self.held.add(event)
        self._check_held()

    def _check_held(self) -> None:
        if self.held.too_much:
            self.failure = "sent too much before it said anything"

    def _withholds(self, choices: Sequence[Choice]) -> bool:
        """Is this content held back, so that another backend can still be tried? White space alone is, while a turn
        with tools may still turn out empty. Text is held until a required call comes that the backend does not
        enforce."""
        if self.content or not (self._awaits or self._holds):
            return False
        if self.called:
            self.disobeyed = self._policy.must_call and not self.obeyed and self._request.choices == 1
            return self.disobeyed
        if self._holds:
            self._holds = self.held.content_bytes < HELD_MOST
            return self._holds
        return all(content_of(choice).isspace() for choice in choices)

    def _send(self, event: bytes, out: list[bytes], *, content: bool) -> None:
        if self.held or not (self.content or self.reasoning):
            out.append(self.release_held())
        self.content = self.content or content
        self.reasoning = self.reasoning or not content
        out.append(self._rewriter.apply(event))

    def release_held(self) -> bytes:
        """The held events, to be sent now. Role chunks are left out if one was sent before."""
        rewriter, identity = self._rewriter, self._rewriter.identity
        rewriter.learn()
        events = [event for event in self.held.release() if not (identity.role_sent and is_role(event))]
        identity.role_sent = True
        return b"".join(map(rewriter.apply, events))

    def conclude(self) -> None:
        """The stream has ended: judge the answer as a whole."""
        self.judge(sent=self.content)


def _ends_alone(choices: Sequence[Choice]) -> bool:
    """Is this the only choice of its event, and its end?"""
    return len(choices) == 1 and choices[0].finish_reason is not None


def _only_ends_differ(choices: Sequence[Choice], changed: Sequence[Choice]) -> bool:
    pairs = zip(choices, changed, strict=False)
    return len(choices) == len(changed) and all(new.delta is old.delta for old, new in pairs)
