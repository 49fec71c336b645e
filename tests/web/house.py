"""A small fleet behind a gateway, and a browser in front of it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
from playwright.async_api import Browser, Page, async_playwright

from simulator import SimVllm
from simulator.exporter import SimExporter
from simulator.memory import Share
from simulator.ollama import SimOllama
from tests.support import RunningGateway, running_gateway

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
ARGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (Debian: apt install chromium)")
WAIT = 30_000  # ms until the page is called wrong; the machine may be busy

GIB = 1024**3
FAST = "defaults: {health: {every: 200ms, fail_after: 2, recover_after: 2}, queue: {max_wait: 0s}}\n"
CLIENTS = """
clients:
  ops: {key: ops-key, admin: true}
  hermes: {key: hermes-key}
"""


@dataclass
class House:
    """`sims` by backend: qwen36 on spark1 and gemma4 on spark2 (vLLM), qwen8b on spark1 (Ollama), fireworks (cloud)."""

    gateway: RunningGateway
    sims: dict[str, SimVllm | SimOllama]

    @property
    def url(self) -> str:
        return self.gateway.url


@asynccontextmanager
async def house(more: str = "", declared: str = "") -> AsyncIterator[House]:
    """Aliases coder (qwen36, then qwen8b, then the cloud) and writer (gemma4, then qwen8b)."""
    sims: dict[str, SimVllm | SimOllama] = {
        "qwen36": SimVllm("qwen36", ["Qwen3.6-35B-A3B"], 131072, 4, prefix_cache=True, spec_tokens=2),
        "gemma4": SimVllm("gemma4", ["gemma-4-26B"], 65536, 4),
        "qwen8b": SimOllama("qwen8b", models=["qwen3:8b"]),
        "fireworks": SimVllm("fireworks", ["deepseek-v4-flash"], slots=64, generic=True),
    }
    async with AsyncExitStack() as stack:
        url = {name: await stack.enter_async_context(sim.serve()) for name, sim in sims.items()}
        exporters = []
        for name in ("qwen36", "gemma4"):
            exporters.append(SimExporter([sims[name]], 120 * GIB))
            sims[name].shares = [Share(exporters[-1], 48 * GIB)]
            await stack.enter_async_context(exporters[-1].server)
        routes = f"""
{FAST}
nodes:
  spark1: {{memory: 120GiB, exporter: "{exporters[0].url}"}}
  spark2: {{memory: 120GiB, exporter: "{exporters[1].url}"}}
backends:
  qwen36: {{url: "{url["qwen36"]}", node: spark1, slots: 4{declared}}}
  gemma4: {{url: "{url["gemma4"]}", node: spark2, slots: 4}}
  qwen8b: {{engine: ollama, url: "{url["qwen8b"]}", model: "qwen3:8b", context: 32768, node: spark1}}
  fireworks:
    engine: openai
    url: "{url["fireworks"]}"
    model: deepseek-v4-flash
    cloud: true
    price: {{input: 50000, output: 90000}}
aliases:
  coder: [qwen36, qwen8b, fireworks]
  writer: [gemma4, qwen8b]
{more}
"""
        gateway = await stack.enter_async_context(running_gateway(routes))
        await gateway.until_ready("qwen36", "gemma4", "qwen8b")
        yield House(gateway, sims)


# -- a browser --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def chromium(*more: str) -> AsyncIterator[Browser]:
    """`more`: further arguments of its command line."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=[*ARGS, *more])
        yield browser
        await browser.close()


@dataclass
class Seen:
    """What a page did beside being looked at."""

    errors: list[str] = field(default_factory=list)  # of its console, and what it threw
    asked: list[str] = field(default_factory=list)  # URLs

    def quiet(self, url: str) -> None:
        """Nothing went wrong, and only the gateway was asked."""
        assert self.errors == []
        assert [asked for asked in self.asked if not asked.startswith(url + "/")] == []


@asynccontextmanager
async def looking(
    browser: Browser, url: str, *, width: int = 1280, height: int = 900, dark: bool = True, polls: bool = True
) -> AsyncIterator[tuple[Page, Seen]]:
    """A tab of its own on the page. `polls` False = it hears of changes by events alone."""
    scheme = "dark" if dark else "light"
    context = await browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]  # the two words
    if not polls:
        await context.add_init_script("window.setInterval = () => 0")
    page = await context.new_page()
    page.set_default_timeout(WAIT)
    seen = Seen()
    page.on("console", lambda m: seen.errors.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("request", lambda request: seen.asked.append(request.url))
    await page.goto(url + "/")
    try:
        yield page, seen
    finally:
        await context.close()


async def shows(page: Page, place: str, *texts: str) -> None:
    """Wait until the element holds all of these."""
    await page.wait_for_function(
        "([place, texts]) => { const e = document.querySelector(place);"
        " return e && texts.every((text) => e.textContent.includes(text)); }",
        arg=[place, list(texts)],
        timeout=WAIT,
    )


async def lacks(page: Page, place: str, text: str) -> None:
    """Wait until the element no longer holds this."""
    await page.wait_for_function(
        "([place, text]) => !document.querySelector(place)?.textContent.includes(text)", arg=[place, text], timeout=WAIT
    )


def row(backend: str) -> str:
    return f'tr[data-backend="{backend}"]'


class Wire:
    """A wire between the browser and the gateway, that can be cut and mended."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2])
        self._own = 0
        self._server: asyncio.Server | None = None
        self._ends: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._own}"

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self._own)
        self._own = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        for end in self._ends:
            end.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        ends = {writer, back}
        self._ends |= ends
        await asyncio.gather(_pump(reader, back), _pump(there, writer))
        self._ends -= ends


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
