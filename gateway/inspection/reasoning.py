"""Splits thoughts from the content while it arrives."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gateway.inspection.channels import HEADS, WORDS, ChannelSplitter
from gateway.inspection.markers import begun
from gateway.inspection.segments import Gap, Reasoning, Segment, Text


@dataclass(frozen=True, slots=True)
class Thoughts:
    """How a family of models marks its thoughts. An opener counts only at the start of the content.

    `implied`: the opener may be missing, e.g. because the prompt ended with it. Then all text up to `closer` is
    thoughts, or, if `bare` names strings, only text that begins with one of them. `other_closers`: strings that also
    end thoughts. `answer`: the tags around the content, if any. `words`: what is left of the openers where a server
    takes special tokens out of the text; then channels.py splits it."""

    openers: tuple[str, ...]
    closer: str
    bare: tuple[str, ...] = ("",)
    implied: bool = False
    other_closers: tuple[str, ...] = ()
    answer: tuple[str, str] | None = None
    words: tuple[str, ...] = ()

    @property
    def is_tag(self) -> bool:
        """Do thoughts end with `</think>`, or the same with a prefix? Templates open those in the prompt."""
        return self.closer.endswith("think>")

    def with_opener_implied(self) -> Thoughts:
        return dataclasses.replace(self, implied=True)

    @property
    def closers(self) -> tuple[str, ...]:
        return (self.closer, *self.other_closers)

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags. A text without any of them is not changed (unless the opener is implied)."""
        return (*self.openers, *self.closers, *(self.answer or ()))

    @property
    def starts(self) -> tuple[str, ...]:
        """All strings that may open thoughts, longest first."""
        return tuple(sorted(self.openers + (self.bare if self.implied else ()), key=len, reverse=True))


THINK = Thoughts(("<think>",), "</think>")
_THINKERS = (
    *("qwen3", "deepseek_r1", "deepseek_v3", "deepseek_v4", "glm45", "glm47", "kimi_k2", "nemotron_v3", "minimax_m2"),
    *("minimax_m2_append_think", "step3", "step3p5", "step5", "mimo", "ling3", "poolside_v1", "ernie45", "holo2"),
    *("olmo3", "hy_v4"),
)
REASONING: Mapping[str, Thoughts] = MappingProxyType(
    {
        **dict.fromkeys(_THINKERS, THINK),
        "minimax_m3": Thoughts(("<mm:think>", "<think>"), "</mm:think>", other_closers=("</think>",)),
        "openai_gptoss": Thoughts(
            HEADS,
            "<|end|>",
            answer=("<|start|>assistant<|channel|>final<|message|>", "<|return|>"),
            words=WORDS,
        ),
        "seed_oss": Thoughts(("<seed:think>",), "</seed:think>"),
        "mistral": Thoughts(("[THINK]",), "[/THINK]"),
        "granite": Thoughts(
            ("Here is my thought process:", "Here's my thought process:"),
            "Here is my response:",
            other_closers=("Here's my response:",),
        ),
        "hunyuan_a13b": Thoughts(("<think>",), "</think>", answer=("<answer>", "</answer>")),
        "kimi_k3": Thoughts(
            ("<|open|>think<|sep|>",),
            "<|close|>think<|sep|>",
            answer=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
        ),
        "cohere_command4": Thoughts(
            ("<|START_THINKING|>",), "<|END_THINKING|>", answer=("<|START_TEXT|>", "<|END_TEXT|>")
        ),
        "cohere_command3": Thoughts(
            ("<|START_THINKING|>",), "<|END_THINKING|>", answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>")
        ),
        "gemma4": Thoughts(("<|channel>thought\n", "<|channel>"), "<channel|>", bare=("thought\n",)),
    }
)
"""vLLM's `--reasoning-parser` -> its notation of thoughts."""


