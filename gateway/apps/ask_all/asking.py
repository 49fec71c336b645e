"""`ask_all`: one request goes to several backends at the same time, and the answer has one choice from each.

Each backend gets a request of its own, with its own plan, slots, checks, mending, limits, costs and log line: it runs
through the same handler as any other request. Only its exchange differs: a `MemberExchange` takes its answer, and
`AskAll` joins the answers into one (joined_choices.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import replace
from time import time
from typing import Any

import msgspec

from gateway.apps.ask_all.joined_choices import LOST, Member, MemberStream, Shared, added, choice_in, error_in
from gateway.domain.endpoints import CHAT, COMPLETIONS
from gateway.errors import GatewayError, envelope
from gateway.proxy.exchange import Headers
from gateway.proxy.inner_exchange import InnerExchange, OnBehalf
from gateway.proxy.reply import LAST_WORDS, STREAM_HEADERS, Header, base_headers, send_whole
from gateway.proxy.stages import ReceivedRequest, RequestContext

Run = Callable[[InnerExchange, OnBehalf], Coroutine[Any, Any, None]]
ID_MOST = 120  # characters of the client's request id in front of a member's number


class MemberExchange(InnerExchange):
    """The exchange of one backend's request. The events of a stream go to the client at once."""

    def __init__(self, owner: AskAll, member: Member, body: bytes) -> None:
        outer = owner.context.exchange
        unread = {b"content-length", b"content-encoding", b"transfer-encoding"}
        headers = {name: value for name, value in outer.headers.items() if name not in unread}
        headers[b"x-request-id"] = f"{owner.context.record.id[:ID_MOST]}-{member.index}".encode()
        privacy = owner.context.record.privacy
        super().__init__(headers, outer.peer, body, outer.share.sibling(), outer.share, privacy)
        self.session = outer.session
        self.stream = MemberStream(owner.shared, member)
        self.ended = False  # its request has ended, with an answer or without
        self._owner = owner

    @property
    def streams(self) -> bool:
        """Does it answer with a stream, as it was asked to?"""
        return self.status == 200 and self._owner.streams

    async def start(self, status: int, headers: Headers) -> None:
        await super().start(status, headers)
        if self.streams:
            await self._owner.begin()

    async def write(self, data: bytes) -> None:
        if not self.streams:
            await super().write(data)
        elif events := self.stream.feed(data):
            await self._owner.context.exchange.write(events)

    def conclude(self) -> bytes:
        """The last event of its part of a stream, where that has not ended by itself; b"" the second time."""
        return b"" if self.stream.finished else self.stream.conclude(self.failure() or LOST)

    def failure(self) -> dict[str, Any] | None:
        """Why it has no answer, as the error of OpenAI's envelope; None = it has one."""
        if self.streams:
            return self.stream.error if self.stream.error is not None or self.stream.finished else LOST
        if self.status == 200:
            return None if choice_in(bytes(self.body), 0) is not None else LOST
        return error_in(bytes(self.body)) or LOST


