"""The results as JSON. Times are seconds, rates tokens per second (requests: per second)."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from gateway.benching.figures import Gap, Level, Single, Spread
from gateway.benching.measured import Run
from gateway.benching.results import Results
from gateway.benching.session import Settings


def as_json(title: str, settings: Settings, results: Results) -> dict[str, Any]:
    """Everything: the figures, what they were worked out from, and what has to be said of them."""
    return {
        "ok": results.ok,
        "target": title,
        "backend": results.expected,
        "settings": {
            "prompt_tokens": list(settings.lengths),
            "tokens": settings.tokens,
            "concurrency": list(settings.concurrency),
            "repeats": settings.repeats,
            "requests": settings.requests if settings.duration is None else None,
            "duration": settings.duration,
            "thinking": settings.thinking,
        },
        "stopped": results.stopped,
        "notes": results.remarks(),
        "errors": [{"via": way, "error": what, "count": count} for (way, what), count in results.errors().items()],
        "single": [_single(row, backend) for row, backend in results.singles()],
        "prefill": {way: {"rate": line.rate, "overhead": line.overhead} for way, line in results.fits().items()},
        "sweep": [_level(level) for level in results.levels()],
        "added": {
            "single": [
                {"prompt_tokens": row.asked, "ttft": _gap(row.ttft), "decode_ratio": _spread(row.decode)}
                for row in results.added()
            ],
            "sweep": [{"concurrency": level, "output_ratio": _spread(found)} for level, found in results.added_sweep()],
        },
        "warm_up": [_run(way, run) for way, run in results.warm_up],
        "runs": [_run(way, run) for way, run in results.runs],
    }


def _spread(found: Spread | None) -> dict[str, float] | None:
    return None if found is None else asdict(found)


def _gap(found: Gap | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found)


def _single(row: Single, backend: str | None) -> dict[str, Any]:
    return {
        "via": row.via,
        "backend": backend,
        "asked": row.asked,
        "runs": len(row.runs),
        "failed": row.failed,
        "prompt_tokens": _spread(row.of(lambda run: run.prompt)),
        "completion_tokens": _spread(row.of(lambda run: run.completion)),
        "ttft": _spread(row.of(lambda run: run.ttft)),
        "prefill_rate": _spread(row.of(lambda run: run.prefill_rate)),
        "decode_rate": _spread(row.of(lambda run: run.decode_rate)),
    }


def _level(level: Level) -> dict[str, Any]:
    return {
        "via": level.via,
        "concurrency": level.concurrency,
        "blocks": len(level.blocks),
        "blocks_failed": sum(not block.ok for block in level.blocks),
        "failed": level.failed,
        "backends": dict(Counter(run.backend for run in level.runs if run.backend is not None)),
        "output_rate": _spread(level.output_rate),
        "request_rate": _spread(level.request_rate),
        "ttft_p50": level.at(lambda run: run.ttft, 0.5),
        "ttft_p95": level.at(lambda run: run.ttft, 0.95),
        "decode_p50": level.at(lambda run: run.decode_rate, 0.5),
        "queued_p50": level.at(lambda run: run.queued, 0.5),
    }


def _run(way: str, run: Run) -> dict[str, Any]:
    return {
        "via": way,
        **asdict(run),
        "ttft": run.ttft,
        "prefill_rate": run.prefill_rate,
        "decode_rate": run.decode_rate,
    }
