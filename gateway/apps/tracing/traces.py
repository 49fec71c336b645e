"""OpenTelemetry traces: a span per request, with a child for each of its attempts. Traces are made, and OpenTelemetry
is imported, only if `traces.endpoint` is set.

Only a span's id is needed when a request is sent to a backend; everything else is known when it has ended. So a
running request keeps some numbers, and its spans are created at its end, as `ReadableSpan`s, for a sixth of the cost
of `Tracer.start_span` and `set_attributes`. Sampling, batching, encoding and sending are left to the SDK.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from time import time_ns
from typing import Any
from urllib.parse import urlsplit

import requests
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway import __version__
from gateway.accounting.record import AttemptRecord, RequestRecord, is_failure
from gateway.apps.tracing.spans import (
    Attributes,
    attempt_attributes,
    attempt_name,
    input_messages,
    outcome_of,
    request_attributes,
    request_name,
)
from gateway.config.snapshot import Traces
from gateway.supervision import Failures

EVERY = 2.0  # seconds from the end of a span to its export
KEPT = 8192  # spans that wait for the export
LAST = 3.0  # seconds at the end for the remaining spans

log = logging.getLogger("gateway.traces")

_PARENT, _STATE = b"traceparent", b"tracestate"
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class Tracing:
    """The traces of one gateway, by one `traces` section of routes.yaml."""

    def __init__(self, settings: Traces, failures: Failures) -> None:
        self.settings = settings
        self._failures = failures
        self.exporter = Exporter(settings.endpoint.reveal(), self._failures)
        self._sampler = ParentBased(TraceIdRatioBased(settings.sample))
        self._ids = RandomIdGenerator()
        self._propagator = TraceContextTextMapPropagator()
        self._processor = BatchSpanProcessor(self.exporter, KEPT, EVERY * 1000)
        self._scope = InstrumentationScope("spark-gateway", __version__)
        self._resource = Resource.create(
            {
                "service.name": os.environ.get("OTEL_SERVICE_NAME", "spark-gateway"),
                "service.version": __version__,
                "host.name": socket.gethostname(),
            }
        )

    def begin(self, headers: dict[bytes, bytes]) -> RequestSpans | None:
        """At the beginning of a request; None if it is not traced. The caller's sampling decision applies, else
        `sample` decides. A decision not to trace is passed on to the backend in `headers`."""
        given, parent = None, None
        if _PARENT in headers:
            carrier = {"traceparent": _text(headers, _PARENT), "tracestate": _text(headers, _STATE)}
            given = self._propagator.extract(carrier)
            context = get_current_span(given).get_span_context()
            parent = context if context.is_valid else None
        if parent is None:
            headers.pop(_STATE, None)  # `tracestate` is invalid without a valid `traceparent`
        trace_id = parent.trace_id if parent is not None else self._ids.generate_trace_id()
        span_id = self._ids.generate_span_id()
        decision = self._sampler.should_sample(given or Context(), trace_id, "").decision
        if decision is Decision.RECORD_AND_SAMPLE:
            return RequestSpans(self, headers, SpanContext(trace_id, span_id, False, _SAMPLED), parent)
        if parent is None:
            headers[_PARENT] = b"00-%032x-%016x-00" % (trace_id, span_id)
        return None

    def note(self, what: str) -> None:
        """Log and count that `what` has failed with the exception that is being handled."""
        self._failures.note("traces", what)

    def flush(self) -> None:
        """Export the spans that have ended. Blocks."""
        self._processor.force_flush()

    def close(self) -> None:
        """Export the remaining spans, for some seconds at most. Blocks."""
        closing = threading.Thread(target=self._processor.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(LAST)

    def child(self, of: SpanContext) -> SpanContext:
        return SpanContext(of.trace_id, self._ids.generate_span_id(), False, _SAMPLED)

    def request_ended(self, trace: RequestSpans, record: RequestRecord) -> None:
        attributes = request_attributes(record)
        if self.settings.prompts and record.request is not None and not record.privacy.local_only:
            messages = input_messages(record.request)
            if messages is not None:
                attributes["gen_ai.input.messages"] = messages
        status = Status(StatusCode.ERROR) if is_failure(record.outcome) else Status()
        self._hand_over(request_name(record), trace, time_ns(), attributes, SpanKind.SERVER, status)

    def attempt_ended(self, trace: AttemptSpan) -> None:
        attempt = trace.attempt
        attributes = attempt_attributes(attempt, trace.outcome, trace.waited())
        status = Status(StatusCode.ERROR, trace.reason) if "error.type" in attributes else Status()
        self._hand_over(attempt_name(attempt), trace, trace.ended, attributes, SpanKind.CLIENT, status)

    def _hand_over(
        self,
        name: str,
        trace: RequestSpans | AttemptSpan,
        ended: int,
        attributes: Attributes,
        kind: SpanKind,
        status: Status,
    ) -> None:
        self._processor.on_end(
            ReadableSpan(
                *(name, trace.context, trace.parent, self._resource, attributes),
                kind=kind,
                status=status,
                start_time=trace.began,
                end_time=ended,
                instrumentation_scope=self._scope,
            )
        )


class RequestSpans:
    """The trace of one request. `headers` are those that are sent with its attempts."""

    __slots__ = ("_attempts", "_tracing", "began", "context", "headers", "parent")

    def __init__(
        self, tracing: Tracing, headers: dict[bytes, bytes], context: SpanContext, parent: SpanContext | None
    ) -> None:
        self.context = context
        self.parent = parent
        self.began = time_ns()
        self._tracing = tracing
        self.headers = headers
        self._attempts: list[AttemptSpan] = []

    async def follow(self, attempt: AttemptRecord, run: Callable[[], Awaitable[None]]) -> None:
        """Run the attempt. Its `traceparent` makes the backend's spans children of the attempt's span."""
        trace = AttemptSpan(attempt, self._tracing.child(self.context), self.context)
        self._attempts.append(trace)
        context = trace.context
        self.headers[_PARENT] = b"00-%032x-%016x-01" % (context.trace_id, context.span_id)
        try:
            await run()
        except BaseException as error:
            trace.outcome, trace.reason = outcome_of(error)
            raise
        finally:
            trace.ended = time_ns()

    def end(self, record: RequestRecord) -> None:
        """The request has ended: hand its spans to the exporter."""
        exporter = self._tracing.exporter
        if exporter.resting:
            exporter.lost += 1 + len(self._attempts)
            return
        try:
            for attempt in self._attempts:
                self._tracing.attempt_ended(attempt)
            self._tracing.request_ended(self, record)
        except Exception:  # a failure of tracing must not affect the request
            self._tracing.note(f"making the trace of request {record.id}")


@dataclass(slots=True, eq=False)
class AttemptSpan:
    """The trace of one attempt. Times are Unix nanoseconds."""

    attempt: AttemptRecord
    context: SpanContext
    parent: SpanContext
    outcome: str = "ok"
    reason: str = ""
    ended: int = 0
    began: int = field(default_factory=time_ns)
    _clock: float = field(default_factory=lambda: get_running_loop().time())

    def waited(self) -> float | None:
        """Seconds until its first content; None without content."""
        first = self.attempt.first_token
        return first - self._clock if first else None


def _text(headers: dict[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")


# -- the export: OTLP over HTTP, with OpenTelemetry's exporter --------------------------------------------------------

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
    """Called by the thread of the SDK's batch processor. When the receiver accepts nothing, that is logged once, and
    the exporter pauses; meanwhile spans are dropped without being encoded. `lost`: spans that were dropped."""

    def __init__(self, endpoint: str, failures: Failures) -> None:
        self.lost = 0
        self._failures = failures
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
