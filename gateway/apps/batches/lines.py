"""The lines of a batch's input, and those of its output and error files."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeGuard

import msgspec
from msgspec import Raw

from gateway.domain.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, Endpoint

CUSTOM_ID_MOST = 512  # characters
NAMED_MOST = 1024 * 1024  # bytes of a line that is no JSON, in which its custom_id is looked for
GROUP_BYTES = 4 * 1024 * 1024  # of the lines that are held at a time
URLS: dict[str, Endpoint] = {f"/v1{endpoint.path}": endpoint for endpoint in (CHAT, COMPLETIONS, EMBEDDINGS)}


class LineError(Exception):
    """A line that cannot be run. `code` and the message go into its row of the error file."""

    def __init__(self, code: str, message: str, custom_id: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.custom_id = code, message, custom_id


class _Line(msgspec.Struct):
    custom_id: Any = None
    method: Any = "POST"
    url: Any = None
    body: Raw = Raw()


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request of a batch. `body` is the request's own, ready to be handled; it never streams."""

    custom_id: str
    body: bytes
    model: str


ReadLine = tuple[int, int, int, BatchLine | LineError]  # its number, offset and bytes, then what it is
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
_decode_line = msgspec.json.Decoder(_Line).decode
_decode_body = msgspec.json.Decoder(dict[str, Raw]).decode


def read_line(line: bytes, url: str) -> BatchLine:
    """A line of the input of a batch whose requests go to `url` (a key of `URLS`). Raises LineError."""
    try:
        found = _decode_line(line.removeprefix(BOM_UTF8))  # with which editors begin a file
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"This line is not a JSON object of a batch: {error}"
        raise LineError("invalid_json_line", message, _name_in(line)) from None
    name = found.custom_id
    if not _is_name(name):
        message = f"`custom_id` must be a string of 1 to {CUSTOM_ID_MOST} characters."
        raise LineError("missing_required_parameter", message)
    if found.method != "POST":
        raise LineError("invalid_method", "`method` must be POST.", name)
    if found.url != url:
        raise LineError("mismatched_url", f"`url` must be {url}, the endpoint of the batch.", name)
    try:
        body = _decode_body(found.body)
        model = msgspec.json.decode(body["model"], type=str) if "model" in body else ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise LineError("invalid_request", "`body` must be a JSON object whose `model` is a string.", name) from None
    if not model:
        raise LineError("invalid_request", "`body` has no `model`.", name)
    body.pop("stream", None)  # the answer goes into a file
    body.pop("stream_options", None)
    return BatchLine(name, msgspec.json.encode(body), model)


def _is_name(name: Any) -> TypeGuard[str]:
    return isinstance(name, str) and 0 < len(name) <= CUSTOM_ID_MOST


def _name_in(line: bytes) -> str:
    """The custom_id of a line that is almost JSON, as many programs write it: with NaN, half a character, or text that
    is not UTF-8. "" = not to be told."""
    if len(line) > NAMED_MOST:
        return ""
    try:
        found = json.loads(line.removeprefix(BOM_UTF8).decode("utf-8", "replace"))
        name = found.get("custom_id") if isinstance(found, dict) else None
        whole = _is_name(name) and "\N{REPLACEMENT CHARACTER}" not in name and name.encode()
        return str(name) if whole else ""
    except (ValueError, RecursionError):
        return ""


def read_lines(file: BinaryIO, url: str, most: int) -> Iterator[ReadLine]:
    """(number, offset, bytes, the line or what is wrong with it) of each line that is not blank; `most`: bytes of a
    line without its end. Never holds more of the file than one line."""
    at = number = 0
    while line := file.readline(most + len(b"\r\n")):
        size = len(line)
        found: BatchLine | LineError
        if len(line.rstrip(b"\r\n")) > most:
            found = LineError("line_too_large", f"This line is larger than {most} bytes (`server.max_body`).")
            rest = line
            while rest and not rest.endswith(b"\n"):
                rest = file.readline(most)
                size += len(rest)
        elif not line.strip():
            at += size
            continue
        else:
            try:
                found = read_line(line, url)
            except LineError as wrong:
                found = wrong
        yield number, at, size, found
        at, number = at + size, number + 1


def in_groups(lines: Iterable[ReadLine], most: int) -> Iterator[list[ReadLine]]:
    """What `read_lines` gives, at most so many lines at a time, and a few MiB of them (or one line)."""
    group: list[ReadLine] = []
    held = 0
    for line in lines:
        group.append(line)
        held += line[2]
        if len(group) >= most or held >= GROUP_BYTES:
            yield group
            group, held = [], 0
    if group:
        yield group


def answered_row(batch: str, number: int, custom_id: str, status: int, request_id: str, body: bytes) -> bytes:
    """The row of a line that was answered, also with an error of HTTP. `body` is JSON, or is kept as text."""
    try:
        msgspec.json.decode(body)
        shown: Any = Raw(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        shown = body.decode("utf-8", "replace")
    response = {"status_code": status, "request_id": request_id, "body": shown}
    return _row(batch, number, custom_id, response, None)


def failed_row(batch: str, number: int, custom_id: str, code: str, message: str) -> bytes:
    """The row of a line that was never answered."""
    return _row(batch, number, custom_id, None, {"code": code, "message": message})


def _row(batch: str, number: int, custom_id: str, response: Any, error: Any) -> bytes:
    name = f"batch_req_{batch.removeprefix('batch_')}_{number}"
    row = {"id": name, "custom_id": custom_id, "response": response, "error": error}
    return msgspec.json.encode(row).translate(_ONE_LINE) + b"\n"  # white space between the values of a kept body
