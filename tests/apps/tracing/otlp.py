"""A receiver of traces: OTLP over HTTP, decoded with OpenTelemetry's own protobuf classes."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue


@dataclass(frozen=True)
class ReceivedSpan:
    """Ids in hex; `parent` empty = it has none. Times in nanoseconds."""

    name: str
    trace: str
    id: str
    parent: str
    kind: int
    failed: bool
    said: str
    began: int
    ended: int
    attributes: dict[str, Any]
    resource: dict[str, Any]


class Receiver:
    """`status` is what it answers from now on."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.posts = 0
        self.status = 200
        self.url = ""

    def take(self, path: str, body: bytes) -> None:
        self.posts += 1
        if self.status == 200:
            assert path == "/v1/traces"
            self.spans += spans_of(body)


def spans_of(body: bytes) -> Iterator[ReceivedSpan]:
    message = ExportTraceServiceRequest.FromString(body)
    for of_resource in message.resource_spans:
        resource = attributes_of(of_resource.resource.attributes)
        for scope in of_resource.scope_spans:
            for span in scope.spans:
                yield ReceivedSpan(
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.kind,
                    span.status.code == 2,
                    span.status.message,
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    attributes_of(span.attributes),
                    resource,
                )


def attributes_of(pairs: Any) -> dict[str, Any]:
    def value(given: AnyValue) -> Any:
        kind = given.WhichOneof("value")
        return (
            [value(v) for v in given.array_value.values] if kind == "array_value" else getattr(given, kind or "", None)
        )

    def pair(given: KeyValue) -> tuple[str, Any]:
        return given.key, value(given.value)

    return dict(pair(given) for given in pairs)


@contextmanager
def receiving(port: int = 0) -> Iterator[Receiver]:
    """Listening until the end of the block, on any port unless one is given."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.take(self.path, gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
            self.send_response(receiver.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
