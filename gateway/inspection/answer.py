"""One choice of an answer, checked and mended while it comes.

The same object serves a stream (many deltas) and an answer in one piece (one delta), so both give the same result for
the same text. A delta is OpenAI's: `content`, `reasoning`, `tool_calls`, ...
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.inspection.calls import ToolCalls
from gateway.inspection.heuristics import begins_as_garbage, closes_alone, is_garbage, opened
from gateway.inspection.markers import markers_of
from gateway.inspection.mender import Call, Gap, Mender, Reasoning, Segment, Text
from gateway.inspection.policy import InspectionPolicy, ReasoningField
from gateway.inspection.reasoning import Thoughts
from gateway.transport.sse import has_other_content

Delta = dict[str, Any]

# What an answer can be found guilty of: the kinds of gateway_violations_total.
KINDS = (
    "tool_call_as_text",
    "reasoning_as_text",
    "finish_reason",
    "arguments_not_json",
    "unknown_tool",
    "missing_arguments",
    "tool_choice_ignored",
    "empty",
    "nothing_said",
    "swallowed",
    "reasoning_cut",
    "repetition",
    "garbage",
    "usage",
)
FIELDS = ("reasoning", "reasoning_content")
GUESS_MOST = 256 * 1024  # characters that are held until it is known whether they are thoughts


class ChoiceAnswer:
    """`violations` and `mended` are filled while it comes.

    `said`: something for the client, be it text or a call; `thought`: some reasoning, whether the client gets it or
    not; `called`: some tool; `size`: bytes of content and thoughts, counted where anything is checked; `closed_alone`:
    a `</think>` stood alone where no thoughts had begun."""

    __slots__ = (
        "_apart",
        "_armed",
        "_as_text",
        "_blank_counts",
        "_calls",
        "_content_start",
        "_given",
        "_held",
        "_mender",
        "_policy",
        "_thoughts_start",
        "_unsaid",
        "_usual",
        "called",
        "closed_alone",
        "mended",
        "said",
        "size",
        "thought",
        "violations",
    )

    def __init__(self, policy: InspectionPolicy, usual: Thoughts | None = None, *, blank_counts: bool = True) -> None:
        """`usual`: how the model marks thoughts, which are looked for only where the content begins with some when
        `policy` names none. `blank_counts`: white space alone is something said."""
        self._policy = policy
        self._usual = usual
        self._blank_counts = blank_counts
        self._armed = policy.tools is not None or policy.thoughts is not None
        self._mender: Mender | None = None  # made when there is text to look at: an answer of calls alone needs none
        self._calls = ToolCalls()
        # How the content and the thoughts begin, while they may still turn out to be garbage; None = they are not, or
        # that has been noted.
        self._content_start: str | None = ""
        self._thoughts_start: str | None = ""
        # What may be thoughts that lack their opener; None = nothing is guessed. Nothing of it is sent before it is
        # known which it is, so nothing is ever said twice.
        self._unsaid: list[str] | None = [] if policy.thoughts and policy.thoughts.implied else None
        self._held = 0  # characters of it
        self._as_text = False  # the guess was given up amid them: they are content
        self._apart = False
        self._given: object = None  # the finish_reason as it came
        self.called = False
        self.said = False
        self.thought = False
        self.size = 0
        self.closed_alone = False
        self.violations: set[str] = set()
        self.mended: set[str] = set()

    @property
    def obeyed(self) -> bool:
        """Was a tool called that `tool_choice` asked for? Of a named one the first call decides: in a stream no other
        backend can be asked once that call has been sent."""
        if self._policy.call == "named":
            return self._calls.first == self._policy.name
        return self.called or not self._policy.must_call

    @property
    def begun(self) -> bool:
        """Has its content begun, and is it known what it begins with?"""
        return self._content_start is None

    @property
    def settled(self) -> bool:
        """Can nothing more be found in its text? So it is when the content has begun, where no calls are looked for and
        thoughts keep their name."""
        policy = self._policy
        if self._content_start is not None or policy.tools is not None or policy.reasoning_field != "as_is":
            return False
        if policy.thoughts is None:
            return True
        return policy.thoughts.answer is None and self._mender is not None and self._mender.past_thoughts

    @property
    def never_closed(self) -> bool:
        """Its thoughts were taken to begin without an opener, and nothing ended them, or they came in their own field:
        then the content has none. Valid after `end`."""
        return bool(self._unsaid) or self._apart

    def is_plain(self, message: Delta, finish_reason: object) -> bool:
        """Is this choice of a whole answer plain text to its end, in which there is nothing to mend? Most are. It is
        seen by what is not in it (no marker of a call, no tag of thoughts, no call, no thought), so that the text need
        not be mended to find that out. Notes the text when it is so."""
        text, policy = message.get("content"), self._policy
        if not self._armed or not isinstance(text, str) or not text or text.isspace():
            return False
        if finish_reason not in ("stop", "length") or policy.must_call or policy.reasoning_field != "as_is":
            return False
        if message.get("tool_calls") or any(message.get(name) for name in FIELDS):
            return False
        found = policy.thoughts
        if found is not None and (found.implied or any(tag in text for tag in found.tags)):
            return False
        if policy.tools is not None and markers_of(tuple(policy.formats)).anywhere.search(text) is not None:
            return False
        self._note_start(text)
        self.said = True
        self.size = _bytes_of(text)
        return True

    def text(self, text: str) -> list[Delta] | None:
        """The same as `delta` for a delta that is nothing but this content. None = it goes on unchanged."""
        if self._content_start is not None:
            self._note_start(text)
        if "</think>" not in text:
            return self._text(text)
        alone = not self.thought
        deltas = self._text(text)
        if alone:
            self.note_close(text)
        return deltas

    def note_close(self, text: str) -> None:
        """Notes the end of thoughts that never began in this part of the content. In a stream they have been sent as
        content, which cannot be taken back; there only what came in one event is seen."""
        if closes_alone(text) and not (self._mender is not None and self._mender.opened):
            self.closed_alone = True

    def _text(self, text: str) -> list[Delta] | None:
        if not self._armed:
            self._note_said(text)
            return None
        self.size += len(text) if text.isascii() else len(text.encode(errors="replace"))
        mender = self._mender
        if mender is None:
            policy = self._policy
            tools = policy.tools if policy.tools is not None else ()
            mender = self._mender = Mender(policy.formats, tools, self._thoughts_to_find())
        segments = mender.feed(text)
        if len(segments) == 1 and type(segments[0]) is Text and segments[0].text == text:
            if not self.said:
                self._note_said(text)
            return None
        return self._deltas(segments)

    def _note_said(self, text: str) -> None:
        self.said = self.said or self._blank_counts or not text.isspace()

    def _note_start(self, text: str) -> None:
        """How the content begins: with thoughts, where they are looked for nowhere else; as garbage."""
        assert self._content_start is not None
        start = (self._content_start + text).lstrip()
        if start and not self._armed and not self._content_start:
            style = opened(start, self._usual)
            if style is not None:
                self._policy, self._armed = replace(self._policy, thoughts=style), True
        self._content_start = self._still_garbage(start)

    def _still_garbage(self, start: str) -> str | None:
        """Notes garbage. Returns the start of a text while it may yet turn out to be some."""
        found = begins_as_garbage(start)
        if found:
            self.violations.add("garbage")
        return start if found is None else None

    def delta(self, delta: Delta) -> list[Delta]:
        """What goes to the client for this delta: `[delta]` itself where nothing has to change."""
        content, calls = delta.get("content"), delta.get("tool_calls")
        for name in FIELDS:
            if thought := delta.get(name):
                self._note_thought(thought)
        mended: list[Delta] | None = None
        if content:
            if isinstance(content, str):
                mended = self.text(content)
            else:
                self.said = True  # a list of parts
        if not self.said:
            self.said = has_other_content(delta)
        changed = mended is not None
        if calls and isinstance(calls, list) and self._policy.tools is not None:
            changed = self._calls.note(calls) or changed
            self.called = bool(self._calls)
        if not changed:
            field = self._policy.reasoning_field
            return [delta if field == "as_is" else _renamed(delta, field)]
        rest = {key: value for key, value in delta.items() if key not in ("content", "tool_calls")}
        out = [_renamed(rest, self._policy.reasoning_field)] if rest else []
        out += [{"content": content}] if mended is None and content else mended or []
        return [*out, {"tool_calls": calls}] if calls else out

    def _note_thought(self, thought: object) -> None:
        self.thought = True
        if self._thoughts_start is not None and isinstance(thought, str):
            self._thoughts_start = self._still_garbage((self._thoughts_start + thought).lstrip())
        if self._armed:
            self.size += _bytes_of(str(thought))

    def _thoughts_to_find(self) -> Thoughts | None:
        """How thoughts are marked in content that begins now: who has put some in their own field opens none here."""
        found = self._policy.thoughts
        if found is None or not (found.implied and self.thought):
            return found
        self._unsaid, self._apart = None, True
        return replace(found, implied=False)

    def end(self, finish_reason: object, *, cut: bool = False) -> tuple[list[Delta], object]:
        """The choice is complete: what is still to be sent, and its finish_reason as it should be. `cut`: it has as
        many tokens as were allowed."""
        self._given = finish_reason
        deltas = self._deltas(self._mender.finish()) if self._mender is not None else []
        if self._mender is not None and self._mender.saw_thoughts_later and not self.settled:
            self.violations.add("reasoning_as_text")  # they stay where they are: what is before them has been sent
        if self._unsaid:  # no end of thoughts came: it was the answer
            deltas.append({"content": "".join(self._unsaid)})
            self._note_said("".join(self._unsaid))
            if finish_reason == "length":
                self._unsaid = None  # their end may have been cut off: the guess is not refuted
        complete = self.called and finish_reason != "length" and self._judge_calls(cut)
        finish_reason = self._finish(finish_reason, complete=complete)
        if finish_reason == "length" and self.thought and not (self.said or self.called):
            self.violations.add("reasoning_cut")  # vLLM forces a call only after the thoughts
        elif self._policy.must_call and not self.obeyed:
            self.violations.add("tool_choice_ignored")
        return deltas, finish_reason

    def judge(self, *, cut: bool) -> None:
        """The whole answer has come. `cut`: as of `end`; in a stream it is often known only now."""
        for start in (self._content_start, self._thoughts_start):
            if start and is_garbage(start):
                self.violations.add("garbage")
        if cut and self._given == "tool_calls" and not self._judge_calls(True):
            self.violations.add("finish_reason")

    def _judge_calls(self, cut: bool) -> bool:
        """Are the calls what they must be? False when the last one was cut off by the token limit."""
        tools = self._policy.tools
        return tools is None or self._calls.judge(tools, self.violations, cut=cut)

    def _finish(self, given: object, *, complete: bool) -> object:
        if given == "repetition":
            self.violations.add("repetition")
            given = "stop"
        if self._policy.tools is None:
            return given
        if self.called and given == "stop":
            if "tool_calls" not in self.mended:
                self.violations.add("finish_reason")
            return "tool_calls"
        if given == "tool_calls" and not complete:
            self.violations.add("finish_reason")
            return "length" if self.called else "stop"
        return given

    def _deltas(self, segments: list[Segment]) -> list[Delta]:
        deltas: list[Delta] = []
        for segment in segments:
            if (self._unsaid is not None or self._as_text) and self._guessed(segment, deltas):
                continue
            if isinstance(segment, Text):
                self._note_said(segment.text)
                deltas.append({"content": segment.text})
            elif isinstance(segment, Reasoning):
                self._say_thought(segment.text, deltas)
            elif isinstance(segment, Call):
                self.mended.add("tool_calls")
                self.violations.add("tool_call_as_text")
                self.called = True
                deltas.append({"tool_calls": [self._calls.add(segment)]})
        return deltas

    def _say_thought(self, text: str, deltas: list[Delta]) -> None:
        self.thought = True
        self.mended.add("reasoning")
        self.violations.add("reasoning_as_text")
        if self._policy.reasoning_field != "none":
            deltas.append(_renamed({"reasoning": text}, self._policy.reasoning_field))

    def _guessed(self, segment: Segment, deltas: list[Delta]) -> bool:
        """Handles a segment of what may be thoughts without an opener. False = the guess is decided, and the segment
        goes its own way."""
        found = self._policy.thoughts
        assert found is not None
        ends = isinstance(segment, Gap) and found.closer in segment.raw
        if self._as_text:
            if isinstance(segment, (Reasoning, Gap)):
                deltas.append({"content": segment.raw})
            self._as_text = isinstance(segment, Reasoning) or (isinstance(segment, Gap) and not ends)
            return isinstance(segment, (Reasoning, Gap))
        unsaid = self._unsaid
        assert unsaid is not None
        blank = isinstance(segment, Gap) and not ends and not segment.raw.strip()
        if isinstance(segment, Reasoning) or blank:
            unsaid.append(segment.raw)
            self._held += len(segment.raw)
            if self._held > GUESS_MOST:
                self._unsaid, self._as_text, self.said = None, True, True
                deltas.append({"content": "".join(unsaid)})
            return True
        self._unsaid = None  # an opener, the end of thoughts, or a call, which ends them too
        if unsaid:
            self._say_thought("".join(unsaid), deltas)
        return False


def _bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def _renamed(delta: Delta, field: ReasoningField) -> Delta:
    """The same with thoughts under the name(s) that the alias wants."""
    if field == "as_is" or not any(name in delta for name in FIELDS):
        return delta
    said = next((delta[name] for name in FIELDS if delta.get(name) is not None), None)
    rest = {key: value for key, value in delta.items() if key not in FIELDS}
    names = FIELDS if field == "both" else () if field == "none" else (field,)
    return rest | dict.fromkeys(names, said)
