"""Exports spans: OTLP over HTTP, with OpenTelemetry's exporter. When the receiver accepts nothing, that is logged
once, and the exporter pauses; meanwhile spans are dropped without being encoded."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import requests
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from gateway.supervision import Failures

log = logging.getLogger("gateway.traces")

PATIENCE = 5.0  # seconds for one batch, including retries
REST, REST_MOST = 5.0, 60.0  # seconds between two attempts at a receiver that accepts nothing; the pause doubles
PATH = "/v1/traces"

# Silenced: they log every failed batch, with the whole URL. The exporter below logs the first.
_NOISY = ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk._shared_internal")


def url_of(endpoint: str) -> str:
    """The URL for spans: `endpoint` with OTLP's path, which is added where it is missing."""
    base = endpoint.rstrip("/")
    return base if base.endswith(PATH) else base + PATH


class Exporter(SpanExporter):
    """Called by the thread of the SDK's batch processor. `lost`: spans that were dropped."""

    def __init__(self, endpoint: str, failures: Failures | None = None) -> None:
        self.lost = 0
        self._failures = failures or Failures()
        self._host = urlsplit(endpoint).netloc.rpartition("@")[2]
        self._session = _Session()
        self._otlp = OTLPSpanExporter(
            url_of(endpoint), timeout=PATIENCE, compression=Compression.Gzip, session=self._session
        )
        self._rest = 0.0  # seconds of the last pause; 0 = the receiver accepts spans
        self._rest_until = 0.0
        for name in _NOISY:
            logging.getLogger(name).setLevel(logging.CRITICAL)

    @property
    def resting(self) -> bool:
        """Is the exporter in a pause, in which it drops spans?"""
        return time.monotonic() < self._rest_until

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self.resting:
            self.lost += len(spans)
            return SpanExportResult.FAILURE
        self._session.outcome = "a span cannot be encoded"
        try:
            result = self._otlp.export(spans)
        except Exception:  # the calling thread goes on with the next batch
            self.lost += len(spans)
            self._failures.note("traces", "the export of spans")
            return SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            self._accepted()
        else:
            self._refused(len(spans))
        return result

    def _accepted(self) -> None:
        if self._rest:
            log.info("traces: %s takes spans again; lost: %d", self._host, self.lost)
        self._rest = 0.0

    def _refused(self, count: int) -> None:
        self.lost += count
        if not self._rest:
            text = "traces: %s takes no spans (%s): requests go on without, and it is tried again"
            log.warning(text, self._host, self._session.outcome)
        self._rest = min(self._rest * 2 or REST, REST_MOST)
        self._rest_until = time.monotonic() + self._rest

    def shutdown(self) -> None:
        self._otlp.shutdown()  # type: ignore[no-untyped-call]  # the SDK's own omission


class _Session(requests.Session):
    """Keeps the outcome of the last request as text without the URL. Ignores proxies of the environment, as the
    gateway does everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.trust_env = False
        self.outcome = ""

    def request(self, *arguments: Any, **named: Any) -> requests.Response:
        try:
            answer = super().request(*arguments, **named)
        except requests.RequestException as error:
            self.outcome = type(error).__name__
            raise
        self.outcome = f"answered {answer.status_code}"
        return answer
