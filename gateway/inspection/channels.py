"""The channels of gpt-oss (harmony) in a text: thoughts, words beside calls, and the answer."""

from __future__ import annotations

import re

from gateway.inspection.markers import begun
from gateway.inspection.segments import Gap, Reasoning, Segment, Text

CHANNELS = ("analysis", "commentary", "final")
# How a message begins; `<|start|>assistant` may be in the prompt.
HEADS = tuple(
    f"{start}<|channel|>{channel}{form}<|message|>"
    for start in ("", "<|start|>assistant")
    for channel in CHANNELS
    for form in ("", " <|constrain|>json", "<|constrain|>json")
)
# The same without the special tokens, which some servers take out of the text.
WORDS = tuple(start + channel for start in ("assistant", "") for channel in CHANNELS)
_BARE_ENDS = WORDS[: len(CHANNELS)]
_ENDS = ("<|end|>", "<|return|>")
_CALL = " to="
_SPACE_MOST = 16
_CHANNEL = re.compile("|".join(CHANNELS))
_CLOSING, _BARE_CLOSING = begun(_ENDS), begun(_BARE_ENDS)


class ChannelSplitter:
    """As `Splitter` of reasoning.py. A call is left in the text, with its head."""

    def __init__(self) -> None:
        self.done = False  # only content can follow
        self.opened = False  # the content began with a head
        self._bare = False  # the heads are words
        self._channel = ""  # whose text comes now; empty: a head is awaited
        self._held = ""

    def feed(self, text: str) -> list[Segment]:
        return self._split(text, final=False)

    def finish(self) -> list[Segment]:
        return self._split("", final=True)

    def _split(self, text: str, *, final: bool) -> list[Segment]:
        text, self._held = self._held + text, ""
        out: list[Segment] = []
        while text:
            before = text
            text = self._inside(text, final, out) if self._channel else self._head(text, final, out)
            if text == before:  # more has to come
                self._held = text
                break
        return out

    def _head(self, text: str, final: bool, out: list[Segment]) -> str:
        """Read the head of a message; returns the text behind it, or the same where it may go on."""
        rest = text.lstrip()
        at = len(text) - len(rest)
        head = next((head for head in HEADS if rest.startswith(head)), None)
        word = next((word for word in WORDS if rest.startswith(word)), None) if not head else None
        known = HEADS if self._bare else HEADS + WORDS
        if at > _SPACE_MOST or (not head and not final and self._may_go_on(rest, known, word)):
            return text if at <= _SPACE_MOST else self._end(text, out)
        if word is not None and not self._begins(rest[len(word) :], word):
            word = None
        if head is None and word is None:
            return self._end(text, out)
        self._bare, self.opened = word is not None, True
        return self._open(text, at + len(head or word or ""), out)

    @staticmethod
    def _may_go_on(rest: str, known: tuple[str, ...], word: str | None) -> bool:
        return any(one.startswith(rest) for one in known) or (word is not None and _CALL.startswith(rest[len(word) :]))

    @staticmethod
    def _begins(behind: str, word: str) -> bool:
        """Does the text behind such a word begin a message, so that it is no word of a sentence?"""
        first = behind[:1]
        return first.isupper() or not first.isascii() or (word in _BARE_ENDS and not (first.islower() or first == " "))

    def _open(self, text: str, end: int, out: list[Segment]) -> str:
        found = _CHANNEL.search(text[:end])
        self._channel = found[0] if found is not None else CHANNELS[-1]
        out.append(Gap(text[:end]))
        self.done = self._channel == CHANNELS[-1]
        return text[end:]

    def _end(self, text: str, out: list[Segment]) -> str:
        """The rest is content."""
        out.append(Text(text))
        self.done, self._channel = True, CHANNELS[-1]
        return ""

    def _inside(self, text: str, final: bool, out: list[Segment]) -> str:
        """Read the text of a channel up to its end; returns the text behind that."""
        if self.done:
            return self._end(text, out)
        match = (_BARE_CLOSING if self._bare else _CLOSING).search(text)
        closer = match[0] if match is not None and match[0] in (_BARE_ENDS if self._bare else _ENDS) else ""
        cut = len(text) if match is None or (final and not closer) else match.start()
        if cut:
            out.append(Reasoning(text[:cut]) if self._channel == CHANNELS[0] else Text(text[:cut]))
            return text[cut:]
        if not closer:
            return text
        if not self._bare:
            out.append(Gap(closer))
            self._channel = ""
            return text[len(closer) :]
        behind = text[len(closer) :]
        if not final and _CALL.startswith(behind):
            return text
        return self._end(text, out) if behind.startswith(_CALL) else self._open(text, len(closer), out)
