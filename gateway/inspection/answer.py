"""Checks and mends one choice of an answer while it arrives.

The same class handles a stream (many deltas) and a whole answer (one delta), so the same text gives the same result.
Deltas have OpenAI's format: `content`, `reasoning`, `tool_calls`, ...
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.inspection.calls import ToolCalls, decoded_piece, write_arguments
from gateway.inspection.finder import CallFinder, CallsInThoughts
from gateway.inspection.heuristics import (
    PLAIN_ENDS,
    begins_as_garbage,
    begins_plainly,
    closes_alone,
    is_garbage,
    opened,
)
from gateway.inspection.markers import markers_of
from gateway.inspection.mender import Mender
from gateway.inspection.other_words import ENDS, OTHER_THOUGHTS, as_tool_call, usual_delta
from gateway.inspection.policy import InspectionPolicy, ReasoningField
from gateway.inspection.reasoning import THINK, ImpliedThoughts, Thoughts
from gateway.inspection.schema_fit import answer_in
from gateway.inspection.segments import Call, Reasoning, Segment, Text
from gateway.inspection.unread_calls import FIELDS as FIELDS
from gateway.inspection.unread_calls import UnreadCalls
from gateway.transport.sse import has_other_content

Delta = dict[str, Any]

_ENDED = ("stop", "tool_calls")
PIECES_MOST = 100_000  # pieces of thoughts that are kept, where they may be the answer
SPOKEN_MOST = 1 << 20  # bytes of them


class ChoiceAnswer:
    """`violations` and `mended` are filled while the choice arrives.

    `has_content`: it has content for the client, text or a call; `has_reasoning`: it has thoughts, whether the client
    gets them or not; `called`: it has a tool call; `unfinished`: the arguments of one are no JSON; `size`: bytes of
    content and thoughts, counted only if the policy checks something; `closed_alone`: a `</think>` stood on a line of
    its own without thoughts before it."""

    def __init__(
        self, policy: InspectionPolicy, usual: Thoughts | None = None, *, blank_counts: bool = True, whole: bool = False
    ) -> None:
        """`usual`: how the model marks thoughts. If `policy` names no notation, thoughts are looked for only when the
        content begins with an opener. `blank_counts`: white space alone counts as content. `whole`: it is a whole
        answer."""
        self._policy = policy
        self._usual = usual
        self._blank_counts = blank_counts
        self._armed = policy.tools is not None or policy.thoughts is not None
        self._finder: CallFinder | None = None  # what alone looks at content that has no line end, for the time being
        self._mender: Mender | None = None  # created with the first text: an answer of calls alone needs none
        self._calls = ToolCalls(whole=whole)
        # None: the backend's calls are as it read them.
        self._unread = UnreadCalls(policy.formats, policy.tools) if policy.unread and policy.tools is not None else None
        # The beginning of the content and of the thoughts while it may still turn out to be garbage; None = decided.
        self._content_start: str | None = ""
        self._thoughts_start: str | None = ""
        # None: there are no thoughts without an opener.
        self._implied = ImpliedThoughts(policy.thoughts) if policy.thoughts and policy.thoughts.implied else None
        self._in_own_field = False
        # Thoughts, which may be the answer, or end with calls; bytes are as JSON writes a string, without its quotes.
        calls = policy.tools is not None and not policy.unread
        self._spoken: list[str | bytes] | None = [] if policy.schema or calls else None
        self._fence: str | None = None  # the content so far, which may be JSON in a fence
        self._given: object = None  # the finish_reason that was received
        self.called = False
        self.unfinished = False
        self.has_content = False
        self.has_reasoning = False
        self.size = 0
        self.closed_alone = False
        self.violations: set[str] = set()
        self.mended: set[str] = set()

    @property
    def obeyed(self) -> bool:
        """Was a tool called that `tool_choice` requires? For a named tool the first call decides: in a stream no other
        backend can be tried after that call has been sent."""
        if self._policy.call == "named":
            return self._calls.first == self._policy.name
        return self.called or not self._policy.must_call

    @property
    def begun(self) -> bool:
        """Has the content begun, and is its beginning no longer in doubt?"""
        return self._content_start is None

    @property
    def settled(self) -> bool:
        """Is the inspection of the text finished? It is after the content has begun, if no calls are looked for and
        thoughts keep their field name."""
        policy = self._policy
        if self._content_start is not None or policy.tools is not None or policy.reasoning_field != "as_is":
            return False
        if policy.thoughts is None:
            return True
        return policy.thoughts.answer is None and self._mender is not None and self._mender.past_thoughts

    @property
    def never_closed(self) -> bool:
        """Thoughts without an opener were expected, but no closing tag came, or the thoughts came in a field of their
        own. Valid after `end`."""
        return self._in_own_field or (self._implied is not None and self._implied.never_closed)

    def plain(self, text: str, finish_reason: object) -> bool:
        """`delta` and `end` for a usual text. True: there is nothing to look for in this text of a stream, nor in this
        end, and they are noted. Most events are like that."""
        if self._armed or self._fence is not None or "think>" in text:
            return False
        if text:
            if self._begins_fence(text):
                return False
            if self._content_start is not None:
                if self._content_start or not begins_plainly(text, self._usual):
                    return False
                self._content_start = None
            self._note_content(text)
        if finish_reason is not None:
            if finish_reason not in PLAIN_ENDS or self.called or self.has_reasoning:
                return False
            self._given = finish_reason
        return True

    def _begins_fence(self, text: object) -> bool:
        """Does the answer begin with a fence, where JSON was asked for?"""
        if self.has_content or not self._policy.schema or not isinstance(text, str):
            return False
        return text.lstrip()[:1] == "`"

    def _without_fenced(self, delta: Delta) -> Delta:
        """The delta without its content, which is held: whether it is JSON in a fence shows at its end."""
        self._fence = (self._fence or "") + str(delta.get("content") or "")
        return {name: value for name, value in delta.items() if name != "content"}

    def text(self, text: str) -> list[Delta] | None:
        """The same as `delta` for a delta with only this content. None = it is passed on unchanged."""
        if self._unread is not None and self._unread.awaits:
            deltas = self.delta({"content": text})
            return None if deltas == [{"content": text}] else deltas
        return self._content(text)

    def _content(self, text: str) -> list[Delta] | None:
        if self._content_start is not None:
            self._note_start(text)
        if "think>" not in text:
            return self._text(text)
        alone = not self.has_reasoning
        deltas = self._text(text)
        if alone:
            self.note_close(text)
        return deltas

    def passes(self, text: str) -> bool:
        """Instead of `text`, for more text in which nothing is found: then it is noted. False = nothing was done."""
        if not text or ("think>" in text and "</" in text) or (self._unread is not None and self._unread.awaits):
            return False
        finder = self._finder
        if finder is not None:
            if "\n" in text or not finder.passes(text):
                return False
        else:
            mender = self._mender
            if mender is None or not (self.has_content and mender.passes(text)):
                return False
            self._finder = mender.finder
        self.size += len(text) if text.isascii() else bytes_of(text)
        return True

    def passes_thoughts(self, text: bytes) -> bool:
        """Note a further piece of the thoughts, as JSON writes it without its quotes, that is sent as it is. False:
        nothing was done, because their beginning is still checked."""
        if self._thoughts_start is not None or not self.has_reasoning or self._policy.reasoning_field != "as_is":
            return False
        if self._spoken is not None and (len(self._spoken) > PIECES_MOST or self.size > SPOKEN_MOST):
            return False
        if self._unread is not None and not self._unread.passes_thoughts(decoded_piece(text)):
            return False
        if self._spoken is not None:
            self._spoken.append(text)
        if self._armed:
            self.size += len(text) - text.count(b"\\") + text.count(b"\\\\")  # each escape is one byte
        return True

    def passes_arguments(self, call: int, text: bytes) -> bool:
        """The same for a further piece of the arguments of the call with this index."""
        if self._unread is not None and not self._unread.passes(call, decoded_piece(text)):
            return False
        return self._calls.add_piece(call, text)

    def begin_in_thoughts(self) -> bool:
        """The content that comes now is the first, and begins with thoughts that have no opener. False: some has come
        already; nothing was done."""
        if self.has_content or self.has_reasoning or self._mender is not None:
            return False
        unopened = (self._usual or THINK).with_opener_implied()
        self._policy, self._armed = replace(self._policy, thoughts=unopened), True
        self._implied = ImpliedThoughts(unopened)
        return True

    def note_close(self, text: str) -> None:
        """Detect a closing tag of thoughts without an opener in this part of the content. In a stream such thoughts
        have already been sent as content, and a tag that is split over several events is not detected."""
        if closes_alone(text) and not (self._mender is not None and self._mender.opened):
            self.closed_alone = True

    def _text(self, text: str) -> list[Delta] | None:
        if not self._armed:
            self._note_content(text)
            return None
        self.size += bytes_of(text)
        mender = self._mender
        if mender is None:
            policy = self._policy
            tools = policy.tools if policy.tools is not None else ()
            mender = self._mender = Mender(policy.formats, tools, self._thoughts_to_find())
        if text and mender.passes(text):
            if not self.has_content:
                self._note_content(text)
            return None
        self._finder = None
        segments = mender.feed(text)
        if len(segments) == 1 and type(segments[0]) is Text and segments[0].text == text:
            if not self.has_content:
                self._note_content(text)
            return None
        return self._deltas(segments)

    def _note_content(self, text: str) -> None:
        self.has_content = self.has_content or self._blank_counts or not text.isspace()

    def _note_start(self, text: str) -> None:
        """Check the beginning of the content for garbage, and for thoughts where the policy does not look for them."""
        assert self._content_start is not None
        start = (self._content_start + text).lstrip()
        if start and not self._armed and not self._content_start:
            style = opened(start, self._usual)
            if style is not None:
                self._policy, self._armed = replace(self._policy, thoughts=style), True
        self._content_start = self._still_garbage(start)

    def _still_garbage(self, start: str) -> str | None:
        """Add the violation if the text is garbage. Returns the beginning while that is not decided, else None."""
        found = begins_as_garbage(start)
        if found:
            self.violations.add("garbage")
        return start if found is None else None

    def delta(self, delta: Delta) -> list[Delta]:
        """The deltas to send to the client for this one: `[delta]` itself if nothing has to change."""
        if type(delta.get("content")) is list or not OTHER_THOUGHTS.isdisjoint(delta):
            delta = usual_delta(delta)
        if self._fence is not None or self._begins_fence(delta.get("content")):
            delta = self._without_fenced(delta)
        if self._policy.tools is not None and isinstance(old := delta.get("function_call"), dict):
            delta = as_tool_call(delta) if self.called or old.get("name") in self._policy.tools else delta
        if self._unread is None:
            return self._delta(delta)
        return [made for one in self._unread.take(delta) for made in self._delta(one)]

    def _delta(self, delta: Delta) -> list[Delta]:
        content, calls = delta.get("content"), delta.get("tool_calls")
        for name in FIELDS:
            if thought := delta.get(name):
                self._note_reasoning(thought)
        mended: list[Delta] | None = None
        if content:
            if isinstance(content, str):
                mended = self._content(content)
            else:
                self.has_content = True  # a list of parts
        if not self.has_content:
            self.has_content = has_other_content(delta)
        changed = mended is not None
        if calls and isinstance(calls, list):
            if self._policy.tools is None:
                changed = write_arguments(calls) or changed
            else:
                changed = self._calls.note(calls, self._policy.tools) or changed
                self.called = bool(self._calls)
        if not changed:
            field = self._policy.reasoning_field
            return [delta if field == "as_is" else _renamed(delta, field)]
        rest = {key: value for key, value in delta.items() if key not in ("content", "tool_calls")}
        out = [_renamed(rest, self._policy.reasoning_field)] if rest else []
        out += [{"content": content}] if mended is None and content else mended or []
        return [*out, {"tool_calls": calls}] if calls else out

    def _note_reasoning(self, thought: object) -> None:
        self.has_reasoning = True
        if self._spoken is not None and isinstance(thought, str):
            self._spoken.append(thought)
            if len(self._spoken) > PIECES_MOST or self.size > SPOKEN_MOST:
                self._spoken = None
        if self._thoughts_start is not None and isinstance(thought, str):
            self._thoughts_start = self._still_garbage((self._thoughts_start + thought).lstrip())
        if self._armed:
            self.size += bytes_of(str(thought))

    def _thoughts_to_find(self) -> Thoughts | None:
        """How thoughts are marked in content that begins now; with an opener, if others came in their own field."""
        found = self._policy.thoughts
        if found is None or not (found.implied and self.has_reasoning):
            return found
        self._implied, self._in_own_field = None, True
        return replace(found, implied=False)

    def end(self, finish_reason: object, *, cut: bool = False) -> tuple[list[Delta], object]:
        """The choice is complete. Returns (the deltas that are still to be sent, the corrected finish_reason). `cut`:
        the answer has as many tokens as were allowed."""
        self._given = finish_reason
        deltas = self._end_unread(cut=finish_reason == "length")
        deltas += self._deltas(self._mender.finish()) if self._mender is not None else []
        if self._mender is not None and self._mender.saw_thoughts_later and not self.settled:
            self.violations.add("reasoning_as_text")  # they stay in the content: the text before them has been sent
        if self._implied is not None:
            deltas += self._deltas(self._implied.finish(cut=finish_reason == "length"))
        if self._fence is not None:
            content = answer_in(self._fence, self._policy.schema) or self._fence
            deltas.append({"content": content})
            self._note_content(content)
        if self._spoken and finish_reason in _ENDED and not (self.has_content or self.called):
            deltas += self._end_spoken()
        if self.called and (rest := self._calls.finish(cut=finish_reason == "length")):
            deltas.append({"tool_calls": rest})
        if self._calls.mended:
            self._note_mended()
        complete = self.called and finish_reason != "length" and self._judge_calls(cut)
        complete = complete and not (self._unread is not None and self._unread.cut)
        finish_reason = self._finish(finish_reason, complete=complete)
        if finish_reason == "length" and self.has_reasoning and not (self.has_content or self.called):
            self.violations.add("reasoning_cut")  # vLLM forces a call only after the thoughts
        elif self._policy.must_call and not self.obeyed:
            self.violations.add("tool_choice_ignored")
        return deltas, finish_reason

    def _end_spoken(self) -> list[Delta]:
        """What stands in the thoughts of a turn that has nothing else: the answer in the form that was asked for, or
        the calls with which they end."""
        policy, pieces = self._policy, self._spoken or ()
        spoken = "".join(piece if isinstance(piece, str) else decoded_piece(piece) for piece in pieces)
        if policy.schema and (answer := answer_in(spoken, policy.schema)) is not None:
            self._note_content(answer)
            return [{"content": answer}]
        tools = policy.tools
        if tools is None or markers_of(tuple(policy.formats)).anywhere.search(spoken) is None:
            return []
        drafts = CallsInThoughts(lambda: CallFinder(policy.formats, tools))
        drafts.feed(spoken)
        return self._deltas([segment for segment in drafts.finish() if isinstance(segment, Call)])

    def _end_unread(self, *, cut: bool) -> list[Delta]:
        """What is left of calls that the backend could not read."""
        unread = self._unread
        if unread is None:
            return []
        deltas = [made for one in unread.finish(cut=cut) for made in self._delta(one)]
        rest, calls = unread.finish_thoughts(cut=cut or self.has_content or self.called)
        for one in rest:
            deltas += self._delta(one)
        deltas += self._deltas(calls)
        if unread.mended:
            self._note_mended()
        return deltas

    def _note_mended(self) -> None:
        """The arguments of a call were no JSON, and are now."""
        self.mended.add("tool_calls")
        self.violations.add("arguments_not_json")

    def judge(self, *, cut: bool) -> None:
        """The whole answer has arrived. `cut`: as in `end`; in a stream it is often known only now."""
        for start in (self._content_start, self._thoughts_start):
            if start and is_garbage(start):
                self.violations.add("garbage")
        if cut and self._given == "tool_calls" and not self._judge_calls(True):
            self.violations.add("finish_reason")

    def _judge_calls(self, cut: bool) -> bool:
        """Check the calls. False if the token limit cut off the last one."""
        tools = self._policy.tools
        if tools is None:
            return True
        wrong: set[str] = set()
        whole = self._calls.judge(tools, wrong, cut=cut)
        self.unfinished = "arguments_not_json" in wrong
        self.violations |= wrong
        return whole

    def _finish(self, given: object, *, complete: bool) -> object:
        if given == "repetition":
            self.violations.add("repetition")
            given = "stop"
        given = ENDS.get(given, given) if isinstance(given, str) else given
        if self._policy.tools is None:
            return given
        if self.called and given == "function_call":
            return "tool_calls"
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
        for segment in segments if self._implied is None else self._implied.feed(segments):
            if isinstance(segment, Text):
                self._note_content(segment.text)
                deltas.append({"content": segment.text})
            elif isinstance(segment, Reasoning):
                self.has_reasoning = True
                self.mended.add("reasoning")
                self.violations.add("reasoning_as_text")
                if self._policy.reasoning_field != "none":
                    deltas.append(_renamed({"reasoning": segment.text}, self._policy.reasoning_field))
            elif isinstance(segment, Call):
                self.mended.add("tool_calls")
                self.violations.add("tool_call_as_text")
                self.called = True
                deltas.append({"tool_calls": [self._calls.add(segment)]})
        return deltas


def bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def _renamed(delta: Delta, field: ReasoningField) -> Delta:
    """The delta with its thoughts under the field names that the alias configures."""
    if field == "as_is" or not any(name in delta for name in FIELDS):
        return delta
    text = next((delta[name] for name in FIELDS if delta.get(name) is not None), None)
    rest = {key: value for key, value in delta.items() if key not in FIELDS}
    names = FIELDS if field == "both" else () if field == "none" else (field,)
    return rest | dict.fromkeys(names, text)
