"""What every header means that is read or sent, in a line each: the short form of docs/headers.md.

A test holds it against the names in the code (tests/test_reference.py).
"""

from __future__ import annotations

REQUEST = {
    "authorization": "`Bearer KEY`: who asks, where `routes.yaml` has `clients`. Never sent to a backend.",
    "x-api-key": "The same.",
    "x-request-id": "Kept where it is well-formed, and sent up.",
    "traceparent": "Sent up, with `tracestate`.",
    "accept": "Sent up, with `anthropic-version`, `anthropic-beta` and `openai-beta`. Nothing else is.",
    "content-type": "JSON, or none: everything else is refused.",
    "origin": "Of a page: it must be the gateway's own.",
    "host": "Without `clients`: an address, a LAN name, or one of `server.hosts`.",
    "content-encoding": "`gzip`, or none.",
    "x-gateway-local-only": "`1`: this request must not leave the LAN. Only `0`, `false`, `no`, `off` mean no.",
    "x-claude-code-session-id": "Keeps a session on one backend.",
    "x-openwebui-chat-id": "The same.",
}

RESPONSE = {
    "x-request-id": "The client's own, or ours.",
    "request-id": "The same, on `/v1/messages`.",
    "x-gateway-alias": "The alias that was meant.",
    "x-gateway-backend": "Who answered.",
    "x-gateway-attempts": "How many times a backend was asked.",
    "x-gateway-queue-ms": "Milliseconds waited for slots.",
    "x-gateway-fallback": "Why a later step answered: the first is unhealthy or has just failed.",
    "x-gateway-routed": "Why a later step answered: because of this request.",
    "x-gateway-adapted": "What was changed in the request so that it could be served.",
    "x-gateway-mended": "What was put where it belongs in the answer; not of streams.",
    "x-gateway-committed": "`early`: the status was sent before any backend had said something.",
    "x-should-retry": "`false`, on `/v1/messages`: asking again cannot help.",
    "retry-after": "Seconds, 1 to 600, with 429 and 503; 1 with 401, 402 and 403.",
}
