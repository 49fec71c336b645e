"""The bytes of one connection, taken apart into requests: one at a time, so that none is read in another's body."""

from __future__ import annotations

from gateway.http.chunked import ChunkedBody
from gateway.http.request_head import END, MAX_BYTES, Head, check_lines, parse_head, parse_request_line, too_large

# What the next byte belongs to: a head, a body, a request after the one that is being answered; none is looked at.
HEAD, BODY, AHEAD, NOTHING = range(4)


class RequestReader:
    """`feed` it; it calls `head_began` for a head that is not here whole, then `take_head`, `take_body` and
    `end_of_body` of each request, and stands still from the end of one until `next_request`."""

    def __init__(self) -> None:
        self.state = HEAD
        self.received = 0  # bytes of the body
        self._begun: bytearray | None = None  # of a head that is not here yet
        self._checked = 0  # bytes of it that have been looked at
        self._blank = False  # an empty line stood before it
        self._left = 0  # bytes of the body to come
        self._chunked: ChunkedBody | None = None

    def head_began(self) -> None:
        raise NotImplementedError

    def take_head(self, head: Head) -> None:
        raise NotImplementedError

    def take_body(self, body: bytes) -> None:
        raise NotImplementedError

    def end_of_body(self) -> None:
        raise NotImplementedError

    @property
    def request_whole(self) -> bool:
        """The request that is answered was read to its end, and the next byte is the next one's."""
        return self.state == AHEAD

    def next_request(self) -> None:
        self.state = HEAD

    def read_nothing(self) -> None:
        """For good: whatever comes is no request."""
        self.state = NOTHING
        self._begun, self._chunked = None, None

    def feed(self, data: bytes, at: int) -> tuple[bytes, int]:
        """Read `data` from `at` on. Returns bytes, and where in them begins what stands behind the request. Raises
        GatewayError for what is no request."""
        while at < len(data):
            if self.state == BODY:
                data, at = self._read_body(data, at)
            elif self.state == HEAD:
                at = self._read_head(data, at)
            else:
                break
        return data, at

    def _read_head(self, data: bytes, at: int) -> int:
        """Returns where in `data` the head ended."""
        begun = self._begun
        if begun is None:
            if data.startswith(b"\r\n", at) and not self._blank:  # old clients end a body with one
                self._blank = True
                return at + 2
            end = data.find(END, at)
            if end >= 0:
                self._parse_head(data[at:end])
                return end + 4
            begun = self._begun = bytearray()
            self._checked = 0
            self.head_began()
        before = len(begun)
        begun += data[at : at + MAX_BYTES + len(END)]
        end = begun.find(END, max(0, before - 3))
        if end >= 0:
            self._begun = None
            self._parse_head(bytes(begun[:end]))
            return at + end + 4 - before
        self._check_begun(begun)
        return len(data)

    def _check_begun(self, begun: bytearray) -> None:
        """Nobody waits for the rest of what is wrong already."""
        if len(begun) > MAX_BYTES:
            raise too_large()
        end = len(begun) - 1 if begun.endswith(b"\r") else len(begun)
        check_lines(bytes(begun[self._checked : end]))
        first = begun.find(b"\r\n", 0, end)
        if first >= self._checked:
            parse_request_line(bytes(begun[:first]))
        self._checked = end

    def _parse_head(self, raw: bytes) -> None:
        head = parse_head(raw)
        self._blank = False
        self.received = 0
        if head.length is None:
            self._chunked = ChunkedBody()
        else:
            self._left = head.length
        self.state = AHEAD if head.length == 0 else BODY
        self.take_head(head)
        if self.state == AHEAD:  # it was not refused
            self.end_of_body()

    def _read_body(self, data: bytes, at: int) -> tuple[bytes, int]:
        """Returns what is behind the body: bytes, and where in them to go on."""
        chunked = self._chunked
        if chunked is not None:
            body = chunked.feed(data[at:] if at else data)
            rest, at = chunked.rest, 0
            ended = rest is not None
            if ended:
                self._chunked = None
            data = rest or b""
        else:
            body = data if not at and len(data) <= self._left else data[at : at + self._left]
            at += len(body)
            self._left -= len(body)
            ended = not self._left
        if body:
            self.received += len(body)
            self.take_body(body)
        if ended and self.state == BODY:
            self.state = AHEAD
            self.end_of_body()
        return data, at
