"""Probes backends for `gateway probe` and `gateway init`: through the running gateway, or directly from here."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal
from urllib.parse import quote

import httpx
import msgspec

from gateway.config.snapshot import Backend, Snapshot
from gateway.printable import visible, visible_all
from gateway.transport.bounded import Oversized, async_client, identity, lines, read

WAIT = 5.0  # seconds until the gateway is connected
NDJSON = "application/x-ndjson"
REFUSAL_MOST = 64 * 1024  # bytes of a refusal
MESSAGE_SHOWN = 500  # characters of its message
ANSWER_MOST = 1024 * 1024  # bytes of a line of findings

Findings = dict[str, Any]  # as `probe_report` of report.py makes them
OnSeen = Callable[[str, str, str], None]  # backend, check, result


Result = Literal["yes", "no", "mended", "untested"]


class _FinishedCheck(msgspec.Struct):
    result: Result
    seen: str


class _ProbeLine(msgspec.Struct):
    """A line of the gateway's answer: one finished check, or with `checks` the findings."""

    check: str = ""
    result: Result = "untested"
    backend: str = ""
    engine: str = ""
    model: str | None = None
    state: str = ""
    checks: dict[str, _FinishedCheck] | None = None
    drift: list[str] = []
    problems: list[str] = []


_decode_line = msgspec.json.Decoder(_ProbeLine).decode


class ProbeImpossible(Exception):
    """No backend was probed; the text says why, and the way out."""


# -- by the running gateway -------------------------------------------------------------------------------------------


async def probe_by_gateway(
    url: str, key: str | None, backends: Iterable[Backend], on_seen: OnSeen, *, now: bool
) -> list[Findings]:
    """The findings in the order of `backends`; servers are probed in parallel, the backends of one server in turn.
    Raises ProbeImpossible."""
    headers = {"accept": NDJSON} | ({"authorization": f"Bearer {key}"} if key else {})
    timeout = httpx.Timeout(WAIT, read=None)  # the gateway bounds every check
    async with async_client(timeout, base_url=url, headers=identity(headers)) as client:
        try:
            return await _by_server(backends, lambda backend: _post(client, backend.name, on_seen, now))
        except httpx.HTTPError as error:
            raise ProbeImpossible(
                f"the gateway at {url} broke off the answer: {visible(str(error)) or type(error).__name__}"
            ) from None
        except (ValueError, RecursionError):
            raise ProbeImpossible(f"what listens at {url} does not answer as a gateway") from None


async def _post(client: httpx.AsyncClient, name: str, on_seen: OnSeen, now: bool) -> Findings:
    path = f"/admin/backends/{quote(name, safe='')}/probe"
    async with client.stream("POST", path, params={"now": "1"} if now else None) as answer:
        if answer.status_code != 200:
            raise ProbeImpossible(_refusal(answer.status_code, await _refused(answer)))
        findings: Findings | None = None
        async for line in lines(answer, ANSWER_MOST):
            report = _decode_line(line)
            if report.checks is not None:
                findings = visible_all({**msgspec.to_builtins(report), **json.loads(line)})
            else:
                on_seen(name, visible(report.check), report.result)
    if findings is None:
        raise ProbeImpossible(f"the gateway stopped while it probed '{name}'")
    return findings


async def _refused(answer: httpx.Response) -> bytes:
    """The first bytes of a refusal's body."""
    try:
        return await read(answer, REFUSAL_MOST)
    except Oversized as error:
        return error.beginning


def _refusal(status: int, body: bytes) -> str:
    try:
        message = visible(str(json.loads(body)["error"]["message"])[:MESSAGE_SHOWN])
    except (ValueError, KeyError, TypeError, RecursionError):
        message = f"it answers {status}"
    if status in (401, 403):
        return f"the running gateway refuses: {message} (--key KEY, or GATEWAY_KEY in the environment)"
    return f"the running gateway refuses: {message} (--direct asks the backends of this file from here)"


# -- from here --------------------------------------------------------------------------------------------------------


async def probe_directly(
    snapshot: Snapshot, backends: Iterable[Backend], on_seen: OnSeen, *, now: bool
) -> list[Findings]:
    """The findings in the order of `backends`, by probes sent from this process. A running gateway does not learn
    from them."""
    from gateway.apps.probing.report import probe_report
    from gateway.domain.fleet import Fleet
    from gateway.health.prober import Prober, probe_of
    from gateway.health.probes import probe
    from gateway.runtime.gateway import open_backend

    fleet = Fleet(open_backend)
    fleet.apply(snapshot)
    prober = Prober(fleet)

    async def look(backend: Backend) -> Findings:
        state = fleet[backend.name]
        if probe_of(backend) is not None:
            await prober.check(state, read_models=True)
        seen = await probe(state, now=now, on_seen=lambda c, seen: on_seen(backend.name, c, seen.result))
        report: Findings = visible_all(probe_report(state, seen, time.monotonic()))
        return report

    try:
        return await _by_server(backends, look)
    finally:
        await prober.close()
        await fleet.close()


async def _by_server(backends: Iterable[Backend], look: Callable[[Backend], Awaitable[Findings]]) -> list[Findings]:
    """Servers in parallel, the backends of one server in turn: else an Ollama would keep swapping its models."""
    servers: dict[object, list[Backend]] = {}
    chosen = list(backends)
    for backend in chosen:
        servers.setdefault(backend.origin if backend.url else backend.name, []).append(backend)
    found: dict[str, Findings] = {}

    async def in_turn(group: list[Backend]) -> None:
        for backend in group:
            found[backend.name] = await look(backend)

    await asyncio.gather(*(in_turn(group) for group in servers.values()))
    return [found[backend.name] for backend in chosen]
