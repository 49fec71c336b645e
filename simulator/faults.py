"""Faults that can be switched on while a simulated backend runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# kind -> what it does; the table in docs/simulator.md is held against it by a test
KINDS: Mapping[str, str] = {
    # before an answer
    "refuse": "the port is closed",
    "loading": "the port is closed for `delay` seconds (default: the backend's cold start), then it opens",
    "die_loading": "a start ends with exit code 1 when the engine has loaded, instead of serving",
    "hang_before": "no byte at all; the request stays in its slot",
    "hang_before_content": "the head and the role chunk, then silence",
    "hang_engine": "the engine stops stepping: everything in flight hangs, counters stand still, /health says 200",
    "hang_health": "/health never answers",
    "unhealthy": "/health answers 503",
    "die_before": "the connection is closed before a byte (`reset`: with RST)",
    "status": "`status` with `body` (a preset's name or any JSON or text) and `headers`",
    "slow": "waits `delay` seconds before answering",
    "wrong_model": "404: the model does not exist",
    "no_models": "/v1/models lists nothing",
    # inside an answer
    "hang_mid": "silence after `after` tokens",
    "die_mid": "the connection ends after `after` tokens without the terminating chunk (`reset`: with RST)",
    "error_event": "an error event (`body`: its message) after `after` tokens, then [DONE]; without stream a 500",
    "end_without_finish": "a clean end after `after` tokens, but no finish_reason",
    "no_done": "a whole stream without [DONE]",
    "abort": "finish_reason abort after `after` tokens",
    "error_finish": "finish_reason error after `after` tokens",
    # in the model's text
    "leak_tools": "tool calls as text in content",
    "leak_think": "thoughts as <think> text in content",
    "empty_turn": "thoughts at most: no content, no call",
    "wrong_parser": "calls in a format that the parser can't read: an empty 200 with completion tokens",
    "garbage": "!!!!! instead of an answer",
    "repetition": "one token repeated, finish_reason repetition",
    # on the wire
    "cut_chunks": "the bytes in pieces of the given `sizes`",
    "crlf": "lines end with CRLF",
    "comments": "comment lines between the events",
    "multiline": "events spread over two data lines",
    "gzip": "content-encoding gzip, flushed at every write",
    "unasked_usage": "a usage chunk that nobody asked for",
}


def _error(message: str, kind: str, code: int | str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


_JSON = "application/json"
_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
_BUSY = (
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
)
_ZERO = "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"
_HTML = "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>"

# name -> (status, content type, body); chosen by `body`, or by `status` alone
PRESETS: Mapping[str, tuple[int, str, Any]] = {
    "vllm_engine_dead": (500, _JSON, _error(_DEAD, "InternalServerError", 500)),
    "vllm_busy": (503, _JSON, _error(_BUSY, "Service Unavailable", 503)),
    "vllm_bad_request": (400, _JSON, _error(_ZERO, "BadRequestError", 400)),
    "html_502": (502, "text/html", _HTML),
    "detail_404": (404, _JSON, {"detail": "Not Found"}),
    "unauthorized": (401, _JSON, {"error": "Unauthorized"}),
    "rate_limit": (429, _JSON, _error("Rate limit reached.", "rate_limit_error", "rate_limit_exceeded")),
    "not_json": (200, _JSON, "this is not JSON"),
}

INFERENCE = (
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/v1/score", "/v1/responses",
    "/api/chat", "/api/generate", "/api/embed", "/tokenize",
)  # fmt: skip
_ELSEWHERE = {"hang_health": "/health", "unhealthy": "/health", "no_models": "/v1/models"}


@dataclass(slots=True)
class Fault:
    """`count` requests are hit (None = all until cleared). `path` limits it to one path; the default is every
    inference path, for the health kinds `/health`."""

    kind: str
    count: int | None = None
    after: int = 0
    status: int = 500
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float | None = None  # seconds
    sizes: tuple[int, ...] = (1, 7, 3, 17)
    reset: bool = False
    path: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown fault '{self.kind}'; known: {', '.join(KINDS)}")
        self.sizes = tuple(self.sizes)

    def hits(self, path: str) -> bool:
        wanted = self.path or _ELSEWHERE.get(self.kind)
        return path == wanted if wanted else path in INFERENCE and path != "/tokenize"

    def answer(self) -> tuple[int, str, Any, list[tuple[str, str]]]:
        """(status, content type, body, further headers) of kind `status`."""
        headers = [(k.lower(), str(v)) for k, v in self.headers.items()]
        if isinstance(self.body, str) and self.body in PRESETS:
            status, content_type, body = PRESETS[self.body]
        elif self.body is None:
            found = next((p for p in PRESETS.values() if p[0] == self.status), None)
            status, content_type, body = found or (self.status, _JSON, _error("simulated", "simulated", self.status))
        else:
            plain = isinstance(self.body, str)
            status, content_type, body = self.status, "text/plain; charset=utf-8" if plain else _JSON, self.body
        if status == 429 and not any(k == "retry-after" for k, _ in headers):
            headers.append(("retry-after", "1"))
        return status, content_type, body, headers


class Faults:
    """The faults that are on."""

    def __init__(self) -> None:
        self.active: list[Fault] = []

    def add(self, fault: Fault) -> None:
        self.active.append(fault)

    def clear(self, kind: str | None = None) -> None:
        self.active = [f for f in self.active if kind is not None and f.kind != kind]

    def has(self, kind: str) -> bool:
        return any(f.kind == kind for f in self.active)

    def for_request(self, path: str) -> dict[str, Fault]:
        """The faults by kind that hit this request to `path`; each is used up once."""
        hit: dict[str, Fault] = {}
        for fault in list(self.active):
            if fault.kind in hit or not fault.hits(path):
                continue
            hit[fault.kind] = fault
            if fault.count is not None:
                fault.count -= 1
                if fault.count <= 0:
                    self.active.remove(fault)
        return hit
