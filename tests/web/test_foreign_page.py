"""A page of another site in a real browser: whatever it has the browser send, nothing of it is done or read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Page, async_playwright

from simulator import SimVllm
from tests.raw_client import chat
from tests.support import RunningGateway, running_gateway
from tests.web.house import ARGS, CHROMIUM, WAIT, needs_chromium

pytestmark = [needs_chromium]

EVIL = "evil.example"
PAGE = b"<!doctype html><title>a page of another site</title>"

# Every way of sending that needs no leave of the server; each resolves to "sent", or to what it could read.
SEND = """async ([url, body]) => {
  const send = async (options) => {
    try {
      const answer = await fetch(url, { method: "POST", ...options });
      return answer.type === "opaque" ? "sent" : `${answer.status} ${await answer.text()}`;
    } catch (error) { return "sent"; }
  };
  const found = [
    await send({ mode: "no-cors", body }),
    await send({ mode: "no-cors", body: new Blob([body]) }),
    await send({ mode: "no-cors", body: new Blob([body], { type: "text/plain" }) }),
    await send({ mode: "no-cors", body: new TextEncoder().encode(body) }),
    await send({ mode: "no-cors", body, headers: { "content-type": "application/x-www-form-urlencoded" } }),
    await send({ mode: "cors", body, headers: { "content-type": "text/plain" } }),
    await send({ mode: "cors", body, headers: { "content-type": "application/json" } }),
    await send({ mode: "no-cors", body, referrerPolicy: "no-referrer" }),
    await send({ mode: "no-cors", body, keepalive: true }),
  ];
  navigator.sendBeacon(url, body);
  navigator.sendBeacon(url, new Blob([body]));
  for (const sandbox of ["allow-scripts", "allow-scripts allow-same-origin"]) {
    const frame = document.createElement("iframe");
    frame.sandbox = sandbox;
    const script = `fetch(${JSON.stringify(url)}, {method: "POST", mode: "no-cors", body: ${JSON.stringify(body)}})`;
    frame.srcdoc = `<script>${script}.finally(() => parent.postMessage("done", "*"))</` + "script>";
    const done = new Promise((resolve) => window.addEventListener("message", resolve, { once: true }));
    document.body.append(frame);
    await done;
  }
  return found;
}"""
READ = """async (paths) => Promise.all(paths.map(async (path) => {
  const answer = await fetch(path).catch((error) => null);
  return answer && answer.status === 200 && answer.type !== "opaque" ? await answer.text() : "";
}))"""
TELLING = ["/status", "/status/history", "/status/usage", "/v1/models", "/metrics"]


@asynccontextmanager
async def gateway_of(sim: SimVllm) -> AsyncIterator[RunningGateway]:
    async with sim.serve() as url, running_gateway(f"backends: {{backend-a: {{url: '{url}'}}}}") as gateway:
        await gateway.until_ready("backend-a")
        yield gateway


@asynccontextmanager
async def other_site() -> AsyncIterator[int]:
    """A server of another site, by its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {len(PAGE)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + PAGE)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def page_at(url: str) -> AsyncIterator[Page]:
    """A browser for which evil.example is this machine, at this page."""
    async with async_playwright() as playwright:
        rules = f"--host-resolver-rules=MAP {EVIL} 127.0.0.1"
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=[*ARGS, rules])
        page = await browser.new_page()
        page.set_default_timeout(WAIT)
        await page.goto(url)
        yield page
        await browser.close()


async def test_a_page_of_another_site_runs_and_reads_nothing() -> None:
    sim = SimVllm("backend-a")
    async with gateway_of(sim) as gateway, other_site() as port, page_at(f"http://{EVIL}:{port}/") as page:
        body = json.dumps(chat("backend-a"))
        for path in ("/v1/chat/completions", "/v1/messages"):
            assert set(await page.evaluate(SEND, [gateway.url + path, body])) == {"sent"}
        for path in ("drain", "probe"):
            await page.evaluate(SEND, [f"{gateway.url}/admin/backends/backend-a/{path}", ""])
        assert set(await page.evaluate(READ, [gateway.url + path for path in TELLING])) == {""}
        refused = "gateway_requests_total"
        codes = {"alias": "", "backend": "", "endpoint": "chat", "code": "foreign_origin"}
        await gateway.until(lambda: gateway.metric(refused, **codes) >= 11)
        assert not sim.requests
        assert gateway.gateway.fleet["backend-a"].health.state.value == "ready"


async def test_a_name_that_was_made_to_lead_to_the_gateway_runs_and_reads_nothing() -> None:
    """To the browser, page and gateway are one site then."""
    sim = SimVllm("backend-a")
    async with gateway_of(sim) as gateway:
        own = f"http://{EVIL}:{gateway.url.rpartition(':')[2]}"
        async with page_at(f"{own}/version") as page:
            body = json.dumps(chat("backend-a"))
            found = await page.evaluate(SEND, [f"{own}/v1/chat/completions", body])
            assert [answer for answer in found if '"foreign_host"' not in answer and answer != "sent"] == []
            assert set(await page.evaluate(READ, TELLING)) == {""}
            await page.evaluate(SEND, [f"{own}/admin/backends/backend-a/drain", ""])
        assert not sim.requests
        assert gateway.gateway.fleet["backend-a"].health.state.value == "ready"
        async with page_at(f"{gateway.url}/version") as page:
            assert "backend-a" in (await page.evaluate(READ, TELLING))[0], "its own page may read"
