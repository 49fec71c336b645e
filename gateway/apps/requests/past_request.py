"""One past request as it is stored and shown. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.accounting.record import RequestLine, is_failure

REASON_MOST = 500  # characters of a reason or message

encode = msgspec.json.Encoder().encode


class PastRequest(msgspec.Struct, omit_defaults=True, gc=False):
    """The fields of the log's line (docs/logs.md), and why: `left` has the reason of each failed attempt, `skipped`
    that of each backend that could not serve, `error` is the message that the client got. `at`: Unix seconds of its
    end. `usd`: None where the cost is not known."""

    at: float
    id: str
    client: str
    alias: str
    endpoint: str
    stream: bool
    backend: str
    attempts: int
    outcome: str
    tokens_in: int
    tokens_out: int
    tokens_cached: int
    tokens_reasoning: int
    queued_ms: int
    total_ms: int
    first_token_ms: int | None = None
    fallback: str | None = None
    routed: str | None = None
    resumed: str = ""
    adapted: list[str] = []
    mended: list[str] = []
    left_out: list[str] = []
    left: list[dict[str, str]] = []
    skipped: list[dict[str, str]] = []
    translated: bool = False
    local_only: bool = False
    audio_seconds: float = 0.0
    error: str = ""
    usd: float | None = 0.0
    failed: bool = False


def past_request(line: RequestLine) -> PastRequest:
    tokens = line.tokens
    past = PastRequest(
        round(line.at, 3),
        line.id,
        line.client,
        line.alias,
        line.endpoint,
        line.stream,
        line.backend,
        line.attempts,
        line.outcome,
        tokens.prompt,
        tokens.completion,
        tokens.cached,
        tokens.reasoning,
        round(line.queued * 1000),
        round(line.total * 1000),
        None if line.first_token is None else round(line.first_token * 1000),
    )
    if line.detour is not None:
        setattr(past, *line.detour)
    past.resumed, past.translated, past.local_only = line.resumed, line.translated, line.local_only
    if line.adapted or line.mended or line.left_out:
        past.adapted, past.mended, past.left_out = list(line.adapted), sorted(line.mended), list(line.left_out)
    if line.left:
        past.left = [
            {"backend": one.backend, "kind": one.kind, "reason": one.reason[:REASON_MOST]} for one in line.left
        ]
    if line.skipped:
        past.skipped = [{"backend": name, "reason": reason[:REASON_MOST]} for name, reason in line.skipped]
    if line.audio_seconds:
        past.audio_seconds = round(line.audio_seconds, 2)
    past.error = line.error[:REASON_MOST]
    if line.usd != 0.0:
        past.usd = None if line.usd is None else round(line.usd, 6)
    past.failed = is_failure(line.outcome)
    return past


def row(line: RequestLine) -> tuple[Any, ...]:
    """The row of the table (store.py)."""
    past = past_request(line)
    return past.at, past.id, past.client, past.alias, past.backend, past.outcome, past.failed, encode(past)
