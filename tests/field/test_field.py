"""What clients and servers were reported to do, each as a file of data: docs/testing.md says how to add one."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML

from gateway.domain.health_state import SERVING
from tests.field.doors import PATHS, Read, body_of, read
from tests.field.server import answering
from tests.scripted import ScriptedBackend
from tests.support import RunningGateway, running_gateway

HERE = Path(__file__).parent
CASES = sorted(path.stem for path in (HERE / "cases").glob("*.yaml"))
FAILING = set((HERE / "failing.txt").read_text().split())  # shrinks to nothing
KEYS = {"report", "server", "keys", "alias", "second", "answers", "tools", "ask", "come", "sent", "modes", "times"}
COME = {"status", "text", "thoughts", "calls", "finish", "code", "says", "header", "raw", "lacks_raw"}
SENT = {"turns", "has", "lacks", "is", "says", "silent"}
ROUTES = """
defaults: {{health: {{every: 1h}}}}
backends:
  a: {{url: "{a}", slots: 4{keys}}}
  b: {{url: "{b}", slots: 4, tool_parser: hermes, context: 500000}}
aliases:
  chain: {alias}
"""


def load(name: str) -> dict[str, Any]:
    case: dict[str, Any] = YAML(typ="safe", pure=True).load((HERE / "cases" / f"{name}.yaml").read_text())
    return case


def test_failing_cases_exist() -> None:
    assert set(CASES) >= FAILING


@pytest.mark.parametrize("name", CASES)
def test_a_case_says_only_what_is_read(name: str) -> None:
    case = load(name)
    assert set(case) <= KEYS
    assert case["report"]
    for door, asked in case["ask"].items():
        assert door in PATHS
        assert set(asked) <= {"body", "come", "sent", "modes"}
        assert set(asked.get("come") or {}) <= COME
        assert set(asked.get("sent") or {}) <= SENT
    assert set(case.get("come") or {}) <= COME
    assert set(case.get("sent") or {}) <= SENT


@pytest.mark.parametrize("how", ["first", "never"])
@pytest.mark.parametrize("name", CASES)
async def test_case(name: str, how: Any, request: pytest.FixtureRequest) -> None:
    if name in FAILING:
        request.applymarker(pytest.mark.xfail(strict=True))
    case = load(name)
    a, b = ScriptedBackend((answering(case["answers"]),)), ScriptedBackend((answering(case.get("second", [_WELL])),))
    a.model = case.get("server", {}).get("model", a.model)
    a.window = case.get("server", {}).get("window", a.window)
    keys = "".join(f", {key}: {value}" for key, value in (case.get("keys") or {"tool_parser": "hermes"}).items())
    async with a.serve(), b.serve():
        routes = ROUTES.format(a=a.url, b=b.url, keys=keys, alias=case.get("alias", "[a]"))
        async with running_gateway(routes, decides_ahead=how) as gateway:
            await gateway.until_ready("b")
            state = gateway.gateway.fleet["a"]
            await gateway.until(lambda: state.backend.cloud or state.health.state in SERVING)
            for door, asked in case["ask"].items():
                for mode in asked.get("modes") or case.get("modes") or ("whole", "stream"):
                    state.facts.forget()
                    for _ in range(case.get("times", 2)):
                        a.turns.clear()
                        got = await ask(gateway, door, asked.get("body") or {}, case.get("tools") or [], mode)
                        told = f"{door}, {mode}: {got}"
                        compare(got, {**(case.get("come") or {}), **(asked.get("come") or {})}, told)
                        seen(a, {**(case.get("sent") or {}), **(asked.get("sent") or {})}, told)
            assert state.backend.cloud or state.health.state in SERVING


_WELL = {"message": {"content": "From the other."}}


async def ask(gateway: RunningGateway, door: str, asked: dict[str, Any], tools: list[str], mode: str) -> Read:
    body = body_of(door, asked, tools, stream=mode == "stream")
    got = b""
    async with gateway.client.stream("POST", PATHS[door], json=body) as response:
        with contextlib.suppress(httpx.RemoteProtocolError):  # a stream that is cut
            async for piece in response.aiter_raw():
                got += piece
    await gateway.until(gateway.idle)
    return read(door, httpx.Response(response.status_code, headers=response.headers, content=got))


def compare(got: Read, come: dict[str, Any], told: str) -> None:
    """`says`: part of the error's message; `raw`, `lacks_raw`: text that the answer has somewhere, or nowhere."""
    assert got.status == come.get("status", 200), told
    for name in ("text", "thoughts", "finish", "code"):
        assert name not in come or getattr(got, name) == come[name], told
    if "calls" in come:
        assert got.calls == [(call["name"], call["arguments"]) for call in come["calls"]], told
    assert come.get("says", "") in got.error, told
    assert "error" in come or got.status >= 300 or "code" in come or not got.error, told
    for name, value in (come.get("header") or {}).items():
        assert got.headers.get(name) == value, told
    assert come.get("raw", "") in got.raw, told
    assert "lacks_raw" not in come or come["lacks_raw"] not in got.raw, told


def seen(backend: ScriptedBackend, sent: dict[str, Any], told: str) -> None:
    """Of the last request that the server got. `turns`: how many it got at most."""
    turns = [turn for turn in backend.turns if not turn.headers.get("x-request-id", "").startswith("probe-")]
    assert len(turns) <= sent.get("turns", 9), told
    if not turns:
        return
    body, text = turns[-1].json, turns[-1].body.decode()
    told = f"{told}\nsent {text}"
    for name in sent.get("has") or ():
        assert name in body, told
    for name in sent.get("lacks") or ():
        assert name not in body, told
    for name, value in (sent.get("is") or {}).items():
        assert body.get(name) == value, told
    assert sent.get("says", "") in text, told
    assert "silent" not in sent or sent["silent"] not in text, told
