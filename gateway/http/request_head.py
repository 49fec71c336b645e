"""Parses the head of an HTTP/1.x request strictly: whatever two parsers could read differently is refused.

Where a proxy in front of the gateway sees other requests in the same bytes than the gateway does, one client's bytes
become another client's request (request smuggling). So nothing is guessed: one declaration of the body's length, CR LF
at the end of every line, no folded lines. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.admission.access import Caller
from gateway.config.snapshot import Snapshot
from gateway.domain.endpoints import Endpoint
from gateway.errors import GatewayError

MAX_BYTES = 64 * 1024  # request line and fields together; also a chunked body's extensions and trailers
MAX_FIELDS = 100
REPEATED_MOST = 4096  # bytes of a head that is kept, to recognise it when it comes again
NUMBER_MOST = 18  # digits of a length that is read; a longer number is beyond every limit
END = b"\r\n\r\n"
KEPT = 64  # heads that are known beyond their connection, and as many that were seen once

_VISIBLE = b"\t" + bytes(range(0x20, 0x7F)) + bytes(range(0x80, 0x100))
_TOKEN = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_TARGET = bytes(set(range(0x21, 0x7F)) - {ord("#")})
_METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"TRACE"})
_SPECIAL = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection", b"expect"})
_NO_SUCH_SIZE = 10**18  # stands for any longer number; beyond every limit
Key = tuple[str, bytes, bytes]  # (the client's address, the head before the number of its length, and behind it)


@dataclass(slots=True)
class Head:
    """`target` is the path with its query, in origin form. `headers`: lower-case names, in order. `length`: bytes of
    the body, None for a chunked one. `expects_continue`: the client waits for `100 Continue` before it sends the
    body."""

    method: bytes
    target: bytes
    http_1_0: bool
    headers: list[tuple[bytes, bytes]]
    length: int | None = 0
    keep_alive: bool = True
    expects_continue: bool = False
    repeated: RepeatedHead | None = None  # recognised as the one before; then `headers` is empty, its `caller` has them


class RepeatedHead:
    """The head of the last request on a connection, to recognise the same head again: clients send the same one with
    every request, except for the number in `content-length`. All other bytes being equal, the strict reading of the
    first one holds for the others."""

    __slots__ = ("_after", "_before", "_head", "_rest", "caller", "endpoint", "is_usual")

    def __init__(self, before: bytes, after: bytes, head: Head, caller: Caller, endpoint: Endpoint) -> None:
        self._before = before  # up to the number
        self._after = after  # behind it
        self._rest = after + END
        self._head = head
        self.caller = caller
        self.endpoint = endpoint
        # Its connection stays open, and its client does not wait before it sends the body.
        self.is_usual = head.keep_alive and not (head.http_1_0 or head.expects_continue)

    @property
    def parts(self) -> tuple[bytes, bytes]:
        """As `around_length`."""
        return self._before, self._after

    def body_of(self, data: bytes) -> bytes | None:
        """The body, if `data` is a whole request with this head and nothing else; else None."""
        before, rest = self._before, self._rest
        if not data.startswith(before):
            return None
        at = len(before)
        end = data.find(rest, at, at + NUMBER_MOST + len(rest))
        number = data[at:end]
        begin = end + len(rest)
        if end < 0 or not number.isdigit() or int(number) != len(data) - begin:
            return None
        return data[begin:]

    def match(self, raw: bytes) -> Head | None:
        """The head `raw` (everything before the empty line), if it is this one with another length."""
        before, after = self._before, self._after
        if not (raw.startswith(before) and raw.endswith(after)):
            return None
        number = raw[len(before) : len(raw) - len(after)]
        if not number.isdigit() or len(number) > NUMBER_MOST:
            return None
        head = self._head
        known = Head(head.method, head.target, head.http_1_0, [], int(number), head.keep_alive, head.expects_continue)
        known.repeated = self
        return known


def repeated_head(raw: bytes, head: Head, caller: Caller, endpoint: Endpoint) -> RepeatedHead | None:
    """What recognises the head `raw` (which is `head`, parsed) when it comes again; None: nothing does."""
    parts = around_length(raw) if head.length else None
    return RepeatedHead(*parts, head, caller, endpoint) if parts is not None else None


def around_length(raw: bytes) -> tuple[bytes, bytes] | None:
    """What stands in the head `raw` before and behind the number of its content-length; None = there is none, or it is
    too long to be kept."""
    at = raw.lower().find(b"\r\ncontent-length:") if len(raw) <= REPEATED_MOST else -1
    if at < 0:
        return None
    begin = at + len(b"\r\ncontent-length:")
    end = raw.find(b"\r\n", begin)
    line = raw[begin : end if end >= 0 else len(raw)]
    number = line.strip(b" \t")
    begin += line.find(number)
    return raw[:begin], raw[begin + len(number) :]


class KnownHeads:
    """The heads of one listener's connections, for one snapshot: some clients open a new one for each request, and send
    the same head on it. The ones used last stay. Only a head that an admitted client has sent twice is kept, so that
    heads which never come again (with a trace in them) displace none that do. `at_once`: one that has come once too."""

    def __init__(self, *, at_once: bool = False) -> None:
        self._at_once = at_once
        self._snapshot: Snapshot | None = None
        self._known: dict[Key, RepeatedHead] = {}
        self._once: dict[Key, None] = {}

    def find(self, snapshot: Snapshot, peer: str, raw: bytes) -> RepeatedHead | None:
        """What recognises the head `raw` (everything before the empty line), if this address has sent it before."""
        self._follow(snapshot)
        if not self._known or (parts := around_length(raw)) is None:
            return None
        key = (peer, *parts)
        found = self._known.pop(key, None)
        if found is not None:
            self._known[key] = found
        return found

    def note(self, snapshot: Snapshot, peer: str, repeated: RepeatedHead) -> None:
        """A client that was admitted has sent this head, which was not known."""
        self._follow(snapshot)
        key = (peer, *repeated.parts)
        if key not in self._once and not self._at_once:
            self._once[key] = None
            _drop_oldest(self._once)
            return
        self._once.pop(key, None)
        self._known[key] = repeated
        _drop_oldest(self._known)

    def _follow(self, snapshot: Snapshot) -> None:
        """Who may do what has changed: what was found out about heads is forgotten, and the old snapshot with it."""
        if snapshot is not self._snapshot:
            self._snapshot = snapshot
            self._known.clear()
            self._once.clear()


def _drop_oldest(heads: dict[Key, RepeatedHead] | dict[Key, None]) -> None:
    if len(heads) > KEPT:
        del heads[next(iter(heads))]


def malformed(what: str) -> GatewayError:
    return GatewayError("malformed_request", f"This is not a well-formed HTTP/1.1 request: {what}.")


def too_large() -> GatewayError:
    return GatewayError(
        "headers_too_large", f"The head of a request may have {MAX_BYTES} bytes and {MAX_FIELDS} fields at most."
    )


def check_lines(part: bytes) -> None:
    """Raises `malformed_request` for a control character, or a CR or LF that is not part of a CR LF."""
    if part.translate(None, _VISIBLE) != b"\r\n" * part.count(b"\r\n"):
        raise malformed("its head has a control character, or a line that does not end with CR LF")


def parse_field(line: bytes) -> tuple[bytes, bytes]:
    """A line `name: value`, as the lower-case name and the value. Its characters were checked."""
    name, colon, value = line.partition(b":")
    if not colon or not name or name.translate(None, _TOKEN):
        raise malformed("a line of its head is no header field")
    return name.lower(), value.strip(b" \t")


def parse_request_line(line: bytes) -> tuple[bytes, bytes, bool]:
    """(method, target, whether it is HTTP/1.0). Raises GatewayError (400, 405)."""
    parts = line.split(b" ")
    if len(parts) != 3 or parts[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise malformed("it does not begin with METHOD PATH HTTP/1.1")
    method, target, version = parts
    if method == b"CONNECT":
        raise GatewayError("method_not_allowed", "The gateway is no proxy: it takes no CONNECT.")
    if method not in _METHODS:
        raise malformed("its method is none of HTTP's own")
    if not target or target.translate(None, _TARGET):
        raise malformed("its path is none")
    return method, target, version == b"HTTP/1.0"


def parse_head(head: bytes) -> Head:
    """`head` is everything before the empty line. Raises GatewayError: 400, 431 or (CONNECT) 405."""
    lines = head.split(b"\r\n")
    if head.translate(None, _VISIBLE) != b"\r\n" * (len(lines) - 1):
        check_lines(head)
    if len(head) > MAX_BYTES or len(lines) > MAX_FIELDS + 1:
        raise too_large()
    method, target, http_1_0 = parse_request_line(lines[0])
    headers, special = [], []
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not name or name.translate(None, _TOKEN):
            raise malformed("a line of its head is no header field")
        field = (name.lower(), value.strip(b" \t"))
        headers.append(field)
        if field[0] in _SPECIAL:
            special.append(field)
    parsed = Head(method, target, http_1_0, headers)
    if special:
        _read_special(parsed, special)
    if not target.startswith(b"/"):
        parsed.target = _origin_form(parsed)
    if http_1_0:
        parsed.keep_alive = parsed.expects_continue = False
    return parsed


def _read_special(head: Head, fields: list[tuple[bytes, bytes]]) -> None:
    """Reads the fields about the request's length and the connection into `head`."""
    seen = set()
    for name, value in fields:
        if name == b"connection":
            if b"close" in value.lower().replace(b" ", b"").replace(b"\t", b"").split(b","):
                head.keep_alive = False
            continue
        if name == b"expect":
            head.expects_continue = head.expects_continue or value.lower() == b"100-continue"
            continue
        if name in seen:
            raise malformed(f"it has more than one {name.decode()} field")
        seen.add(name)
        if name == b"content-length":
            head.length = _length(value)
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked" or head.http_1_0:
                raise malformed("the only transfer-encoding is chunked, and not in HTTP/1.0")
            head.length = None
    if b"content-length" in seen and b"transfer-encoding" in seen:
        raise malformed("it has both a content-length and a transfer-encoding")


def _length(value: bytes) -> int:
    if not value.isdigit():
        raise malformed("its content-length is no number")
    return int(value) if len(value) <= NUMBER_MOST else _NO_SUCH_SIZE


def _origin_form(head: Head) -> bytes:
    """The path of an absolute-form target, whose host must equal the Host field; `*` for OPTIONS."""
    if head.target == b"*" and head.method == b"OPTIONS":
        return head.target
    scheme, _, rest = head.target.partition(b"://")
    if scheme.lower() not in (b"http", b"https"):
        raise malformed("its path is none")
    path_at = min(at for at in (rest.find(b"/"), rest.find(b"?"), len(rest)) if at >= 0)
    authority, path = rest[:path_at], rest[path_at:]
    hosts = [value for name, value in head.headers if name == b"host"]
    if not authority or (hosts and hosts[0].lower() != authority.lower()):
        raise malformed("its URL names another host than its host field")
    if not hosts:
        head.headers.append((b"host", authority))
    return path if path.startswith(b"/") else b"/" + path
