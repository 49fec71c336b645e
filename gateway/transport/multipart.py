"""A multipart/form-data body, read as it arrives: fields are kept, and the bytes of one file are handed on."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from email.message import Message
from typing import Any
from weakref import WeakMethod

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser

logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of what the client is told anyway
FIELD_MOST = 64 * 1024  # bytes of one field
FIELDS_BYTES_MOST = 128 * 1024  # bytes of all fields of one body, with the heads of its parts
FIELDS_MOST = 100  # parts of one body
HEADER_MOST = 16 * 1024  # bytes of the head of one part
FILENAME_MOST = 255  # characters
BOUNDARY_MOST = 70  # characters (RFC 2046)
_UNREADABLE = 'the head of a part cannot be read: write name="..." and filename="..."'


class MultipartError(Exception):
    """The body is not a form as it should be. The message is for the client."""


@dataclass(slots=True)
class Part:
    """One part. `filename` None = a field, whose bytes are in `value`."""

    name: str
    filename: str | None
    content_type: str
    value: bytearray = field(default_factory=bytearray)


class FormReader:
    """Reads one body piece by piece. `feed` returns the bytes of the file that the piece has; parts that are complete
    are in `fields` (name -> value; the last one counts), and the file's part is in `file`. `parts` has them all, in
    order. `count` is called with the size of what is kept, and may raise. `between`: the bytes that go before each
    further file; None: there may be one file."""

    def __init__(
        self,
        content_type: str,
        count: Callable[[int], object] = lambda _: None,
        between: Callable[[str, str, str], bytes] | None = None,
    ) -> None:
        head = Message()
        head["content-type"] = content_type
        try:
            boundary = head.get_param("boundary")
        except (ValueError, TypeError, LookupError):
            boundary = None
        if head.get_content_type() != "multipart/form-data" or not isinstance(boundary, str) or not boundary:
            raise MultipartError("send the body as multipart/form-data with a boundary")
        self.fields: dict[str, str] = {}
        self.file: Part | None = None
        self.parts: list[Part] = []
        self.ended = False
        self._parts = 0
        self._count, self._between = count, between
        self._kept = 0  # bytes of the fields and heads
        self._part: Part | None = None
        self._head: dict[str, str] = {}
        self._name, self._value = bytearray(), bytearray()
        self._bytes: list[bytes] = []
        if len(boundary) > BOUNDARY_MOST:
            raise MultipartError(f"the form's boundary has more than {BOUNDARY_MOST} characters")
        self._parser = MultipartParser(
            boundary.encode("latin-1", "replace"),
            {
                "on_part_begin": _weakly(self._begin),
                "on_header_field": _weakly(self._header_name),
                "on_header_value": _weakly(self._header_value),
                "on_header_end": _weakly(self._header_end),
                "on_headers_finished": _weakly(self._head_finished),
                "on_part_data": _weakly(self._data),
                "on_part_end": _weakly(self._end),
                "on_end": _weakly(self._all),
            },
        )

    def feed(self, data: bytes) -> list[bytes]:
        """Raises MultipartError."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise MultipartError(f"the form is not valid: {error}") from None
        found, self._bytes = self._bytes, []
        return found

    def finish(self) -> None:
        """The body has ended. Raises MultipartError if the form has not."""
        if not self.ended:
            raise MultipartError("the form ends before its last boundary")

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > FIELDS_MOST:
            raise MultipartError(f"the form has more than {FIELDS_MOST} parts")
        self._head = {}
        self._name.clear()
        self._value.clear()

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]
        self._check_head()

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._check_head()

    def _check_head(self) -> None:
        if len(self._name) + len(self._value) > HEADER_MOST or len(self._head) > FIELDS_MOST:
            raise MultipartError(f"the head of a part has more than {HEADER_MOST} bytes")

    def _header_end(self) -> None:
        self._keep(len(self._name) + len(self._value))
        self._head[self._name.decode("latin-1").lower()] = self._value.decode("utf-8", "replace")
        self._name.clear()
        self._value.clear()

    def _head_finished(self) -> None:
        head = Message()
        head["content-disposition"] = self._head.get("content-disposition", "")
        try:
            name = head.get_param("name", header="content-disposition")
            filename = head.get_filename()
        except (ValueError, TypeError, LookupError):  # a parameter in parts (RFC 2231) that do not fit together
            raise MultipartError(_UNREADABLE) from None
        if name is None:
            raise MultipartError("a part of the form has no name")
        if not isinstance(name, str):  # in parts after all, as later versions of Python read some of them
            raise MultipartError(_UNREADABLE)
        self._part = Part(name, filename, self._head.get("content-type", ""))
        self.parts.append(self._part)
        if filename is not None:
            if self.file is not None and self._between is None:
                raise MultipartError("the form has more than one file")
            # A charset that the client names may decode to halves of characters, which nothing can write.
            self._part.filename = filename.encode(errors="replace").decode()[:FILENAME_MOST]
            if self.file is None or self._between is None:
                self.file = self._part
            else:
                self._bytes.append(self._between(name, self._part.filename, self._part.content_type))

    def _data(self, data: bytes, start: int, end: int) -> None:
        assert self._part is not None
        if self._part.filename is not None:
            self._bytes.append(data[start:end])
            return
        self._keep(end - start)
        self._part.value += data[start:end]
        if len(self._part.value) > FIELD_MOST:
            raise MultipartError(f"the field '{self._part.name[:50]}' has more than {FIELD_MOST} bytes")

    def _keep(self, size: int) -> None:
        self._kept += size
        if self._kept > FIELDS_BYTES_MOST:
            raise MultipartError(f"its fields have more than {FIELDS_BYTES_MOST} bytes")
        self._count(size)

    def _end(self) -> None:
        part = self._part
        assert part is not None
        if part.filename is None:
            self.fields[part.name] = part.value.decode("utf-8", "replace")
        self._part = None

    def _all(self) -> None:
        self.ended = True


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """A callback that does not keep the method's object: the object keeps the parser, which keeps its callbacks."""
    weak = WeakMethod(method)

    def call(*args: Any) -> None:
        bound = weak()
        assert bound is not None
        bound(*args)

    return call


async def read_form(
    content_type: str,
    pieces: AsyncIterator[bytes],
    write: Callable[[bytes], Awaitable[None]],
    count: Callable[[int], object] = lambda _: None,
) -> FormReader:
    """Read a whole form; its file goes to `write` as it comes. `count` as in `FormReader`. MultipartError."""
    reader = FormReader(content_type, count)
    async for piece in pieces:
        for data in reader.feed(piece):
            await write(data)
    reader.finish()
    return reader
