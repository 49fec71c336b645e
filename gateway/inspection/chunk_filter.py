"""Changes the chunks of an answer of a server that lacks something: a text that goes on after a stop string is cut, and
one of several answers gets its place among them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.domain.tokens import count_of
from gateway.inspection.assembler import Object


class StopSearch:
    """Looks for stop strings in one text that arrives in parts. `stops`: none of them empty. `found`: the stop string
    at which the text was cut; None = the text goes on."""

    __slots__ = ("_held", "_stops", "found")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""  # the end of the text so far, where it may be the beginning of a stop string
        self.found: str | None = None

    def feed(self, part: str) -> str:
        """The further text that is certainly before a stop string; none after one was found."""
        if self.found is not None:
            return ""
        text = self._held + part
        ends = [(at + len(stop), -len(stop), stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            end, _, self.found = min(ends)
            self._held = ""
            return text[: end - len(self.found)]
        begins = min((self._begins(text, stop) for stop in self._stops), default=len(text))
        self._held = text[begins:]
        return text[:begins]

    def finish(self) -> str:
        """The text has ended: what was held belongs to it."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _begins(text: str, stop: str) -> int:
        """Where the longest beginning of `stop` starts that `text` ends with; its length if there is none."""
        at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
        while at >= 0:
            if stop.startswith(text[at:]):
                return at
            at = text.find(stop[0], at + 1)
        return len(text)


_OUTPUT = ("content", "reasoning", "reasoning_content", "refusal", "tool_calls")


class ChunkFilter:
    """The chunks of an answer with one choice. `chat`: its choices have a `delta`, else a `text`. `stops`: its stop
    strings; they are looked for in the answer's text, not in thoughts and calls. `index`: its place among the answers
    to a request.

    `usage`: as the server reported it; the chunks are left without it. `stopped`: a stop string was found, so no more
    is needed of the server. `finished`: the answer has its finish_reason. `output`: chunks with output, of which such
    servers send one for each token."""

    __slots__ = ("_chat", "_index", "_search", "finished", "output", "usage")

    def __init__(self, *, chat: bool, stops: Sequence[str] = (), index: int = 0) -> None:
        self._chat = chat
        self._index = index
        self._search = StopSearch(stops)
        self.usage: Object | None = None
        self.finished = False
        self.output = 0

    @property
    def stopped(self) -> bool:
        return self._search.found is not None

    def take(self, chunk: Object) -> bool:
        """Change the chunk in place. False: nothing is left of it but the usage, or what comes after a stop string."""
        usage = chunk.pop("usage", None)
        if isinstance(usage, dict):
            self.usage = usage
        if self.stopped:
            return False
        for choice in chunk["choices"]:
            choice["index"] = self._index
            self._take_choice(choice)
        return bool(chunk["choices"]) or usage is None

    def _take_choice(self, choice: Object) -> None:
        delta = choice.get("delta") if self._chat else choice
        if not isinstance(delta, dict):
            delta = choice["delta"] = {}
        field = "content" if self._chat else "text"
        self.output += any(delta.get(name) for name in (_OUTPUT if self._chat else ("text",)))
        text = delta.get(field)
        kept = self._search.feed(text) if isinstance(text, str) else ""
        if self.stopped:
            choice["finish_reason"], choice["stop_reason"], choice["logprobs"] = "stop", self._search.found, None
            delta.pop("tool_calls", None)
        self.finished = self.finished or choice.get("finish_reason") is not None
        if self.finished or delta.get("tool_calls"):
            kept += self._search.finish()
        if kept or isinstance(text, str):
            delta[field] = kept

    def used(self, prompt_tokens: int) -> Object:
        """The usage as the server reported it. One that was left before it reported any is estimated, and says so:
        `prompt_tokens` (an estimate) and a token for each chunk."""
        if self.usage is not None and not self.stopped:
            return self.usage
        counts = {"prompt_tokens": prompt_tokens, "completion_tokens": self.output}
        return {**counts, "total_tokens": prompt_tokens + self.output, "estimated": True}


def total_usage(usages: Sequence[Object], each: int = 1) -> Object:
    """What several answers to one request used together. `estimated`: at least one of them is an estimate. `each`: so
    many in a row are answers to one prompt, whose tokens count once, as OpenAI counts them."""
    if len(usages) == 1:
        return usages[0]
    prompt = sum(count_of(usage.get("prompt_tokens")) for usage in usages[::each])
    output = sum(count_of(usage.get("completion_tokens")) for usage in usages)
    total: Object = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    if any(usage.get("estimated") is True for usage in usages):
        total["estimated"] = True
    return total