class Splitter:
    """Returns thoughts as Reasoning, their tags (and thoughts of white space alone) as Gap, the rest as Text."""

    def __init__(self, thoughts: Thoughts) -> None:
        self._openers = thoughts.openers
        self._starts = thoughts.starts
        self._closers = thoughts.closers
        self._closing = begun(self._closers)
        self._answer = thoughts.answer[0] if thoughts.answer is not None else ""
        self._most_space = max(map(len, (*self._starts, *self._closers)))
        # A function of the class, not a bound method: that would make a cycle.
        self._state: Callable[[Splitter, str, bool], list[Segment]] = Splitter._opening
        self.done = False  # only content can follow
        self._held = ""
        self._has_text = False  # the thoughts have more than white space
        self.opened = False  # the content began with an opener

    def feed(self, text: str) -> list[Segment]:
        return self._step(text, False)

    def finish(self) -> list[Segment]:
        return self._step("", True)

    def _step(self, text: str, final: bool) -> list[Segment]:
        text, self._held = self._held + text, ""
        return self._state(self, text, final) if text else []

    def _opening(self, text: str, final: bool) -> list[Segment]:
        begin = len(text) - len(text.lstrip())
        if begin <= self._most_space:
            for start in self._starts:
                if text.startswith(start, begin):
                    self.opened = start in self._openers
                    return self._open(text, begin + len(start) if start else 0, final)
                if not final and start.startswith(text[begin:]):
                    self._held = text
                    return []
        elif "" in self._starts:
            return self._open(text, 0, final)
        self._state = Splitter._before_answer
        return self._before_answer(text, final)

    def _open(self, text: str, end: int, final: bool) -> list[Segment]:
        self._state = Splitter._inside
        tag: list[Segment] = [Gap(text[:end])] if end else []
        return tag + (self._inside(text[end:], final) if end < len(text) else [])

    def _inside(self, text: str, final: bool) -> list[Segment]:
        match = self._closing.search(text)
        closed = match.group() if match is not None and match.group() in self._closers else ""
        end = len(text) if match is None or (final and not closed) else match.start()
        thought = text[:end]
        if not self._has_text and not thought.strip() and len(thought) <= self._most_space:
            return self._only_space(text, end, closed, final)
        self._has_text = True
        segments: list[Segment] = [Reasoning(thought)] if thought else []
        if not closed:
            self._held = text[end:]
            return segments
        return segments + self._close(text, end, end + len(closed), final)

    def _only_space(self, text: str, end: int, closed: str, final: bool) -> list[Segment]:
        """Handle thoughts that are only white space so far."""
        if closed:
            return self._close(text, 0, end + len(closed), final)
        if final:
            return [Gap(text)]
        self._held = text
        return []

    def _close(self, text: str, start: int, end: int, final: bool) -> list[Segment]:
        self._state = Splitter._before_answer
        return [Gap(text[start:end]), *(self._before_answer(text[end:], final) if end < len(text) else [])]

    def _before_answer(self, text: str, final: bool) -> list[Segment]:
        """Return the tag that opens the answer, with the white space around it, as Gap."""
        begin = len(text) - len(text.lstrip())
        rest = text[begin:]
        if self._answer and begin <= self._most_space:
            if not final and self._answer.startswith(rest):
                self._held = text
                return []
            if rest.startswith(self._answer):
                end = begin + len(self._answer)
                if end == len(text) and not final:
                    self._held = text
                    return []
                end += text.startswith("\n", end)
                self._state, self.done = Splitter._outside, True
                return [Gap(text[:end]), *([Text(text[end:])] if end < len(text) else [])]
        self._state, self.done = Splitter._outside, True
        return [Text(text)]

    def _outside(self, text: str, final: bool) -> list[Segment]:
        return [Text(text)]


def splitter_of(thoughts: Thoughts) -> Splitter | ChannelSplitter:
    return ChannelSplitter() if thoughts.words else Splitter(thoughts)


GUESS_MOST = 256 * 1024  # most characters that are held while it is not decided whether they are thoughts


