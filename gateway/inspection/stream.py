"""The choices of one stream, checked and mended event by event: what has to change becomes events of its own.

Each choice goes through its own `ChoiceAnswer`. Nothing is sent or held here: `stream_track.py` does that.
"""

from __future__ import annotations

from gateway.inspection.answer import ChoiceAnswer
from gateway.inspection.policy import Expected
from gateway.inspection.rewrite import rebuilt
from gateway.transport.sse import BROKEN_ENDS, Choice, content_of, is_plain, number_of

Changed = list[tuple[bytes, Choice]]  # events to send instead of one, and what each says


class StreamCheck:
    """Checks `choices` choices. An event goes through `changed`; one that differs from the last in its text alone (see
    `text_of`), through `changed_text`."""

    __slots__ = ("_answers", "_choices", "_expected", "_frame", "_may_end", "ended", "over")

    def __init__(self, expected: Expected, choices: int) -> None:
        self._expected = expected
        self._choices = choices
        # With no calls to look for, and thoughts under the name that they have, content ends the search.
        self._may_end = expected.tools is None and expected.reasoning_field == "as_is"
        self._answers: dict[int, ChoiceAnswer] = {}  # by the number of the choice
        self._frame: tuple[bytes, bytes] | None = None  # what stands before and after the text in nearly every event
        self.ended: list[ChoiceAnswer] = []  # choices in which nothing more can be found
        self.over = False  # that is so in all, before their end: from here on the bytes can go on as they are

    @property
    def must_call(self) -> bool:
        return self._expected.must_call

    @property
    def called(self) -> bool:
        """Does any choice call a tool?"""
        return any(answer.called for answer in self._answers.values())

    @property
    def obeyed(self) -> bool:
        """Does any choice call a tool that `tool_choice` asked for?"""
        return any(answer.obeyed for answer in self._answers.values())

    @property
    def size(self) -> int:
        """Bytes of content and thoughts so far."""
        return sum(answer.size for answer in self._answers.values())

    def changed(self, event: bytes, choices: list[Choice]) -> Changed | None:
        """What becomes of this event, which has these choices; None = it goes on as it is."""
        made: list[Choice] = []
        same = True
        for choice in choices:
            number = number_of(choice.index)
            answer = self._answers.get(number)
            if answer is None:
                answer = self._answers[number] = ChoiceAnswer(self._expected)
            delta = choice.delta if isinstance(choice.delta, dict) else {}
            deltas, finish = answer.delta(delta), choice.finish_reason
            same = same and len(deltas) == 1 and deltas[0] is delta
            if finish is not None and finish not in BROKEN_ENDS:
                rest, finish = answer.end(finish)
                same = same and not rest and finish == choice.finish_reason
                deltas += rest
                self.ended.append(answer)
            if finish is not None and not deltas:
                deltas = [{}]
            for i, one in enumerate(deltas, 1):
                made.append(Choice(number, one, None, finish if i == len(deltas) else None))
        if self._may_end and len(self._answers) >= self._choices and all(a.said for a in self._answers.values()):
            self.over = True
            self.ended += self._answers.values()
        return None if same else list(zip(rebuilt(event, made), made, strict=True))

    # -- text, told without parsing -------------------------------------------------------------------------------

    def learn_frame(self, event: bytes, choices: list[Choice]) -> None:
        """What stands around the text in this event, when it is of the only choice and says nothing but text."""
        if self._frame is not None or self._choices > 1 or len(choices) > 1:
            return
        choice = choices[0]
        text = content_of(choice)
        if not text or choice.index != 0 or choice.finish_reason is not None or choice.delta.keys() != {"content"}:
            return
        before, found, rest = event.partition(b'"content":"')
        raw = text.encode()
        if found and rest.startswith(raw + b'"') and is_plain(event) and b"\\" not in raw and b'"usage"' not in event:
            self._frame = before + found, rest[len(raw) :]

    def text_of(self, event: bytes) -> str | None:
        """The text of an event that is like an earlier one but for its text; None = it has to be parsed."""
        if self._frame is None:
            return None
        before, after = self._frame
        if not (event.startswith(before) and event.endswith(after)):
            return None
        raw = event[len(before) : -len(after)]
        return None if b'"' in raw or b"\\" in raw else raw.decode("utf-8", "replace")

    def changed_text(self, event: bytes, text: str) -> Changed | None:
        """The same as `changed` for an event of which `text_of` has told the text."""
        deltas = self._answers[0].text(text)
        if deltas is None:
            return None
        if not deltas:  # kept back: it may be part of a call
            return []
        made = [Choice(0, delta) for delta in deltas]
        return list(zip(rebuilt(event, made), made, strict=True))
