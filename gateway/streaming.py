"""One attempt's stream, event by event, without effects: what may go to the client now, and whether it was whole.

Preamble (comments, role chunks) is held until the backend has said something, and dropped when the attempt is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from gateway import rewrite
from gateway.compat.answer import ChoiceAnswer, closes_alone, is_garbage, opened, swallowed
from gateway.compat.expected import Expected
from gateway.compat.reasoning import THINK, Thoughts
from gateway.routing.request import CHAT, InferenceRequest
from gateway.upstream.sse import DONE, Choice, Chunk, content_of, data_of, is_plain, read_chunk, says_something, thinks

HELD_MOST = 64 * 1024  # bytes of content that are held until the call that was asked for comes
REPEATS = 50  # events in a row that say the same: garbage

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[dict[str, Any]]).decode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode

BROKEN_ENDS = ("abort", "error")  # vLLM's finish_reason when it is stopped, and when it fails


class Identity:
    """`id` and `created` of all chunks of one reply; fixed by the first chunk that is sent, whoever made it."""

    __slots__ = ("created", "id", "role_sent")

    def __init__(self) -> None:
        self.id: Any = None
        self.created: Any = None
        self.role_sent = False

    def fix(self, id_: Any, created: Any) -> None:
        if self.id is None:
            self.id, self.created = id_, created


class StreamTrack:
    """Follows one attempt. `take` is fed whole events and returns the bytes to send. `expected`: what is checked and
    mended in its text; None = its bytes go on as they are. `thoughts`: how this backend's model marks its thoughts."""

    __slots__ = (
        "_awaits",
        "_begun",
        "_checks",
        "_expected",
        "_first",
        "_frame",
        "_holds",
        "_identity",
        "_last",
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
        self._expected = expected
        self._thoughts = thoughts
        self._checks: dict[object, ChoiceAnswer] = {}
        tools = expected is not None and expected.tools is not None
        self._awaits = tools and request.choices == 1  # an empty turn is tried again, so its end is not sent at once
        self._begun = False  # content other than white space has been seen
        self._holds = expected is not None and expected.hold
        self._raw = False  # content is under way and nothing is checked: events go on unparsed
        self._last = b""
        self._same = 0  # events in a row that are the same
        self._frame: tuple[bytes, bytes] | None = None  # what stands before and after the text in a checked stream
        self._first: tuple[bytes, Chunk] | None = None
        self._rewrites: rewrite.Rewrites = ()
        self._wanted: dict[str, object] = {}
        self.held: list[bytes] = []  # not sent yet
        self.held_bytes = 0
        self.content = False  # this attempt has said something
        self.reasoning = False  # it has at least thought
        self.progress = False  # the last events were more than comments
        self.finished: dict[object, object] = {}  # index of each choice that has its finish_reason -> that
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
            elif self._frame is None or not self._take_text(event, self._frame, out):
                self._take_one(event, out)
            if self.failure is not None or self.disobeyed:
                break
        return out[0] if len(out) == 1 else b"".join(out)

    def _take_one(self, event: bytes, out: list[bytes]) -> None:
        data = data_of(event)
        if data is None:
            if self.content:
                out.append(event)
            return
        self.progress = True
        if data == DONE:
            self.done = True
            return
        chunk = read_chunk(data)
        if chunk is None:  # not ours to judge: it goes on as it is, as content
            self._say(event, out, content=True)
        elif chunk.error is not None:
            self.failure = _error_text(chunk.error)
        else:
            if self._first is None:
                self._first = (event, chunk)
            self._take_chunk(event, chunk, out)

    def _take_chunk(self, event: bytes, chunk: Chunk, out: list[bytes]) -> None:
        if isinstance(chunk.usage, dict):
            self.usage = chunk.usage
            if not chunk.choices and not (self._request.wants_usage or self._request.own_usage):
                return  # we asked for it, the client did not
        choices = chunk.choices or []
        if not self._raw and choices and self._request.endpoint is CHAT:
            if self._expected is None and not self._begun:
                self._arm(choices)
            if self._expected is not None:
                self._check(self._expected, event, choices, out)
                return
            if b"</think>" in event:
                self._look_for_close(choices)
        for choice in choices:
            if choice.finish_reason == "repetition":
                self.violations.add("repetition")
                event = event.replace(b'"finish_reason":"repetition"', b'"finish_reason":"stop"')
        self._place(event, choices, out)

    # -- checked and mended ---------------------------------------------------------------------------------------

    def _arm(self, choices: list[Choice]) -> None:
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
            self._expected = Expected(thoughts=style or self._thoughts or THINK)

    def _check(self, expected: Expected, event: bytes, choices: list[Choice], out: list[bytes]) -> None:
        """Each choice goes through its own check; what has to change becomes events of its own."""
        self._look_for_close(choices)
        made: list[Choice] = []
        same = True
        for choice in choices:
            check = self._checks.get(choice.index)
            if check is None:
                check = self._checks[choice.index] = ChoiceAnswer(expected)
            delta = choice.delta if isinstance(choice.delta, dict) else {}
            deltas, finish = check.delta(delta), choice.finish_reason
            same = same and len(deltas) == 1 and deltas[0] is delta
            if finish is not None and finish not in BROKEN_ENDS:
                rest, finish = check.end(finish)
                same = same and not rest and finish == choice.finish_reason
                deltas += rest
                self._note(check)
            if finish is not None and not deltas:
                deltas = [{}]
            for i, one in enumerate(deltas, 1):
                made.append(Choice(choice.index, one, None, finish if i == len(deltas) else None))
        if same:
            self._place(event, choices, out)
            if self.content and self._frame is None and len(choices) == 1 and self._request.choices == 1:
                self._learn_frame(event, choices[0])
        else:
            for choice, changed in zip(made, rebuilt(event, made), strict=True):
                self._place(changed, [choice], out)
        if expected.tools is None and expected.reasoning_field == "as_is":
            self._disarm()

    def _take_text(self, event: bytes, frame: tuple[bytes, bytes], out: list[bytes]) -> bool:
        """The same for an event that is like the one before but for its text: nearly all, and told without parsing."""
        before, after = frame
        if not (event.startswith(before) and event.endswith(after)):
            return False
        raw = event[len(before) : -len(after)]
        if b'"' in raw or b"\\" in raw:
            return False
        text = raw.decode("utf-8", "replace")
        self.progress = True
        check = self._checks[0]
        if "</think>" in text:
            self._look_for_close([Choice(0, {"content": text})])
        deltas = check.text(text)
        if deltas is None:
            out.append(self._rewritten(event))
        elif deltas:
            made = [Choice(0, delta) for delta in deltas]
            for choice, changed in zip(made, rebuilt(event, made), strict=True):
                self._place(changed, [choice], out)
        return True

    def _learn_frame(self, event: bytes, choice: Choice) -> None:
        """What stands around the text in this event, when it says nothing but text."""
        text = content_of(choice)
        if choice.index != 0 or choice.finish_reason is not None or choice.delta.keys() != {"content"} or not text:
            return
        before, found, rest = event.partition(b'"content":"')
        raw = text.encode()
        if found and rest.startswith(raw + b'"') and is_plain(event) and b"\\" not in raw and b'"usage"' not in event:
            self._frame = before + found, rest[len(raw) :]

    def _disarm(self) -> None:
        """Nothing more can be found in any choice: from here on its bytes go through as they are."""
        if len(self._checks) >= self._request.choices and all(check.said for check in self._checks.values()):
            for check in self._checks.values():
                self._note(check)
            self._expected = self._frame = None
            self._begun = True
            self._raw = self.content

    def _note(self, check: ChoiceAnswer) -> None:
        self.violations |= check.violations
        self.mended |= check.mended
        self.never_closed = self.never_closed or check.never_closed

    def _look_for_close(self, choices: list[Choice]) -> None:
        """The end of thoughts that never began: they were sent as content, which can't be taken back."""
        if not self.reasoning and any(closes_alone(content_of(choice)) for choice in choices):
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
                self.held.append(event)
                self.held_bytes += len(event)
            else:
                self._say(event, out, content=True)
        elif thought:
            self._say(event, out, content=False)
        elif self.content or (self.reasoning and not self._awaits):
            out.append(self._rewritten(event))
        else:
            self.held.append(event)

    def _withholds(self, choices: list[Choice]) -> bool:
        """Is this content kept back, so that another backend can still be asked? White space alone is, while a turn
        with tools may yet turn out empty; text is, until the call that nobody enforces has come."""
        if self.content or not (self._awaits or self._holds):
            return False
        called = any(check.called for check in self._checks.values())
        if called:
            obeyed = any(check.obeyed for check in self._checks.values())
            self.disobeyed = self._must_call and not obeyed and self._request.choices == 1
            return self.disobeyed
        if self._holds:
            self._holds = self.held_bytes < HELD_MOST
            return self._holds
        return all(content_of(choice).isspace() for choice in choices)

    @property
    def _must_call(self) -> bool:
        return self._expected is not None and self._expected.must_call

    def _end(self, choice: Choice) -> bool:
        """Notes a finish_reason; False when it is one that means failure."""
        if choice.finish_reason in BROKEN_ENDS:
            self.failure = f"ended with finish_reason {choice.finish_reason}"
            return False
        if choice.finish_reason == "length":
            self.limited = True
        self.finished[choice.index if isinstance(choice.index, int) else 0] = choice.finish_reason
        return True

    def conclude(self) -> None:
        """The stream is whole: what is to be said of it as a whole."""
        cut_short = "reasoning_cut" in self.violations
        if self._must_call and not (self.content or cut_short or any(c.obeyed for c in self._checks.values())):
            self.disobeyed = True
        if self.disobeyed:
            self.violations.add("tool_choice_ignored")
        checks = self._checks.values()
        if self._awaits and not any(c.called for c in checks) and swallowed(sum(c.size for c in checks), self.usage):
            self.violations.add("swallowed")
        if self.reasoning and not self.content and not self.disobeyed:
            self.violations.add("reasoning_cut" if self.limited else "nothing_said")
        if self.stray_close:
            self.violations.add("reasoning_as_text")

    def _say(self, event: bytes, out: list[bytes], *, content: bool) -> None:
        if self.held or not (self.content or self.reasoning):
            out.append(self.release_held())
        self.content = self.content or content
        self.reasoning = self.reasoning or not content
        self._raw = self.content and self._expected is None and (self._begun or self._request.endpoint is not CHAT)
        out.append(self._rewritten(event))

    def release_held(self) -> bytes:
        """The preamble, now that it may go out; role chunks only if none went before."""
        self._learn()
        events = [event for event in self.held if not (self._identity.role_sent and _is_role(event))]
        self.held.clear()
        self._identity.role_sent = True
        return b"".join(self._rewritten(event) for event in events)

    def _learn(self) -> None:
        if self._first is None:
            return
        event, chunk = self._first
        self._identity.fix(chunk.id, chunk.created)
        self._wanted = {
            "model": self._request.model,
            "id": self._identity.id,
            "created": self._identity.created,
        }
        self._rewrites = rewrite.learn_all(event, chunk, self._wanted)

    def _rewritten(self, event: bytes) -> bytes:
        return rewrite.apply(event, self._rewrites, self._wanted) if self._rewrites else event


def rebuilt(event: bytes, choices: Sequence[Choice]) -> list[bytes]:
    """The event once for each of these choices, with everything else that it says; not the logprobs, which belonged to
    the text as it was."""
    data = data_of(event)
    assert data is not None  # it was read as a chunk before
    fields = _decode_fields(data)
    given = {choice.get("index", 0): choice for choice in _decode(fields["choices"])}
    events = []
    for choice in choices:
        kept = {k: v for k, v in given.get(choice.index, {}).items() if k not in ("logprobs", "stop_reason")}
        changed = kept | {"index": choice.index, "delta": choice.delta, "finish_reason": choice.finish_reason}
        events.append(b"data: " + _encode({**fields, "choices": Raw(_encode([changed]))}) + b"\n\n")
    return events


def _is_role(event: bytes) -> bool:
    data = data_of(event)
    chunk = read_chunk(data) if data is not None else None
    if chunk is None or not chunk.choices:
        return False
    return all(isinstance(c.delta, dict) and "role" in c.delta and c.finish_reason is None for c in chunk.choices)


def _error_text(error: Any) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return f"sent an error event: {str(message)[:300]}"
