"""Checks and mends every answer: `inspect` takes the choices of each event as they arrive, `judge` concludes once. A
whole answer is a stream of one event whose delta is the `message`.

whole.py and stream_track.py read the answer's bytes, write the mended ones, and decide when they are sent to the
client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gateway.domain.endpoints import CHAT
from gateway.domain.request import InferenceRequest
from gateway.domain.tokens import read_usage
from gateway.inspection.answer import FIELDS, ChoiceAnswer, Delta, bytes_of
from gateway.inspection.calls import mended_whole
from gateway.inspection.heuristics import closes_alone, is_plain_under, opened, plain_text, swallowed
from gateway.inspection.policy import NOTHING_EXPECTED, InspectionPolicy, closes_thoughts
from gateway.inspection.reasoning import THINK, Thoughts
from gateway.inspection.shape import fault_in_delta, fault_in_end, fault_in_message, fault_in_text
from gateway.transport.sse import Choice, content_of, number_of

UNFINISHED = "ended a call whose arguments are no JSON"


class Inspector:
    """Call `inspect` with the choices of each event in order, then `judge` once, after the last event.

    `failure`: why this is no answer, or a broken one. `finished`: the finish_reason of each choice that has one, as the
    client gets it. Valid after `judge`: `disobeyed` (the required call did not come), `empty` (there was no content,
    and the token limit was not the cause), `stray_close` (thoughts without an opener ended in the content),
    `never_closed` (thoughts without an opener were expected, and there were none), `violations`, `mended`."""

    __slots__ = (
        "_answers",
        "_awaits",
        "_chat",
        "_may_settle",
        "_policy",
        "_request",
        "_thoughts",
        "disobeyed",
        "empty",
        "failure",
        "finished",
        "mended",
        "never_closed",
        "stray_close",
        "usage",
        "violations",
    )

    def __init__(
        self, request: InferenceRequest, policy: InspectionPolicy | None = None, thoughts: Thoughts | None = None
    ) -> None:
        """`policy`: what is checked and mended; None = only what is checked in every answer. `thoughts`: how this
        backend's model marks its thoughts; None = it does not, or that is not known."""
        self._request = request
        self._policy = policy if policy is not None else NOTHING_EXPECTED
        self._thoughts = thoughts
        self._chat = request.endpoint is CHAT
        # With tools an empty turn is tried again: then white space or thoughts alone do not count as content.
        self._awaits = (self._policy.tools is not None or self._policy.schema != b"") and request.choices == 1
        self._may_settle = self._policy.tools is None and self._policy.reasoning_field == "as_is"
        self._answers: dict[int, ChoiceAnswer] = {}  # by the index of the choice
        self.usage: dict[str, Any] | None = None
        self.failure: str | None = None
        self.finished: dict[int, object] = {}
        self.disobeyed = False
        self.empty = False
        self.stray_close = False
        self.never_closed = False
        self.violations: set[str] = set()
        self.mended: set[str] = set()

    @property
    def called(self) -> bool:
        """Does any choice call a tool?"""
        return any(answer.called for answer in self._answers.values())

    @property
    def reasoned(self) -> bool:
        """Has any choice thoughts?"""
        return any(answer.has_reasoning for answer in self._answers.values()) or "nothing_said" in self.violations

    @property
    def obeyed(self) -> bool:
        """Does any choice call a tool that `tool_choice` requires?"""
        return any(answer.obeyed for answer in self._answers.values())

    @property
    def settled(self) -> bool:
        """Is the inspection of the text finished for every choice?"""
        if not (self._may_settle and self._chat):
            return not self._chat
        if len(self._answers) < self._request.choices:
            return False
        for answer in self._answers.values():  # noqa: SIM110 (a generator costs more)
            if not answer.settled:
                return False
        return True

    @property
    def begun(self) -> bool:
        """Is the beginning of the content of every choice no longer in doubt?"""
        return all(answer.begun for answer in self._answers.values())

    # -- each event -----------------------------------------------------------------------------------------------

    def fault_in(self, choices: Sequence[Choice], *, whole: bool = False) -> str | None:
        """Why these choices are no valid (part of an) answer; None = they are. `whole`: they are a whole answer."""
        for choice in choices:
            if not self._chat:
                fault = fault_in_text(choice.text)
            elif whole:
                fault = fault_in_message(choice.delta)
            else:
                fault = fault_in_delta(choice.delta)
            if fault is not None or (fault := fault_in_end(choice.finish_reason, whole=whole)) is not None:
                return fault
        return None

    def inspect(self, choices: Sequence[Choice], *, whole: bool = False) -> list[Choice] | None:
        """Inspect the choices of one event. Returns the choices to send instead, in order (one may become several, or
        none); None = they are passed on unchanged. `whole`: the event is the whole answer."""
        made: list[Choice] | None = None  # set once one of them has changed
        for position, choice in enumerate(choices):
            deltas, finish = self._inspect_one(choice, whole)
            if deltas is None:
                if made is not None:
                    made.append(self._made(choice, choice.delta, finish))
                continue
            if made is None:
                made = [self._made(one, one.delta, one.finish_reason) for one in choices[:position]]
            for i, delta in enumerate(deltas, 1):
                made.append(self._made(choice, delta, finish if i == len(deltas) else None))
        return made

    def _inspect_one(self, choice: Choice, whole: bool) -> tuple[list[Delta] | None, object]:
        """(the deltas to send instead; None = the choice is passed on unchanged, its finish_reason)."""
        number, finish = choice.index, choice.finish_reason
        if type(number) is not int:
            number = number_of(number)
        delta = choice.delta if isinstance(choice.delta, dict) else {}
        answer = self._answers.get(number)
        if answer is None:
            answer = self._answers[number] = self._begin(delta, whole)
        if not self._chat:
            answer.has_content = answer.has_content or bool(choice.text)
        elif not whole and self._begins_in_thoughts(delta) and answer.begin_in_thoughts():
            self.stray_close = True
        calls = delta.get("tool_calls") if whole and finish != "length" and self._policy.mends_arguments else None
        if calls and (mended := mended_whole(calls)) is not calls:
            delta = {**delta, "tool_calls": mended}
            answer.mended.add("tool_calls")
        deltas = answer.delta(delta)
        same = len(deltas) == 1 and deltas[0] is choice.delta
        if finish is None:
            return (None if same else deltas), None
        rest, finish = answer.end(finish, cut=answer.called and self._is_cut())
        self.finished[number] = finish
        if finish == "tool_calls" and answer.unfinished:
            self.failure = UNFINISHED  # a client would run it, or fail on it
        if same and not rest and finish == choice.finish_reason:
            return None, finish
        return [*deltas, *rest] or [{}], finish

    def _made(self, choice: Choice, delta: Delta, finish: object) -> Choice:
        return Choice(number_of(choice.index), delta, None if self._chat else choice.text, finish)

    def inspect_plain(self, choice: Choice) -> str | None:
        """The usual case of `fault_in` and `inspect` for the only choice of a stream's event: its text, if there is
        nothing else but a role and a plain end, and nothing to look for; else None."""
        delta, finish = choice.delta, choice.finish_reason
        if not self._chat or type(delta) is not dict or choice.index != 0 or type(choice.index) is not int:
            return None
        text = ""
        for name, value in delta.items():
            if value is None:
                continue
            if type(value) is not str or (name != "content" and name != "role"):
                return None
            if name == "content":
                text = value
        answer = self._answers.get(0)
        if answer is None:
            answer = ChoiceAnswer(self._policy, self._thoughts, blank_counts=not self._awaits)
        if not answer.plain(text, finish):
            return None
        self._answers[0] = answer
        if finish is not None:
            self.finished[0] = finish
        return text

    def inspect_text(self, text: str) -> list[Delta] | None:
        """The same for an event with only this text, in the only choice, which has begun. None = unchanged."""
        return self._answers[0].text(text)

    def note_close(self, choices: Sequence[Choice]) -> None:
        """Detect closing tags of thoughts in events that are passed on without inspection."""
        for choice in choices:
            answer = self._answers.get(number_of(choice.index))
            if answer is not None and not answer.has_reasoning:
                answer.note_close(content_of(choice))

    def _begin(self, delta: Delta, whole: bool) -> ChoiceAnswer:
        policy = self._policy
        if whole and self._chat and self._closes_unopened(delta):
            policy = replace(policy, thoughts=(self._thoughts or THINK).with_opener_implied())
            self.stray_close = True
        return ChoiceAnswer(policy, self._thoughts, blank_counts=not self._awaits, whole=whole)

    def _begins_in_thoughts(self, delta: Delta) -> bool:
        content = delta.get("content")
        return type(content) is str and "think>" in content and self._closes_unopened(delta)

    def _closes_unopened(self, message: Delta) -> bool:
        """Do thoughts without an opener end in this content? In a whole answer they can be split off; in a stream they
        have been sent as content by then."""
        text = content_of(Choice(delta=message))
        if (
            not closes_alone(text)
            or opened(text, self._thoughts) is not None
            or any(message.get(name) for name in FIELDS)
        ):
            return False
        return closes_thoughts(self._request, self._thoughts)

    def _is_cut(self) -> bool:
        """Does the answer have as many tokens as were allowed, by the usage that has arrived so far?"""
        limit = self._request.limit()
        return limit is not None and read_usage(self.usage).completion == limit

    def note_plain(self, message: object, finish: object) -> bool:
        """`inspect` for a usual whole answer of one choice. True: plain text, in which there is nothing to mend and
        nothing to count, and `inspect` and `judge` would find the same. Most answers are."""
        if not self._chat or type(message) is not dict:
            return False
        text = plain_text(message, finish, self._thoughts)
        if text is None or not is_plain_under(self._policy, text):
            return False
        if self._awaits and swallowed(bytes_of(text), self.usage):
            return False
        self.finished[0] = finish
        return True

    # -- the whole answer -----------------------------------------------------------------------------------------

    def judge(self, *, sent: bool) -> None:
        """Judge the answer as a whole, after its last event. `sent`: some of its content has been sent to the client,
        so no other backend can be tried for the required call."""
        called = obeyed = has_content = has_reasoning = closed_alone = False
        size = 0
        for answer in self._answers.values():
            answer.judge(cut=answer.called and self._is_cut())
            self.violations |= answer.violations
            self.mended |= answer.mended
            self.never_closed = self.never_closed or answer.never_closed
            closed_alone = closed_alone or answer.closed_alone
            called, obeyed = called or answer.called, obeyed or answer.obeyed
            has_content, has_reasoning = has_content or answer.has_content, has_reasoning or answer.has_reasoning
            size += answer.size
        self._judge_thoughts(closed_alone)
        self._judge_calls(sent, called, obeyed, size)
        self._judge_emptiness(sent or has_content or called, has_reasoning)

    def _judge_thoughts(self, closed_alone: bool) -> None:
        if closed_alone and not self.stray_close:
            self.stray_close = closes_thoughts(self._request, self._thoughts)
        if self.stray_close:
            self.violations.add("reasoning_as_text")

    def _judge_calls(self, sent: bool, called: bool, obeyed: bool, size: int) -> None:
        cut_short = "reasoning_cut" in self.violations  # vLLM forces a call only after the thoughts
        if self._policy.must_call and not (sent or cut_short or obeyed):
            self.disobeyed = True
        if self.disobeyed:
            self.violations.add("tool_choice_ignored")
        if self._awaits and self._policy.tools is not None and not called and swallowed(size, self.usage):
            self.violations.add("swallowed")

    def _judge_emptiness(self, has_content: bool, has_reasoning: bool) -> None:
        no_content = not has_content and "length" not in self.finished.values()
        if no_content and has_reasoning:
            self.violations.add("nothing_said")
        self.empty = no_content and not (has_reasoning and not self._awaits)