class ImpliedThoughts:
    """Text that may be thoughts without an opener. It is held until that is decided, so no text is sent both as
    thoughts and as content. `never_closed`: there was such text, and no closing tag came."""

    def __init__(self, thoughts: Thoughts) -> None:
        self._closers = thoughts.closers
        self._held: list[str] | None = []  # None: it is decided what the text was
        self._size = 0  # characters of it
        self._as_text = False  # too much was held: the rest of the text in doubt is content
        self.never_closed = False

    def feed(self, segments: list[Segment]) -> list[Segment]:
        """The segments with what has been decided in its place."""
        return [made for segment in segments for made in self._decide(segment)]

    def _decide(self, segment: Segment) -> list[Segment]:
        doubtful = isinstance(segment, Reasoning) or (
            isinstance(segment, Gap) and not any(closer in segment.raw for closer in self._closers)
        )
        if self._as_text:
            self._as_text = doubtful
            return [Text(segment.raw)] if isinstance(segment, (Reasoning, Gap)) else [segment]
        held = self._held
        if held is None:
            return [segment]
        if isinstance(segment, Reasoning) or (doubtful and not segment.raw.strip()):
            held.append(segment.raw)
            self._size += len(segment.raw)
            if self._size <= GUESS_MOST:
                return []
            self._held, self._as_text = None, True
            return [Text("".join(held))]
        self._held = None  # an opener, the end of thoughts, or a call, which ends them too
        return [Reasoning("".join(held)), segment] if held else [segment]

    def finish(self, *, cut: bool) -> list[Segment]:
        """The text that was held is the answer. `cut`: a limit may have cut off the tag, so this proves nothing."""
        held, self._held = self._held, None
        self.never_closed = bool(held) and not cut
        return [Text("".join(held))] if held else []


class AnswerEnd:
    """Removes the tag that ends the answer, and the newline before it, from the content."""

    __slots__ = ("_begun", "_closing", "_held")

    def __init__(self, closer: str) -> None:
        self._closing = (f"\n{closer}", closer)
        self._begun = begun(self._closing)
        self._held = ""

    def feed(self, segments: list[Segment], *, final: bool = False) -> list[Segment]:
        out: list[Segment] = []
        for segment in segments:
            if isinstance(segment, Text):
                out += self._text(segment.text)
            else:
                out += [*self._rest(), segment]
        return out + (self._rest() if final else [])

    def _rest(self) -> list[Segment]:
        held, self._held = self._held, ""
        return [Text(held)] if held else []

    def _text(self, text: str) -> list[Segment]:
        text, self._held = self._held + text, ""
        out: list[Segment] = []
        at = 0
        for match in self._begun.finditer(text):
            if match.start() > at:
                out.append(Text(text[at : match.start()]))
            at = match.end()
            if match.group() in self._closing:
                out.append(Gap(match.group()))
            else:
                self._held = match.group()
        return [*out, Text(text[at:])] if at < len(text) else out


class LateTags:
    """Detects tags of thoughts at the start of a later line of the content, where they do not open or close
    thoughts. `line`: the current line, while it may still begin with a tag; None = the next line is waited for."""

    __slots__ = ("_most", "_pattern", "found", "line")

    def __init__(self, thoughts: Thoughts) -> None:
        tags = [tag for tag in (*thoughts.openers, *thoughts.closers) if tag]
        self._pattern = re.compile(rf"^[^\S\n]*(?:{'|'.join(map(re.escape, tags))})", re.M)
        self._most = 2 * max(map(len, tags))
        self.line: str | None = ""
        self.found = False

    def feed(self, text: str) -> None:
        if self.line is None:
            if "\n" not in text:
                return
            self.line = text[text.index("\n") + 1 :]
        else:
            self.line += text
        if self._pattern.search(self.line):
            self.found = True
        line = self.line[self.line.rfind("\n") + 1 :].lstrip()  # blanks before a tag do not matter
        self.line = line if len(line) <= self._most else None