class AskAll:
    """One request to all members of its alias. Used once. `run_member` runs one request like any other, on a given
    exchange, on behalf of the same client. Raises `input_unsupported` for a request that cannot have several
    answers."""

    def __init__(self, context: RequestContext, received: ReceivedRequest, run_member: Run) -> None:
        request, alias, record = received.request, received.alias, context.record
        if record.endpoint not in (CHAT, COMPLETIONS):
            message = f"Alias '{alias.name}' asks several backends at once, which only chat and completions can return."
            raise GatewayError("input_unsupported", message, param="model")
        if request.choices != 1:
            message = f"Alias '{alias.name}' returns one choice from each backend: neither `n` nor several prompts."
            raise GatewayError("input_unsupported", message, param="n" if "n" in request.fields else "prompt")
        self.context = context
        self.streams = request.stream
        self.shared = Shared(record.endpoint, record.endpoint.id_prefix + record.id, int(time()), request.model)
        self._alias = alias
        self._client = received.client
        self._run_member = run_member
        self._wants_usage = request.wants_usage
        self._begun = False
        body = msgspec.json.encode(request.fields)
        states = context.services.fleet.states
        models = [(name, states[name].model if name in states else None) for name in alias.ask_all]
        members = [Member(index, name, model or request.model) for index, (name, model) in enumerate(models)]
        self._exchanges = [MemberExchange(self, member, body) for member in members]

    async def run(self) -> None:
        """Answer the client when every member has answered or failed. A stream is sent as its parts come."""
        try:
            await self._ask_members()
            await self._answer()
        finally:
            self._exchanges.clear()  # which refer to this: without it, a garbage collection would have to free both

    async def _ask_members(self) -> None:
        members = zip(self._exchanges, self._alias.ask_all, strict=True)
        create = asyncio.get_running_loop().create_task
        tasks = [create(self._ask(exchange, name), name=f"ask_all {name}") for exchange, name in members]
        try:
            await asyncio.wait(tasks)
        finally:
            for exchange, task in zip(self._exchanges, tasks, strict=True):
                exchange.leave()
                if exchange.ended:  # at most its last event is left, which a client that does not read keeps waiting
                    task.cancel()
            await asyncio.wait(tasks)  # they release what they hold; each ends at once when its client has left
        for task in tasks:
            task.result()

    async def _ask(self, exchange: MemberExchange, name: str) -> None:
        """Another member's end does not wait for this one: a stream says at once that its choice has failed."""
        alias = replace(self._alias, steps=((name,),), ask_all=())
        await self._run_member(exchange, OnBehalf(self._client, alias))
        exchange.ended = True
        if self._begun:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS if exchange.gone else None):
                    await self._write(exchange.conclude())

    async def _write(self, events: bytes) -> None:
        """Send events that no member's own request sends. The client has as long to read them as any whole answer."""
        timer = self.context.timer
        timer.writing = timer.now()
        await self.context.exchange.write(events)
        timer.writing = 0.0

    async def begin(self) -> None:
        """The first member streams: commit the status."""
        if not self._begun:
            self._begun = True
            await self.context.exchange.start(200, STREAM_HEADERS + self._headers())

    def _headers(self) -> list[Header]:
        named = ",".join(self._alias.ask_all).encode("latin-1", "replace")
        return [*base_headers(self.context.record.id, self._alias.name), (b"x-gateway-backend", named)]

    async def _answer(self) -> None:
        failures = [exchange.failure() for exchange in self._exchanges]
        if all(failure is not None for failure in failures):
            await self._fail([failure or LOST for failure in failures])
        elif self.streams:
            await self._finish_stream()
        else:
            await self._send_whole(failures)

    async def _finish_stream(self) -> None:
        exchange, last = self.context.exchange, b""
        for one in self._exchanges:  # those that failed before the first one streamed
            last += one.conclude()
        if self._wants_usage:
            last += self.shared.chunk([], usage=added([one.stream.usage for one in self._exchanges]))
        exchange.stop_watching()
        self.context.timer.last_write()
        await exchange.finish(last + b"data: [DONE]\n\n")

    async def _send_whole(self, failures: list[dict[str, Any] | None]) -> None:
        self.context.exchange.share.add(
            sum(len(one.body) for one in self._exchanges)
        )  # joined, they are there once more
        choices, rows, usages = [], [], []
        for one, failure in zip(self._exchanges, failures, strict=True):
            member = one.stream.member
            found = choice_in(bytes(one.body), member.index) if failure is None else None
            choice, usage = found or (self.shared.failed(member, stream=False), None)
            choices.append(choice)
            usages.append(usage)
            rows.append(member.row(failure))
        body = self.shared.whole(choices, rows, added(usages))
        headers, timer = [*self._headers(), *self._attempt_headers()], self.context.timer
        timer.last_write()
        await send_whole(self.context.exchange, 200, body, headers, timer.last_write)

    def _attempt_headers(self) -> list[Header]:
        """What the members' own headers say, together."""
        fields = [one.fields for one in self._exchanges]
        numbers = {name: [int(one[name]) for one in fields if one.get(name, b"").isdigit()] for name in _COUNTED}
        counted = [(name, b"%d" % join(numbers[name])) for name, join in _COUNTED.items() if numbers[name]]
        listed = [(name, b",".join(dict.fromkeys(one[name] for one in fields if name in one))) for name in _LISTED]
        return [*counted, *((name, value) for name, value in listed if value)]

    async def _fail(self, failures: list[dict[str, Any]]) -> None:
        """Every member failed. The error is that of the member with the lowest status: what the client can mend comes
        first. Its message has all of them."""
        exchange = self.context.exchange
        named = zip(self._alias.ask_all, failures, strict=True)
        message = "Every backend failed. " + " ".join(f"{name}: {error.get('message')}" for name, error in named)
        statuses = [one.status if one.status >= 400 else 502 for one in self._exchanges]
        first = statuses.index(min(statuses))
        error = failures[first]
        body = envelope(message, str(error.get("type")), error.get("param"), error.get("code"))
        exchange.stop_watching()
        if self._begun:  # and the stream is cut: it must not look complete
            await self._write(b"data: " + body + b"\n\n")
            return
        headers = [*self._headers(), *self._attempt_headers()]
        if (retry_after := self._exchanges[first].fields.get(b"retry-after")) is not None:
            headers.append((b"retry-after", retry_after))
        self.context.timer.last_write()
        await send_whole(exchange, statuses[first], body, headers)


_COUNTED: dict[bytes, Callable[[list[int]], int]] = {b"x-gateway-attempts": sum, b"x-gateway-queue-ms": max}
_LISTED = (b"x-gateway-adapted", b"x-gateway-mended")
