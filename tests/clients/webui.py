"""Open WebUI as a process with the settings of its quick start, and a chat in its page in Chromium."""

from __future__ import annotations

import os
import re
import subprocess
import wave
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from math import pi, sin
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, Page

from bench.ports import free_ports
from tests.clients.agents import CLIENTS
from tests.quickstarts import PARTS
from tests.waiting import until_said, wait_until
from tests.web.house import shows

PROGRAM = CLIENTS / "openwebui/bin/open-webui"
VERSION = re.findall(r"open-webui==([\d.]+\d)", PARTS["open-webui"])[0]
STARTING = 180.0  # seconds until it serves; its first start makes a database
WAIT = 60_000  # ms until the page is called wrong; the machine may be busy
needs_openwebui = pytest.mark.skipif(not PROGRAM.exists(), reason=f"no Open WebUI in {PROGRAM.parents[1]}: run.sh")
# No model of its own is looked for in a hub, and none is loaded.
_OFFLINE = {
    "OFFLINE_MODE": "true",
    "HF_HUB_OFFLINE": "1",
    "ENABLE_VERSION_UPDATE_CHECK": "false",
    "ANONYMIZED_TELEMETRY": "false",
    "DO_NOT_TRACK": "true",
    "SCARF_NO_ANALYTICS": "true",
}
# Keeps what was played, and how long the answer was whenever it changed.
_WATCHER = """
window.played = []; window.lengths = [];
const play = HTMLMediaElement.prototype.play;
HTMLMediaElement.prototype.play = function () {
  for (const kind of ["ended", "error"]) this.addEventListener(kind, () => window.played.push(kind), { once: true });
  return play.call(this);
};
new MutationObserver(() => {
  const length = [...document.querySelectorAll(".chat-assistant")].at(-1)?.textContent.length ?? 0;
  if (length !== window.lengths.at(-1)) window.lengths.push(length);
}).observe(document, { subtree: true, childList: true, characterData: true });
"""


def settings(gateway: str, key: str) -> dict[str, str]:
    """The variables that the quick start sets, for this gateway and this key."""
    found = dict(re.findall(r"^ *(?:export )?([A-Z][A-Z_]+)=(\S+)", PARTS["open-webui"], re.M))
    places = {name: value for name, value in found.items() if name.endswith("_BASE_URL")}
    assert len(places) == 4, "chats, documents, both directions of speech"
    for name, value in places.items():
        found[name] = re.sub(r"^http://[\w.]+:4000", gateway, value)
        found[name.replace("_BASE_URL", "_KEY")] = key
    return found


@dataclass
class OpenWebUI:
    """`token` is its only user's."""

    url: str
    token: str
    log: Path

    def post(self, path: str, body: dict[str, Any]) -> None:
        headers = {"authorization": f"Bearer {self.token}"}
        httpx.post(self.url + path, json=body, headers=headers, timeout=30, trust_env=False).raise_for_status()

    def set_params(self, params: dict[str, str]) -> None:
        """The user's parameters of chats in tabs that are opened from now on. (`version`: its news were read.)"""
        self.post("/api/v1/users/user/settings/update", {"ui": {"version": VERSION, "params": params}})

    def add_tool(self, name: str, source: str) -> None:
        """As its workspace does."""
        meta = {"description": name, "manifest": {}}
        self.post("/api/v1/tools/create", {"id": name.lower(), "name": name, "content": source, "meta": meta})


