"""Probe answers of any size, pace and type: they cost a bound of memory and time, teach nothing wrong, and hold up
nobody else's."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.load import load_text
from gateway.config.snapshot import Backend
from gateway.engines.ollama.installed_models import model_names, model_size
from gateway.engines.registry import ENGINES
from gateway.health import probe_client as module
from gateway.health.probe_client import ProbeClient, ProbeFailure, ProbeResponse, decoded
from gateway.health.recogniser import reported_version
from tests.hostile import MIB, Write, body, bomb, dripping, endless, hostile, packed
from tests.support import running_gateway
from tests.waiting import standing

OPEN_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
LINES = b'vllm:num_requests_running{engine="0"} 1.0\n' * 1000
DEEP = b"[" * 100_000 + b"]" * 100_000
BAD: dict[str, dict[str, Write]] = {
    "endless metrics": {"metrics": endless(LINES)},
    "endless everything": {name: endless(b"x" * 65536) for name in ("health", "version", "models", "metrics")},
    "small chunks without end": {"metrics": endless(b"1\r\na\r\n" * 1000, "transfer-encoding: chunked")},
    "a packed health": {"health": bomb()},
    "packed metrics": {"metrics": bomb(), "models": bomb()},
    "not what its encoding says": {"version": body(b"{}", "content-encoding: gzip")},
    "an unknown encoding": {"models": body(b"{}", "content-encoding: br")},
    "numbers that are none": {
        "metrics": body(b"vllm:num_requests_running +Inf\nvllm:generation_tokens_total NaN\n"),
        "models": body(b'{"data":[{"id":"m","max_model_len":NaN}]}'),
    },
    "huge numbers": {"metrics": body(b"vllm:num_requests_running 1e300\nvllm:generation_tokens_total -1\n")},
    "many requests": {"metrics": body(b"vllm:num_requests_running 1e15\nvllm:generation_tokens_total 1\n" * 9)},
    "open braces": {"metrics": body(b"process_start_time_seconds{x\n" * 140_000)},
    "one long line": {"metrics": body(b"vllm:num_requests_running{" + b"x" * 4_000_000)},
    "blank lines": {"metrics": body(b"\n" * 4_000_000)},
    "a version that is a list": {"version": body(b'["a"]')},
    "a version of a list": {"version": body(b'{"version":["a"]}')},
    "a long version": {"version": body(b'{"version":"' + b"9" * MIB + b'"}')},
    "a version for the terminal": {"version": body(b'{"version":"\\u001b[31m\\n0.11"}')},
    "a deep version": {"version": body(DEEP)},
    "deep models": {"models": body(DEEP)},
    "deep cards": {"models": body(b'{"data":[{"id":' + DEEP + b"}]}")},
    "ids that are none": {"models": body(b'{"data":[{"id":5},{"id":["m"]},null,"m",5,[],{"id":null}]}')},
    "data that is none": {"models": body(b'{"data":{"id":"m"}}')},
    "many models": {"models": body(json.dumps({"data": [{"id": f"m{n}"} for n in range(100_000)]}).encode())},
    "a model of a long name": {"models": body(json.dumps({"data": [{"id": "m" * MIB}]}).encode())},
    "windows": {"models": body(b'{"data":[{"id":"m","max_model_len":-1,"context_length":"9"}]}')},
    "a window without end": {"models": body(b'{"data":[{"id":"m","max_model_len":1e400}]}')},
    "a packed list": {"models": packed(b'{"data":[{"id":"m","max_model_len":9000}]}')},
}  # fmt: skip


def backend(url: str) -> Backend:
    return load_text(f"backends: {{a: {{url: '{url}'}}}}", "routes.yaml", {}).snapshot.backends["a"]


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_backend_is_looked_at_without_harm(name: str, caplog: pytest.LogCaptureFixture) -> None:
    routes = "defaults: {{health: {{every: 100ms}}, queue: {{max_wait: 0s}}}}\n"
    routes += "backends: {{bad: {{url: '{0}'}}, good: {{url: '{1}'}}}}"
    looks: list[int] = []

    async def healthy(writer: asyncio.StreamWriter) -> None:
        looks.append(1)
        await body(b"{}")(writer)

    async with AsyncExitStack() as stack:
        bad = await stack.enter_async_context(hostile(**BAD[name]))
        good = await stack.enter_async_context(hostile(health=healthy))
        gateway = await stack.enter_async_context(running_gateway(routes.format(bad, good)))
        await gateway.until_ready("good")
        looked = gateway.gateway.fleet["bad"]
        await gateway.until(lambda: looked.health.reason != "not checked yet")
        for _ in range(3):
            reply = await gateway.client.post("/v1/chat/completions", json={"model": "good", "messages": []})
            assert reply.status_code == 200
            looks.clear()
            await gateway.until(lambda: len(looks) > 0)
        status = await gateway.client.get("/status")
        assert status.status_code == 200
        told = status.json()["backends"]["bad"]
        assert len(json.dumps(told)) < 20_000
        version = told["version"]
        assert version is None or (len(version) <= 200 and version.isprintable())
        assert (await gateway.client.get("/metrics")).status_code == 200
        assert looked.reported.context in (None, 4096, 9000)
    failed = [r for r in caplog.records if r.exc_info is not None or "failed inside" in r.getMessage()]
    assert not failed
    assert all(len(record.getMessage()) < 5000 for record in caplog.records if record.levelno > logging.DEBUG)


@pytest.mark.parametrize("head", [OPEN_HEAD, b"HTTP/1.1 200 OK\r\nx: y"], ids=["body", "head"])
async def test_an_answer_that_drips_ends_at_the_deadline(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE_TIMEOUT", 0.5)
    async with hostile(health=dripping(head)) as url:
        client = ProbeClient()
        began = time.monotonic()
        answers = [await client.get(backend(url), "/health") for _ in range(3)]
        took = time.monotonic() - began
        fine = await client.get(backend(url), "/version")
        await client.close()
    assert all(isinstance(answer, ProbeFailure) and "no answer" in answer.reason for answer in answers)
    assert 1.4 < took < 6.0
    assert not isinstance(fine, ProbeFailure)
    assert fine.status == 200


async def test_servers_that_hold_their_probes_take_no_place_from_others() -> None:
    asked: list[asyncio.StreamWriter] = []

    async def silent(writer: asyncio.StreamWriter) -> None:
        asked.append(writer)
        await asyncio.Event().wait()

    async with hostile(health=silent) as bad, hostile() as good:
        client = ProbeClient()
        held = [asyncio.create_task(client.get(backend(bad), "/health")) for _ in range(150)]
        await standing(lambda: len(asked))  # as many are held as ever will be
        began = time.monotonic()
        answer = await client.get(backend(good), "/health")
        assert not isinstance(answer, ProbeFailure)
        assert time.monotonic() - began < 2.0
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        await client.close()


async def test_a_probe_follows_no_redirect_and_keeps_no_cookie() -> None:
    seen: list[str] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    other = await asyncio.start_server(note, "127.0.0.1", 0)
    target = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}/"

    async def elsewhere(writer: asyncio.StreamWriter) -> None:
        writer.write(
            f"HTTP/1.1 307 x\r\nlocation: {target}\r\nset-cookie: a=b; path=/\r\ncontent-length: 0\r\n\r\n".encode()
        )

    async with hostile(health=elsewhere) as url:
        client = ProbeClient()
        answer = await client.get(backend(url), "/health")
        assert not isinstance(answer, ProbeFailure)
        assert answer.status == 307
        assert not seen
        await client.page(target)
        await client.close()
    other.close()
    assert len(seen) == 1
    assert "cookie" not in seen[0].lower()


MEASURED = """
import asyncio, resource, sys
from gateway.config.load import load_text
from gateway.health.probe_client import ProbeClient

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

