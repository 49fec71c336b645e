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
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable
from time import time_ns

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway import __version__
from gateway.accounting.record import AttemptRecord, RequestRecord, is_failure
from gateway.apps.tracing.export import Exporter
from gateway.apps.tracing.spans import (
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

    def __init__(self, settings: Traces, failures: Failures | None = None) -> None:
        self.settings = settings
        self._failures = failures or Failures()
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
        self._processor.on_end(
            ReadableSpan(
                request_name(record),
                trace.context,
                trace.parent,
                self._resource,
                attributes,
                kind=SpanKind.SERVER,
                status=status,
                start_time=trace.began,
                end_time=time_ns(),
                instrumentation_scope=self._scope,
            )
        )

    def attempt_ended(self, trace: AttemptSpan) -> None:
        attempt = trace.attempt
        attributes = attempt_attributes(attempt, trace.outcome, trace.waited())
        failed = "error.type" in attributes
        self._processor.on_end(
            ReadableSpan(
                attempt_name(attempt),
                trace.context,
                trace.parent,
                self._resource,
                attributes,
                kind=SpanKind.CLIENT,
                status=Status(StatusCode.ERROR, trace.reason) if failed else Status(),
                start_time=trace.began,
                end_time=trace.ended,
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


class AttemptSpan:
    """The trace of one attempt. Times are Unix nanoseconds."""

    __slots__ = ("_clock", "attempt", "began", "context", "ended", "outcome", "parent", "reason")

    def __init__(self, attempt: AttemptRecord, context: SpanContext, parent: SpanContext) -> None:
        self.attempt = attempt
        self.context = context
        self.parent = parent
        self.began = self.ended = time_ns()
        self.outcome, self.reason = "ok", ""
        self._clock = get_running_loop().time()

    def waited(self) -> float | None:
        """Seconds until its first content; None without content."""
        first = self.attempt.first_token
        return first - self._clock if first else None


def _text(headers: dict[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")
