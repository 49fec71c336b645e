"""One answer of the simulated engine: its planned tokens, and the engine sequences that produce them over time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Any

from simulator.engine import POOL_FULL, Engine, EngineDied, PoolFull, Sequence
from simulator.faults import Fault
from simulator.replies import filler
from simulator.tokens import pieces

_HANGS = ("hang_before", "hang_before_content", "hang_mid")
CUTS = ("die_mid", "error_event", "end_without_finish")  # applied by the writer after `after` tokens


@dataclass(frozen=True, slots=True)
class Plan:
    """The tokens of one choice (the last may be "", the end-of-text token), and how it ends. `hold_at`: tokens after
    which the choice hangs."""

    tokens: list[str]
    outcome: str
    stop_reason: str | None = None
    hold_at: int | None = None


def plan(
    raw: str, body: Mapping[str, Any], window_left: int, faults: Mapping[str, Fault], begun: str | None = None
) -> Plan:
    """Cut the raw text by max_tokens, stop and ignore_eos, as sampling would. `window_left`: tokens left in the
    window. `begun`: the beginning of the answer that the request gives (`continue_final_message`): the plan has what
    follows it."""
    asked = body.get("max_completion_tokens") or body.get("max_tokens")
    limit = max(1, min(asked or window_left, window_left))
    if begun and (rest := _rest_of(raw, body, limit, begun)) is not None:
        tokens, stop_reason = rest
        ended = stop_reason is not None and len(tokens) <= limit
        if ended or len(tokens) < limit:
            return _ended(tokens if ended else [*tokens, ""], "stop", faults, stop_reason)
        return _ended(tokens[:limit], "length", faults)
    if "garbage" in faults:
        raw = "!" * 4 * min(limit, 64)
    if "repetition" in faults:
        return _ended([" again"] * min(limit, 64), "repetition", faults)
    tokens, stop_reason = pieces(raw), None
    if stopped := _stop_at(raw, tokens, body.get("stop")):
        tokens, stop_reason = stopped
        return _ended(tokens[:limit], "stop" if len(tokens) <= limit else "length", faults, stop_reason)
    if body.get("ignore_eos") or len(tokens) < (body.get("min_tokens") or 0):
        wanted = limit if body.get("ignore_eos") else min(limit, body["min_tokens"])
        tokens += [filler(i) for i in range(wanted - len(tokens))]
    if len(tokens) >= limit:
        return _ended(tokens[:limit], "length", faults)
    return _ended([*tokens, ""], "stop", faults)


def _rest_of(raw: str, body: Mapping[str, Any], limit: int, begun: str) -> tuple[list[str], str | None] | None:
    """(the tokens after `begun`, the stop string that ends them); None = this answer does not begin so."""
    tokens, stop_reason = pieces(raw), None
    if stopped := _stop_at(raw, tokens, body.get("stop")):
        tokens, stop_reason = stopped
    else:
        wanted = limit if body.get("ignore_eos") else min(limit, body.get("min_tokens") or 0)
        tokens += [filler(i) for i in range(wanted and wanted + len(pieces(begun)) - len(tokens))]
    if not "".join(tokens).startswith(begun):
        return None
    length = 0
    for i, token in enumerate(tokens):
        if length + len(token) > len(begun):
            return [token[len(begun) - length :], *tokens[i + 1 :]], stop_reason
        length += len(token)
    return [], stop_reason


def _ended(tokens: list[str], outcome: str, faults: Mapping[str, Fault], stop_reason: str | None = None) -> Plan:
    for kind, reason in (("abort", "abort"), ("error_finish", "error")):
        if fault := faults.get(kind):
            return Plan(_stretched(tokens, fault.after)[: fault.after] or [""], reason)
    longest = max((f.after for k, f in faults.items() if k in CUTS or k in _HANGS), default=0)
    hold_at = next((faults[k].after if k == "hang_mid" else 0 for k in _HANGS if k in faults), None)
    return Plan(_stretched(tokens, longest), outcome, stop_reason, hold_at)


def _stretched(tokens: list[str], length: int) -> list[str]:
    """The tokens, extended to at least `length`, so that a fault after so many tokens always happens."""
    if len(tokens) > length:
        return tokens
    return [t for t in tokens if t] + [filler(i) for i in range(length + 1 - len(tokens))] + [""]


def _stop_at(raw: str, tokens: List[str], stop: Any) -> tuple[list[str], str] | None:
    """The tokens up to the first stop string (its token counted, its text left out)."""
    stops = [stop] if isinstance(stop, str) else [s for s in stop or [] if isinstance(s, str)]
    found = min(((raw.find(s), s) for s in stops if s and s in raw), default=None)
    if found is None:
        return None
    at, text = found
    kept, length = [], 0
    for token in tokens:
        if length + len(token) >= at + len(text):
            kept.append(token[: max(0, at - length)])
            break
        kept.append(token[: max(0, at - length)])
        length += len(token)
    return kept, text


class Answer:
    """The running choices of one request. Waiting for a dead engine raises EngineDied."""

    def __init__(self, engine: Engine, plans: List[Plan], prompt: int, cached: int, max_tokens: int) -> None:
        self.plans, self.prompt = plans, prompt
        self._event = asyncio.Event()
        self.sequences = [Sequence(engine, prompt, p.tokens, p.outcome, self._event, cached, max_tokens) for p in plans]
        self._engine = engine
        for sequence, choice in zip(self.sequences, plans, strict=True):
            sequence.hold_at = choice.hold_at
            engine.submit(sequence)

    def cancel(self) -> None:
        for sequence in self.sequences:
            self._engine.abort(sequence)

    @property
    def queued(self) -> bool:
        return all(not s.scheduled_at and s.finish is None for s in self.sequences)

    @property
    def ended(self) -> bool:
        return all(s.finish is not None for s in self.sequences)

    async def changed(self) -> None:
        """Wait until there was progress since the last call."""
        if self._engine.dead:
            raise EngineDied
        await self._event.wait()
        self._event.clear()
        if any(s.finish == POOL_FULL for s in self.sequences):
            raise PoolFull

    async def begun(self) -> None:
        """Wait for the first token, or for an end without one."""
        while not any(s.made or s.finish for s in self.sequences):
            await self.changed()

    async def finished(self) -> None:
        while not self.ended:
            await self.changed()

    def produced(self, index: int) -> list[str]:
        """The tokens of a choice so far."""
        return self.plans[index].tokens[: self.sequences[index].made]

    def usage(self, made: int | None = None) -> dict[str, int]:
        made = sum(s.made for s in self.sequences) if made is None else made
        return {"prompt_tokens": self.prompt, "total_tokens": self.prompt + made, "completion_tokens": made}
