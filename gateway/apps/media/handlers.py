"""Speech and pictures: transcriptions, translations, speech and images run through the same stages as every request
(handler.py). What differs is here: a body that is a form with a file, and an answer that is passed on without being
looked into, with the content-type that it has.

The file is received once, into an `Upload` that can be sent to one backend after the other. A transcription is read as
a whole before it is sent, so another backend can still be tried when it breaks. Audio and events are sent as they come,
and an answer that breaks after its beginning is cut, so that it does not look complete."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from gateway.admission import access
from gateway.admission.origins import check_json
from gateway.apps.media.answers import EventReader, file_seconds, is_error, is_page, said_seconds, said_tokens
from gateway.domain.body import as_number, read_fields, value_of
from gateway.domain.endpoints import PICTURES, SPEECH, Endpoint
from gateway.domain.request import SEQUENCES_MOST, InferenceRequest, parse, too_many_answers
from gateway.domain.upstream import Response, UpstreamFailure, read_counted
from gateway.engines.base import EngineRequest
from gateway.errors import GatewayError
from gateway.inspection.error_replies import Verdict
from gateway.inspection.policy import InspectionPolicy
from gateway.inspection.reasoning import Thoughts
from gateway.large_bodies import apart_if_large
from gateway.proxy.attempt import Attempt
from gateway.proxy.exchange import AsgiExchange, declares_more, too_large
from gateway.proxy.failures import AttemptFailed, StreamBroken
from gateway.proxy.handler import RequestHandler
from gateway.proxy.reply import Header, base_headers
from gateway.proxy.services import Services
from gateway.proxy.stages import AdmittedRequest, RequestContext
from gateway.shortage import shortage_of
from gateway.transport.multipart import FormReader, MultipartError
from gateway.transport.upload import HEADER_MOST, Upload

ANSWER_WAIT = 120.0  # seconds until the first byte of an answer, where routes.yaml has no `first_byte`, and beyond it:
PICTURE_WAIT = 600.0  # as long, for pictures, of which servers send nothing before they are made
REAL_TIME = 32_000  # bytes of a file for one more second: uncompressed speech (16 kHz, 16 bit), as long as it lasts
KIND_MOST = 200  # characters of a content-type
BEGINNING_MOST = 64 * 1024  # bytes of a stream's first event that wait until it is known to be no error
ERROR_AS_ANSWER = "answered with an error, and the status of an answer"
JSON, EVENTS = "application/json", "text/event-stream"

_encode = msgspec.json.Encoder().encode


class AudioHandler(RequestHandler):
    """`/v1/audio/speech` and `/v1/images/generations`: JSON in, audio or pictures out."""

    upload: Upload | None = None

    async def _read(self, client: access.Identity) -> InferenceRequest:
        check_json(self.exchange.headers)
        body = await self.exchange.read_body(self.snapshot.server.max_body)
        fields = await apart_if_large(client.name, len(body), partial(read_fields, body))
        if not value_of(fields.get("model")):
            fields["model"] = Raw(_encode(self._only_alias(client)))
        return parse(self.record.endpoint, fields)

    def _only_alias(self, client: access.Identity) -> str:
        """The alias of a request that names none: the only one that this client may use for it."""
        snapshot, endpoint = self.snapshot, self.record.endpoint
        fitting = [
            alias.name
            for alias in snapshot.aliases.values()
            if client.may_use(alias)
            and any(endpoint.name in snapshot.backends[name].serves for step in alias.steps for name in step)
        ]
        if len(fitting) == 1:
            return fitting[0]
        known = f"name one of: {', '.join(fitting)}" if fitting else f"and no alias serves {endpoint.path}"
        raise GatewayError("invalid_request_body", f"`model` is missing or empty; {known}.", param="model")

    def _new_attempt(self, admitted: AdmittedRequest) -> Attempt:
        return AudioAttempt(self.context, admitted, self.upload)

    async def _stopped(self, reason: BaseException) -> None:
        if self.exchange.started and isinstance(reason, StreamBroken | UpstreamFailure):
            self.timer.rest()
            self.record.outcome = "stream_interrupted"
        else:
            await super()._stopped(reason)


class UploadHandler(AudioHandler):
    """`/v1/audio/transcriptions`, `/v1/audio/translations`, `/v1/images/edits` and `/v1/images/variations`: a form with
    a file, read as it comes. Forms of pictures may have several."""

    def __init__(self, services: Services, endpoint: Endpoint, exchange: AsgiExchange) -> None:
        super().__init__(services, endpoint, exchange)
        self._arriving = exchange

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            if self.upload is not None:
                self.upload.close()

    async def _read(self, client: access.Identity) -> InferenceRequest:
        form = await self._receive_form()
        fields: dict[str, Any] = {}
        for part in form.parts:
            if part.filename is None:
                value = part.value.decode("utf-8", "replace")
                fields[part.name] = [*_listed(fields[part.name]), value] if part.name in fields else value
        assert self.upload is not None
        model = fields.get("model")
        if not isinstance(model, str) or not model.strip():
            model = self._only_alias(client)
        fields |= {"model": model, "file": self.upload.digest}  # the file itself is sent by the engine
        encoded = {name: Raw(_encode(value)) for name, value in fields.items()}
        size = sum(len(memoryview(raw)) for name, raw in encoded.items() if name == "prompt")
        count = (as_number(fields.get("n")) if self.record.endpoint in PICTURES else None) or 1
        if count > SEQUENCES_MOST:
            raise too_many_answers()
        return InferenceRequest(self.record.endpoint, encoded, model, choices=max(1, count), prompt_bytes=size)

    async def _receive_form(self) -> FormReader:
        """The form; its file goes to `upload`."""
        exchange, server = self._arriving, self.snapshot.server
        if declares_more(exchange.headers.get(b"content-length", b""), server.max_body):
            raise too_large(server.max_body)
        if exchange.headers.get(b"content-encoding", b"identity") not in (b"identity", b""):
            raise GatewayError("unsupported_encoding", "Send a form without a content-encoding.")
        upload = self.upload = Upload(Path(server.data), exchange.share)
        try:
            kind = exchange.headers.get(b"content-type", b"").decode("latin-1")
            pictures = self.record.endpoint in PICTURES
            form = FormReader(kind, exchange.share.add, upload.between if pictures else None)
            async for piece in exchange.pieces(server.max_body):
                for data in form.feed(piece):
                    await upload.write(data)
            form.finish()
            if form.file is None:
                name = "image" if pictures else "file"
                raise GatewayError("invalid_request_body", f"The form has no `{name}`.", param=name)
            if pictures:
                upload.field = form.file.name
            await upload.finish(form.file.filename or "", form.file.content_type)
        except MultipartError as wrong:
            raise GatewayError("invalid_request_body", f"This is no form with a file: {wrong}.") from None
        except OSError as error:
            if shortage_of(error) is not None:
                raise
            message = f"The gateway cannot keep the file in {server.data}: {error.strerror or error}."
            raise GatewayError("resources_exhausted", message, retry_after=10) from None
        return form


class AudioAttempt(Attempt):
    """One attempt, whose answer is passed on. `upload`: the file of its form."""

    def __init__(self, context: RequestContext, admitted: AdmittedRequest, upload: Upload | None) -> None:
        super().__init__(context, admitted)
        self._upload = upload
        self._sent = False  # the client has a part of the answer

    def _call(self) -> EngineRequest:
        return replace(super()._call(), upload=self._upload)

    def _expect_first(self) -> None:
        super()._expect_first()
        if self.candidate.state.backend.timeouts.first_byte is None:
            size = self._upload.size if self._upload is not None else 0
            wait = PICTURE_WAIT if self.request.endpoint in PICTURES else ANSWER_WAIT
            self.timer.expect(wait + size / REAL_TIME + self.request.prompt_bytes / 10)

    def _failure(self, failure: UpstreamFailure) -> Exception:
        found = super()._failure(failure)
        return StreamBroken(str(found), found.verdict) if self._sent and isinstance(found, AttemptFailed) else found

    async def _relay(
        self, response: Response, policy: InspectionPolicy | None, thoughts: Thoughts | None
    ) -> Collection[str]:
        kind = response.headers.get("content-type", "application/octet-stream")[:KIND_MOST]
        if kind.lower().startswith(EVENTS):
            await self._relay_as_it_comes(response, kind, EventReader())
        elif self.request.endpoint is SPEECH:
            await self._relay_as_it_comes(response, kind)
        else:
            await self._relay_text(response, kind)
        return ()

    async def _relay_as_it_comes(self, response: Response, kind: str, events: EventReader | None = None) -> None:
        first = await response.read_some()
        if not first or (self.request.endpoint is SPEECH and kind.lower().startswith((JSON, "text/html"))):
            raise AttemptFailed(Verdict("failed", "answered without audio"))
        if events is not None:
            first = await self._first_event(response, events, first)
        timer, exchange, timeouts = self.timer, self.exchange, self.candidate.state.backend.timeouts
        timer.expect(timeouts.idle)
        await self._begin_answer(response, kind)
        beginning, size, data = first[:HEADER_MOST], 0, first
        while data:
            size += len(data)
            timer.heard = self.candidate.state.last_event = timer.now()
            timer.writing = timer.now()
            await exchange.write(data)
            timer.writing = 0.0
            if events is not None and events.error:
                break
            data = await response.read_some()
            if events is not None:
                events.read(data)
        if events is not None:
            events.finish()
            if events.error:  # the client has it, and the connection is cut
                raise StreamBroken(f"{self.candidate.state.name} sent an error within its answer")
            self.record.audio_seconds, self.record.usage = events.seconds, events.tokens
            self.record.pictures = self.request.choices
        self.record.audio_seconds = self.record.audio_seconds or file_seconds(beginning, size) or self._upload_seconds()
        await self._end_answer()

    async def _first_event(self, response: Response, events: EventReader, first: bytes) -> bytes:
        """The bytes of a stream up to the end of its first event: another backend can be asked as long as the client
        has none of them. Raises AttemptFailed where that event is an error."""
        beginning = bytearray(first)
        events.read(first)
        while not events.begun and first and len(beginning) < BEGINNING_MOST:
            first = await response.read_some()
            events.read(first)
            beginning += first
        if not first:
            events.finish()
        if events.error:
            raise AttemptFailed(Verdict("failed", ERROR_AS_ANSWER))
        return bytes(beginning)

    async def _relay_text(self, response: Response, kind: str) -> None:
        body = await read_counted(response, self._context.snapshot.server.max_body, self.exchange.share.add)
        answer = None
        if kind.lower().startswith(JSON):
            try:
                answer = msgspec.json.decode(body)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                raise AttemptFailed(Verdict("failed", "answered with JSON that cannot be read")) from None
            if is_error(answer):
                raise AttemptFailed(Verdict("failed", ERROR_AS_ANSWER))
        elif is_page(body):
            raise AttemptFailed(Verdict("failed", "answered with a page for browsers"))
        self.record.audio_seconds = said_seconds(answer) or self._upload_seconds()
        self.record.usage = said_tokens(answer)
        made = answer.get("data") if isinstance(answer, dict) else None
        self.record.pictures = len(made) if isinstance(made, list) else self.request.choices
        self._expect_reader()
        await self._begin_answer(response, kind, length=len(body))
        await self._end_answer(body)

    async def _begin_answer(self, response: Response, kind: str, length: int | None = None) -> None:
        headers: list[Header] = [(b"content-type", kind.encode("latin-1", "replace"))]
        if length is None and "content-encoding" not in response.headers:
            stated = response.headers.get("content-length", "")
            length = int(stated) if stated.isascii() and stated.isdigit() and len(stated) < 16 else None
        if length is not None:
            headers.append((b"content-length", b"%d" % length))
        base = base_headers(self.request_id, self.alias.name)
        self.record.first_token = self.timer.now()
        self._acquit_request()
        await self.exchange.start(200, [*headers, *base, *self._headers])
        self._sent = True

    async def _end_answer(self, rest: bytes = b"") -> None:
        self.record.answered = True
        self.exchange.stop_watching()
        self.timer.last_write()
        await self.exchange.finish(rest, self.timer.last_write)

    def _upload_seconds(self) -> float:
        return file_seconds(self._upload.beginning, self._upload.size) if self._upload is not None else 0.0


def _listed(value: str | list[str]) -> list[str]:
    return value if isinstance(value, list) else [value]
