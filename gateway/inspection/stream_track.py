"""One attempt's stream, event by event, without effects: what may go to the client now, and whether it was whole.
What is checked and mended in it is stream.py's.

Preamble (comments, role chunks) is held until the backend has said something, and dropped when the attempt is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.domain.request import CHAT, InferenceRequest
from gateway.domain.upstream import ProtocolFailure
from gateway.inspection import rewrite
from gateway.inspection.heuristics import closes_alone, is_garbage, opened, swallowed
from gateway.inspection.policy import Expected
from gateway.inspection.reasoning import THINK, Thoughts
from gateway.inspection.rewrite import Identity
from gateway.inspection.shape import brief, fault_in_delta, fault_in_end, fault_in_text, is_no_chunk
from gateway.inspection.stream import StreamCheck
from gateway.transport.sse import (
    BROKEN_ENDS,
    DONE,
    Choice,
    Chunk,
    content_of,
    data_of,
    is_plain,
    is_role,
    number_of,
    read_chunk,
    says_something,
    thinks,
)

HELD_MOST = 64 * 1024  # bytes of content that are held until the call that was asked for comes
PREAMBLE_MOST = 8 * 1024 * 1024  # bytes before anything is said: a role chunk may carry a long prompt's token ids
PREAMBLE_EVENTS = 65_536  # the same in events: comments that keep a connection alive while a request waits
REPEATS = 50  # events in a row that say the same: garbage


class StreamTrack:
    """Follows one attempt. `take` is fed whole events and returns the bytes to send. `expected`: what is checked and
    mended in its text; None = its bytes go on as they are. `thoughts`: how this backend's model marks its thoughts."""

    __slots__ = (
        "_awaits",
        "_begun",
        "_check",
        "_first",
        "_holds",
        "_identity",
        "_last",
        "_opened",
        "_preamble",
        "_preamble_bytes",
        "_raw",
        "_request",
        "_rewrites",
        "_same",
        "_thoughts",
        "_wanted",
        "content",
        "disobeyed",
        "done",
        "failure",
        "finished",
        "held",
        "held_bytes",
        "limited",
        "mended",
        "never_closed",
        "progress",
        "reasoning",
        "stray_close",
        "usage",
        "violations",
    )

    def __init__(
        self,
        request: InferenceRequest,
        identity: Identity,
        expected: Expected | None = None,
        thoughts: Thoughts | None = None,
    ) -> None:
        self._request = request
        self._identity = identity
        self._thoughts = thoughts
        self._check = StreamCheck(expected, request.choices) if expected is not None else None
        tools = expected is not None and expected.tools is not None
        self._awaits = tools and request.choices == 1  # an empty turn is tried again, so its end is not sent at once
        self._begun = False  # content other than white space has been seen
        self._opened: bool | None = None  # it began with a thought's opener, or what may be one; None = nothing said
        self._holds = expected is not None and expected.hold
        self._raw = False  # content is under way and nothing is checked: events go on unparsed
        self._last = b""
        self._same = 0  # events in a row that are the same
        self._first: tuple[bytes, Chunk] | None = None
        self._rewrites: rewrite.Rewrites = ()
        self._wanted: dict[str, object] = {}
        self.held: list[bytes] = []  # not sent yet
        self.held_bytes = 0
        self._preamble = 0  # events that were held or dropped before content
        self._preamble_bytes = 0
        self.content = False  # this attempt has said something
        self.reasoning = False  # it has at least thought
        self.progress = False  # the last events were more than comments
        self.finished: dict[int, object] = {}  # number of each choice that has its finish_reason -> that
        self.done = False  # [DONE] was seen
        self.usage: dict[str, Any] | None = None
        self.failure: str | None = None  # why the stream is broken
        self.limited = False  # it ended because no more tokens were allowed
        self.disobeyed = False  # it did not call the tool that it had to
        self.stray_close = False  # thoughts without an opener ended in its content
        self.never_closed = False  # thoughts were expected to end there, and did not
        self.violations: set[str] = set()
        self.mended: set[str] = set()

    @property
    def whole(self) -> bool:
        """Every choice has its finish_reason. ([DONE] alone says nothing: vLLM sends it after an error too.)"""
        return self.failure is None and len(self.finished) >= self._request.choices

    @property
    def complete(self) -> bool:
        """Content, whole, with its end said, and nothing kept back: what is sent now is the last."""
        return self.done and self.content and self.whole and not (self.disobeyed or self.held)

    @property
    def model(self) -> object:
        """The model that it names."""
        return self._first[1].model if self._first is not None else None

    @property
    def empty(self) -> bool:
        """Whole, but it says nothing: neither content nor, where no tools are offered, a thought; and not because no
        more was allowed."""
        thought = self.reasoning and not self._awaits
        return self.whole and not (self.content or thought or self.limited)

    def take(self, events: Sequence[bytes]) -> bytes:
        """The bytes to send for these events; b"" while nothing has been said. Sets `failure` when one of them is an
        error."""
        self.progress = False
        out: list[bytes] = []
        for event in events:
            if event == self._last:
                self._same += 1
                if self._same == REPEATS:
                    self.violations.add("garbage")
            else:
                self._last, self._same = event, 0
            if self._raw and is_plain(event):
                self.progress = True
                if b"</think>" in event and (chunk := read_chunk(data_of(event) or b"")) is not None:
                    self._look_for_close(chunk.choices or [])
                out.append(self._rewritten(event))
            else:
                self._take_other(event, out)
            if self.failure is not None or self.disobeyed:
                break
        return out[0] if len(out) == 1 else b"".join(out)

    def _take_other(self, event: bytes, out: list[bytes]) -> None:
        """Any event but one that goes on unparsed. Sets `failure` where it is not what a chunk must be."""
        try:
            if (check := self._check) is None or (text := check.text_of(event)) is None:
                self._take_one(event, out)
            else:
                self._take_text(check, event, text, out)
        except ProtocolFailure as failure:
            self.failure = str(failure)

    def _take_one(self, event: bytes, out: list[bytes]) -> None:
        data = data_of(event)
        if not data:  # a comment, or nothing
            if self.content:
                out.append(event)
            else:
                self._count_preamble(event)
            return
        self.progress = True
        if data == DONE:
            self.done = True
            return
        chunk = read_chunk(data)
        if chunk is None and is_no_chunk(data, begun=self.content):
            self.failure = "sent an event that is no chunk"
        elif chunk is None:  # not ours to judge: it goes on as it is, as content
            self._say(event, out, content=True)
        elif chunk.error is not None:
            error = chunk.error.get("message") if isinstance(chunk.error, dict) else chunk.error
            self.failure = f"sent an error event: {brief(error)}"
        else:
            if self._first is None:
                self._first = (event, chunk)
            self._take_chunk(event, chunk, out)

    def _take_chunk(self, event: bytes, chunk: Chunk, out: list[bytes]) -> None:
        if chunk.usage is not None:
            self.usage = chunk.usage if isinstance(chunk.usage, dict) else self.usage
            if not chunk.choices and not (self._request.wants_usage or self._request.own_usage):
                return  # we asked for it, the client did not
        choices = chunk.choices or []
        if (fault := self._fault_in(choices)) is not None:
            self.failure = fault
            return
        if choices and self._request.endpoint is CHAT:
            if self._opened is None:
                self._note_start(choices)
            if self._check is None and not self._begun:
                self._look_for_thoughts(choices)
            if self._check is not None:
                self._take_checked(self._check, event, choices, out)
                return
            if b"</think>" in event:
                self._look_for_close(choices)
        for choice in choices:
            if choice.finish_reason == "repetition":
                self.violations.add("repetition")
                event = event.replace(b'"finish_reason":"repetition"', b'"finish_reason":"stop"')
        self._place(event, choices, out)

    def _fault_in(self, choices: list[Choice]) -> str | None:
        chat = self._request.endpoint is CHAT
        for choice in choices:
            fault = fault_in_delta(choice.delta) if chat else fault_in_text(choice.text)
            if fault is not None or (fault := fault_in_end(choice.finish_reason)) is not None:
                return fault
        return None

    # -- checked and mended ---------------------------------------------------------------------------------------

    def _look_for_thoughts(self, choices: list[Choice]) -> None:
        """Content that begins with a thought is split, also where nothing was expected."""
        for choice in choices:
            said = content_of(choice)
            if said and not said.isspace():
                break
        else:
            return
        self._begun = True
        if is_garbage(said):
            self.violations.add("garbage")
        style = opened(said, self._thoughts) if not self.reasoning else None
        if style is not None or self._request.choices > 1:  # of several, each may begin with one
            self._check = StreamCheck(Expected(thoughts=style or self._thoughts or THINK), self._request.choices)

    def _take_checked(self, check: StreamCheck, event: bytes, choices: list[Choice], out: list[bytes]) -> None:
        """Send or hold what becomes of this event."""
        self._look_for_close(choices)
        changed = check.changed(event, choices)
        if changed is None:
            self._place(event, choices, out)
            if self.content:  # what could be held goes through `_place`
                check.learn_frame(event, choices)
        else:
            for one, choice in changed:
                self._place(one, [choice], out)
        if check.over:
            self._note(check)
            self._check, self._begun = None, True
            self._raw = self.content

    def _take_text(self, check: StreamCheck, event: bytes, text: str, out: list[bytes]) -> None:
        """The same for an event that is like the one before but for its text: nearly all, and told without parsing."""
        self.progress = True
        if "</think>" in text:
            self._look_for_close([Choice(0, {"content": text})])
        changed = check.changed_text(event, text)
        if changed is None:
            out.append(self._rewritten(event))
        else:
            for one, choice in changed:
                self._place(one, [choice], out)

    def _note(self, check: StreamCheck) -> None:
        """What was found in the choices that have ended."""
        for answer in check.ended:
            self.violations |= answer.violations
            self.mended |= answer.mended
            self.never_closed = self.never_closed or answer.never_closed

    def _note_start(self, choices: list[Choice]) -> None:
        said = next((text for choice in choices if (text := content_of(choice)) and not text.isspace()), None)
        if said is not None:
            self._opened = opened(said, self._thoughts) is not None

    def _look_for_close(self, choices: list[Choice]) -> None:
        """The end of thoughts that never began: they were sent as content, which can't be taken back."""
        if not (self.reasoning or self._opened) and any(closes_alone(content_of(choice)) for choice in choices):
            self.stray_close = True

    # -- sent or held ---------------------------------------------------------------------------------------------

    def _place(self, event: bytes, choices: list[Choice], out: list[bytes]) -> None:
        said = thought = False
        for choice in choices:
            if choice.finish_reason is not None and not self._end(choice):
                return
            said = said or says_something(choice)
            thought = thought or thinks(choice)
        if said:
            if self._withholds(choices):
                self._hold(event)
                self.held_bytes += len(event)
            else:
                self._say(event, out, content=True)
        elif thought:
            self._say(event, out, content=False)
        elif self.content or (self.reasoning and not self._awaits):
            out.append(self._rewritten(event))
        else:
            self._hold(event)

    def _hold(self, event: bytes) -> None:
        self.held.append(event)
        self._count_preamble(event)

    def _count_preamble(self, event: bytes) -> None:
        """A stream that never comes to the point is broken, before what is held of it becomes a burden."""
        self._preamble += 1
        self._preamble_bytes += len(event)
        if self._preamble > PREAMBLE_EVENTS or self._preamble_bytes > PREAMBLE_MOST:
            self.failure = "sent too much before it said anything"

    def _withholds(self, choices: list[Choice]) -> bool:
        """Is this content kept back, so that another backend can still be asked? White space alone is, while a turn
        with tools may yet turn out empty; text is, until the call that nobody enforces has come."""
        check = self._check
        if self.content or check is None or not (self._awaits or self._holds):
            return False
        if check.called:
            self.disobeyed = check.must_call and not check.obeyed and self._request.choices == 1
            return self.disobeyed
        if self._holds:
            self._holds = self.held_bytes < HELD_MOST
            return self._holds
        return all(content_of(choice).isspace() for choice in choices)

    def _end(self, choice: Choice) -> bool:
        """Notes a finish_reason; False when it is one that means failure."""
        if choice.finish_reason in BROKEN_ENDS:
            self.failure = f"ended with finish_reason {choice.finish_reason}"
            return False
        if choice.finish_reason == "length":
            self.limited = True
        self.finished[number_of(choice.index)] = choice.finish_reason
        return True

    def conclude(self) -> None:
        """The stream is whole: what is to be said of it as a whole."""
        if self._check is not None:
            self._conclude_check(self._check)
        if self.disobeyed:
            self.violations.add("tool_choice_ignored")
        if self.reasoning and not self.content and not self.disobeyed:
            self.violations.add("reasoning_cut" if self.limited else "nothing_said")
        if self.stray_close:
            self.violations.add("reasoning_as_text")

    def _conclude_check(self, check: StreamCheck) -> None:
        self._note(check)
        cut_short = "reasoning_cut" in self.violations
        if check.must_call and not (self.content or cut_short or check.obeyed):
            self.disobeyed = True
        if self._awaits and not check.called and swallowed(check.size, self.usage):
            self.violations.add("swallowed")

    def _say(self, event: bytes, out: list[bytes], *, content: bool) -> None:
        if self.held or not (self.content or self.reasoning):
            out.append(self.release_held())
        self.content = self.content or content
        self.reasoning = self.reasoning or not content
        self._raw = self.content and self._check is None and (self._begun or self._request.endpoint is not CHAT)
        out.append(self._rewritten(event))

    def release_held(self) -> bytes:
        """The preamble, now that it may go out; role chunks only if none went before."""
        self._learn()
        events = [event for event in self.held if not (self._identity.role_sent and is_role(event))]
        self.held.clear()
        self._identity.role_sent = True
        return b"".join(self._rewritten(event) for event in events)

    def _learn(self) -> None:
        if self._first is None:
            return
        event, chunk = self._first
        self._identity.fix(chunk.id, chunk.created)
        identity = self._identity
        wanted = {"model": self._request.model, "id": identity.id, "created": identity.created}
        self._wanted = {name: value for name, value in wanted.items() if value is not None}
        self._rewrites = rewrite.learn_all(event, chunk, self._wanted)

    def _rewritten(self, event: bytes) -> bytes:
        return rewrite.apply(event, self._rewrites, self._wanted) if self._rewrites else event