@contextmanager
def running_openwebui(folder: Path, gateway: str, key: str) -> Iterator[OpenWebUI]:
    """Started with an empty database in `folder` and without a login; at the end stopped."""
    port, log = free_ports(1), folder / "open-webui.log"
    url = f"http://127.0.0.1:{port}"
    own = {name: value for name, value in os.environ.items() if name in ("LANG", "LC_ALL", "PATH", "TMPDIR")}
    environ = own | settings(gateway, key) | _OFFLINE
    environ |= {"HOME": str(folder), "DATA_DIR": str(folder / "data"), "WEBUI_AUTH": "False", "WEBUI_SECRET_KEY": "x"}
    with log.open("wb") as out:
        command = [str(PROGRAM), "serve", "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=out, stderr=out)
    try:
        wait_until(lambda: _serves(url, process, log), STARTING)
        asked = {"email": "", "password": ""}
        signed_in = httpx.post(f"{url}/api/v1/auths/signin", json=asked, timeout=30, trust_env=False)
        running = OpenWebUI(url, signed_in.raise_for_status().json()["token"], log)
        running.set_params({})
        yield running
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _serves(url: str, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, f"Open WebUI ended with {process.returncode}:\n{log.read_text()[-4000:]}"
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/health", timeout=5, trust_env=False).status_code == 200
    return False


def microphone(file: Path) -> list[str]:
    """Chromium's arguments for a microphone that hears a tone, from `file`, and may be used."""
    rate = 16_000
    with wave.open(str(file), "wb") as tone:
        tone.setnchannels(1)
        tone.setsampwidth(2)
        tone.setframerate(rate)
        samples = (int(12_000 * sin(2 * pi * 440 * at / rate)) for at in range(2 * rate))
        tone.writeframes(b"".join(sample.to_bytes(2, "little", signed=True) for sample in samples))
    return [
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={file}",
        "--autoplay-policy=no-user-gesture-required",
    ]


@dataclass
class Chat:
    """A new chat in a tab of its own."""

    page: Page

    async def models(self) -> list[str]:
        """What the picker offers."""
        await self.page.locator("#model-selector-model-button").click()
        options = self.page.locator("[role=option]")
        await options.first.wait_for()
        names = [(await option.inner_text()).strip() for option in await options.all()]
        await self.page.keyboard.press("Escape")
        return names

    async def choose(self, model: str) -> None:
        await self.page.locator("#model-selector-model-button").click()
        await self.page.locator("[role=option]").filter(has_text=model).click()

    async def choose_tool(self, name: str) -> None:
        await self.page.locator("#integration-menu-button").click()
        await self.page.get_by_role("menuitem", name="Tools").click()
        await self.page.get_by_role("menuitemcheckbox", name=name).click()
        await self.page.keyboard.press("Escape")

    async def attach(self, file: Path) -> None:
        """Returns when Open WebUI has read it."""
        async with self.page.expect_response(lambda answer: "/api/v1/files/" in answer.url) as answer:
            await self.page.locator("input[type=file]").first.set_input_files(file)
        assert (await answer.value).ok

    async def ask(self, text: str, answer: str) -> None:
        """One turn, whose answer holds these words when it is whole."""
        await self.page.locator("#chat-input").click()
        await self.page.keyboard.insert_text(text)
        await self.send(answer)

    async def send(self, answer: str) -> None:
        """What stands in the input, as one turn."""
        turns = await self.page.locator(".chat-assistant").count()
        await self.page.evaluate("window.lengths = []")
        await self.page.keyboard.press("Enter")
        mine = self.page.locator(".chat-assistant").nth(turns)
        try:
            await mine.filter(has_text=answer).wait_for()
        except Exception:
            raise AssertionError(f"not {answer!r} but: {await self.page.locator('main').inner_text()}") from None
        await self.page.locator("[id^=speak-button]").nth(turns).wait_for(state="attached")  # its buttons: it is whole

    async def shows(self, place: str, *texts: str) -> None:
        await shows(self.page, place, *texts)

    async def dictate(self) -> str:
        """What the microphone heard, as it stands in the input."""
        await self.page.locator("#voice-input-button").click()
        await self.page.get_by_text("0:02").wait_for()  # seconds that were recorded
        await self.page.locator("#confirm-recording-button").click()

        async def written() -> str:
            return (await self.page.locator("#chat-input").inner_text()).strip()

        return await until_said(written, WAIT / 1000)

    async def read_aloud(self) -> list[str]:
        """What became of the audio of the latest answer: `ended` = it was played to its end."""
        await self.page.locator("[id^=speak-button]").last.click()
        await self.page.wait_for_function("window.played.length", timeout=WAIT)
        return list(await self.page.evaluate("window.played"))

    async def lengths(self) -> list[int]:
        """The lengths of the latest answer's text, one after the other."""
        return list(await self.page.evaluate("window.lengths"))


@asynccontextmanager
async def chatting(browser: Browser, webui: OpenWebUI, model: str) -> AsyncIterator[Chat]:
    context = await browser.new_context(viewport={"width": 1280, "height": 900}, permissions=["microphone"])
    await context.add_init_script(_WATCHER)
    page = await context.new_page()
    page.set_default_timeout(WAIT)
    await page.goto(webui.url)
    chat = Chat(page)
    try:
        await chat.choose(model)
        yield chat
    finally:
        await context.close()
