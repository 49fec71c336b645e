"""`join_retries`: a repeat of a request gets the answer of the first one (admission/joins.py).

A repeat has everything in common with the first: the client and its key, the path, the alias, the fields of the body to
the byte, the id that the client gave it, and the headers that decide where it may go. A request without an id of its
client is never joined, and a stream neither.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from ipaddress import ip_address

from gateway.admission.access import asks_local_only, given_key
from gateway.admission.joins import Answer
from gateway.admission.origins import is_forwarded
from gateway.config.snapshot import Client
from gateway.proxy.exchange import ClientGone
from gateway.proxy.reply import Header, request_header, send_whole
from gateway.proxy.stages import ReceivedRequest, RequestContext
from gateway.routing.balance import SESSION_HEADERS

JOINED = "joined"  # the outcome of a request that got the answer of another one
ID_HEADER = b"x-request-id"
BIG = 1024 * 1024  # bytes of a prompt whose key is computed in a thread


async def answered_by_first(context: RequestContext, received: ReceivedRequest) -> bool:
    """Send the answer of an earlier request that this one repeats. False = there is none, or it failed: this request
    runs, and repeats may join it. Counts the request against the client's limits; tokens only if it runs. Raises
    `rate_limit_exceeded`."""
    client = received.client.client
    parts = None if received.request.stream else _identity(context, received)
    if parts is None:
        _charge(context, received, client)
        return False
    big = received.request.prompt_bytes > BIG
    key = await asyncio.to_thread(_digest, parts) if big else _digest(parts)
    joins, record = context.services.joins, context.record
    earlier = joins.find(key)
    if earlier is None:
        _charge(context, received, client)
        context.running = joins.run(key, received.client.name, record.id, lambda: context.timer.interrupt(ClientGone()))
        return False
    _charge(context, received, replace(client, tpm=None) if client is not None else None)
    answer = earlier if isinstance(earlier, Answer) else await earlier.join()
    if answer is not None:
        await _send(context, answer)
        return True
    assert not isinstance(earlier, Answer)
    earlier.lead(record.id, lambda: context.timer.interrupt(ClientGone()))
    context.running = earlier  # before the limit is checked: if it refuses this one, the next one runs
    _charge(context, received, replace(client, rpm=None) if client is not None else None)
    return False


def keep_answer(context: RequestContext, headers: list[Header], body: bytes) -> None:
    """The request has this answer, which its repeats get too."""
    if context.running is not None:
        context.running.answered([header for header in headers if header[0] != ID_HEADER], body)


def end_joining(context: RequestContext) -> None:
    """The request has ended, however it did."""
    if context.running is not None and context.running.close() and context.record.outcome == "200":
        context.record.outcome = "client_gone"  # nobody has read the answer


def _charge(context: RequestContext, received: ReceivedRequest, client: Client | None) -> None:
    limits = context.services.accounts.limits
    context.record.charge = limits.check(client, received.request, time.monotonic())


async def _send(context: RequestContext, answer: Answer) -> None:
    record, timer = context.record, context.timer
    record.outcome, record.joined = JOINED, answer.id
    headers = [request_header(record.id), *answer.headers, (b"x-gateway-joined", answer.id.encode())]
    timer.last_write()
    await send_whole(context.exchange, 200, answer.body, headers, timer.last_write)


# -- what a repeat has in common --------------------------------------------------------------------------------------


def _identity(context: RequestContext, received: ReceivedRequest) -> list[bytes] | None:
    """All in which two requests may differ; None = this one cannot be repeated."""
    named = _id_of(context)
    if named is None or not _is_one_caller(context, received):
        return None
    headers, client = context.exchange.headers, received.client
    local = client.local_only or asks_local_only(headers)
    # The client's key by the header too: without `clients` it tells callers behind one address from each other.
    texts = (client.name, received.alias.name, context.record.endpoint.name, "local" if local else "")
    sessions = (headers.get(name, b"") for name in SESSION_HEADERS)
    return [*(text.encode() for text in texts), given_key(headers) or b"", *named, *sessions, *_fields(received)]


def _fields(received: ReceivedRequest) -> Iterator[bytes]:
    own = received.request.own
    fields = received.request.fields if own is None else own.fields  # a translation leaves some of them out
    for name, value in fields.items():
        yield name.encode("utf-8", "surrogatepass")
        yield bytes(value)


def _id_of(context: RequestContext) -> tuple[bytes, bytes] | None:
    """The id that the client gave the request: (header, value). One that the gateway made itself is none."""
    headers = context.exchange.headers
    key = headers.get(b"idempotency-key", b"").strip()
    if key:
        return b"idempotency-key", key
    given = headers.get(ID_HEADER)
    return (ID_HEADER, given) if given is not None and given == context.record.id.encode() else None


def _is_one_caller(context: RequestContext, received: ReceivedRequest) -> bool:
    """With a key of `clients` it is that client. Else an address is one caller, unless it is a proxy's."""
    if received.client.client is not None:
        return True
    if is_forwarded(context.exchange.headers):
        return False
    try:
        address = ip_address(context.exchange.peer.partition("%")[0])
    except ValueError:
        return True  # a socket of this machine
    return not any(address in network for network in context.snapshot.server.proxies)


def _digest(parts: list[bytes]) -> bytes:
    found = sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big"))
        found.update(part)
    return found.digest()
