"""What happened to one request, in sentences, for the page, the command and the API alike. Pure: it reads the fields of
a past request (recorder.py) as JSON has them, or of a running one (requests.py)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.errors import CATALOGUE

Fields = Mapping[str, Any]

# Words of x-gateway-fallback and -routed -> what the first step was or did.
WHY = {
    "down": "was down",
    "warming": "was starting",
    "misconfigured": "was not set up as routes.yaml says",
    "parked": "was parked",
    "failed": "had just failed",
    "empty": "had answered with nothing",
    "cooldown": "had asked for a pause",
    "busy": "had no slot free",
    "incapable": "could not do what was asked",
    "too_long": "was too small for the prompt",
    "budget": "had spent its budget",
}
LEFT = {
    "client_gone": "The client left before the answer was complete.",
    "client_stalled": "The client stopped reading its answer, and was cut off.",
    "stream_interrupted": "The stream broke after content had been sent; the client was told so.",
}


def story(past: Fields) -> list[str]:
    """The sentences, from the question to the outcome."""
    return [*_asked(past), *_tried(past), *_changed(past), _waited(past), *_used(past), *_outcome(past)]


def told_running(now: Fields) -> list[str]:
    """The sentences of a request that runs."""
    where = f" at {now['backend']}" if now["backend"] else ""
    speed = f", {now['tokens_per_s']:.0f} a second" if now.get("tokens_per_s") else ""
    tokens = f"; {now['tokens_out']:,} tokens so far{speed}" if now["tokens_out"] else ""
    return [_asks(now, "asks"), f"It runs for {now['total_ms'] / 1000:.1f} s: {now['phase']}{where}{tokens}."]


def _asks(past: Fields, verb: str) -> str:
    who = "Somebody" if past["client"] in ("", "open") else f"Client {past['client']}"
    whom = f"alias {past['alias']}" if past["alias"] else "for no alias that exists"
    return f"{who} {verb} {whom} ({past['endpoint']}{', as a stream' if past['stream'] else ''})."


def _asked(past: Fields) -> Iterator[str]:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(past["at"] - past["total_ms"] / 1000))
    yield f"{at}: {_asks(past, 'asked')}"
    if past.get("translated"):
        yield "It was translated into a chat, and the answer back."
    if past.get("local_only"):
        yield "It was not to leave the LAN."


def _tried(past: Fields) -> Iterator[str]:
    tried = {one["backend"] for one in past.get("left", ())}
    for one in past.get("skipped", ()):
        if one["backend"] not in tried:
            yield f"{one['backend']} was no candidate: it {one['reason'].rstrip('.')}."
    for one in past.get("left", ()):
        yield f"{one['backend']} was asked and left ({one['kind']}): it {one['reason'].rstrip('.')}."
    backend = past["backend"]
    if not backend or (backend in tried and past["outcome"] != "200"):
        return
    for kind, words in (("fallback", "as a fallback"), ("routed", "instead")):
        if why := past.get(kind):
            yield f"{backend} was asked {words}, because the first step {WHY.get(why, why)}."
            break
    else:
        yield f"{backend} was asked{', at last' if tried else ''}."
    if past.get("resumed"):
        yield f"The stream broke there, and {past['resumed']} went on with it."


def _changed(past: Fields) -> Iterator[str]:
    if past.get("adapted"):
        yield f"To ask it, this was changed: {', '.join(past['adapted'])} (x-gateway-adapted)."
    if past.get("left_out"):
        yield f"Left out, because no backend here runs it: {', '.join(past['left_out'])}."
    if past.get("mended"):
        yield f"The answer was mended: {', '.join(past['mended'])} put where they belong."


def _waited(past: Fields) -> str:
    words = [f"waited {past['queued_ms'] / 1000:.1f} s for a slot"] if past["queued_ms"] >= 1 else []
    if past["stream"] and past.get("first_token_ms") is not None:
        words.append(f"got its first content after {past['first_token_ms'] / 1000:.2f} s")
    words.append(f"took {past['total_ms'] / 1000:.2f} s in all")
    return f"It {', '.join(words)}."


def tokens_per_s(past: Fields) -> float | None:
    """Tokens of the answer a second, from its first content on (of a stream), else over the whole time."""
    first = past.get("first_token_ms") if past["stream"] else past["queued_ms"]
    seconds = (past["total_ms"] - (first or 0)) / 1000
    thoughts = past["tokens_reasoning"] if past["stream"] else 0  # they come before the first content
    tokens = past["tokens_out"] - thoughts
    return tokens / seconds if tokens > 0 and seconds > 0.01 else None


def _used(past: Fields) -> Iterator[str]:
    if past["tokens_in"] or past["tokens_out"]:
        cached = f" ({past['tokens_cached']:,} of them cached)" if past["tokens_cached"] else ""
        thoughts = f" ({past['tokens_reasoning']:,} of them thoughts)" if past["tokens_reasoning"] else ""
        speed = tokens_per_s(past)
        rate = f", {speed:.0f} a second" if speed is not None else ""
        yield f"{past['tokens_in']:,} tokens in{cached}, {past['tokens_out']:,} out{thoughts}{rate}."
    usd = past.get("usd", 0.0)
    if usd is None:
        yield "What it cost is not known: its backend has no `price`."
    elif usd:
        yield f"It cost {usd:.4f} USD."


def _outcome(past: Fields) -> Iterator[str]:
    outcome = past["outcome"]
    if outcome == "200":
        yield "The client got the whole answer."
    elif outcome in LEFT:
        yield LEFT[outcome]
    else:
        code = CATALOGUE.get(outcome)
        meaning = f" {code.status} {outcome}" if code is not None else f" {outcome}, an error of the backend's"
        yield f"The client got{meaning}: {past.get('error') or (code.meaning if code is not None else '')}"
