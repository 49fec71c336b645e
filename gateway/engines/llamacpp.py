"""Reads llama-server's slots: the work of its engine, and whether the slots share one memory. Pure.

`/slots` and `/metrics` are answered by the loop that computes, so they also show when it hangs while
`/health` says 200.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, NamedTuple

from gateway.domain.progress import Sample
from gateway.transport.prometheus_text import number, slices

SLOTS_MOST = 1024  # of a list; the rest is not read
TOKENS_MOST = 1e12
CHOSEN_BY_ITSELF = 4  # slots; a llama-server without a number has these, and one memory for all of them

_NAMES: Mapping[bytes, str] = {
    b"llamacpp:requests_processing": "running",
    b"llamacpp:requests_deferred": "waiting",
    b"llamacpp:tokens_predicted_total": "generated",
    b"llamacpp:prompt_tokens_total": "prompted",
    b"llamacpp:n_decode_total": "steps",
}


class SlotReading(NamedTuple):
    """One reading of `/slots`. `used`: the tokens that idle slots still hold, of their last request (busy ones may have
    some in common); `window`: of one slot."""

    sample: Sample
    slots: int
    used: int
    window: int | None


def read_slots(answer: Any, at: float) -> SlotReading | None:
    """The decoded list of slots; None if it is no such list. `at`: the caller's seconds."""
    found = answer[:SLOTS_MOST] if isinstance(answer, list) else []
    slots = [slot for slot in found if isinstance(slot, dict) and isinstance(slot.get("is_processing"), bool)]
    if not slots or len(slots) < len(found):
        return None
    busy = [slot for slot in slots if slot["is_processing"]]
    held = [_count(slot.get("n_prompt_tokens")) for slot in slots]
    made = sum(_count(token.get("n_decoded")) for slot in busy for token in _tokens(slot))
    tasks = sum(_count(slot.get("id_task")) for slot in slots)
    windows = [_count(slot.get("n_ctx")) for slot in slots]
    sample = Sample(at, running=len(busy), generated=made, steps=float(sum(held) + tasks))
    idle = sum(count for slot, count in zip(slots, held, strict=True) if not slot["is_processing"])
    return SlotReading(sample, len(slots), int(idle), int(max(windows)) or None)


def _tokens(slot: dict[str, Any]) -> list[dict[str, Any]]:
    found = slot.get("next_token")
    return [token for token in found if isinstance(token, dict)] if isinstance(found, list) else []


def _count(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value <= TOKENS_MOST else 0.0


def read_counters(page: bytes, at: float) -> Generator[None, None, Sample | None]:
    """The counters of a page of llama-server's; None if it is another page. Yields after each slice of the page."""
    found: dict[str, float] = {}
    for lines in slices(page):
        for line in lines:
            name, _, value = line.partition(b" ")
            key = _NAMES.get(name)
            if key is not None and (count := number(value)) is not None:
                found[key] = count
        yield
    if "running" not in found:
        return None
    return Sample(
        at,
        running=found["running"],
        waiting=found.get("waiting", 0.0),
        generated=found.get("generated", 0.0),
        prompted=found.get("prompted", 0.0),
        steps=found.get("steps", 0.0),
    )


def shared_pool(slots: int, window: int | None, used: int, known: int | None) -> int | None:
    """The tokens of the memory that the slots share; 0 = each has a memory of its own; None if not known. The server
    does not tell, so it is concluded. `used`: what idle slots hold; `known`: what was concluded before.

    A llama-server that chose the number of its slots itself has one memory for all, of one window. One that was started
    with `-np 4` looks the same, until its slots hold more than one window."""
    if window is None or slots < 2:
        return None
    if used > window or known == 0:
        return 0
    return window if slots == CHOSEN_BY_ITSELF else known