async def main():
    backend = load_text(f"backends: {{a: {{url: '{sys.argv[1]}'}}}}", "routes.yaml", {}).snapshot.backends["a"]
    client = ProbeClient()
    await client.get(backend, "/version")
    before = peak()
    for path in sys.argv[2:] * 10:
        await client.get(backend, path)
    await client.close()
    print(peak() - before)

asyncio.run(main())
"""


async def test_what_is_never_read_costs_no_memory() -> None:
    async with hostile(metrics=endless(LINES), health=bomb(), models=endless(b"x" * MIB)) as url:
        paths = ["/metrics", "/health", "models"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", MEASURED, url, *paths, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert int(out) < 120  # MiB; without a bound a second of an endless page is more


# -- what is read of them ---------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
cards = st.dictionaries(
    st.sampled_from(["id", "name", "size", "max_model_len", "context_length"]), json_values, max_size=5
)
lists = st.dictionaries(st.sampled_from(["data", "models", "version"]), st.lists(cards | json_values) | json_values)


@given(json_values | lists)
def test_any_json_is_read_as_a_list_of_models(answer: object) -> None:
    for engine in ("vllm", "openai", "ollama"):
        found = ENGINES[engine].read_models(answer)
        assert all(isinstance(name, str) and name for name in found)
        assert all(window is None or 0 < window <= 10**12 for window in found.values())
    assert all(isinstance(name, str) for name in model_names(answer))
    size = model_size(answer, "m")
    assert size is None or size > 0
    version = reported_version(answer)
    assert version is None or version.isprintable()


def test_json_of_too_many_values_is_not_read() -> None:
    for content in (b"[" * 300_000, b"[" + b"[]," * 300_000 + b"1]", b"\xff", b"", DEEP, b'"\\ud800"'):
        assert decoded(ProbeResponse(200, {}, content), "none") == "none"


def test_what_is_no_version_is_none() -> None:
    assert reported_version({"version": None}) is reported_version([]) is reported_version({"version": "  "}) is None
