"""Open WebUI works with the settings of its quick start, in Chromium: `make test-clients`."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser

from simulator.replies import filler
from tests.clients.webui import OpenWebUI, chatting, microphone, needs_openwebui, running_openwebui
from tests.demo_process import Demo, running_demo
from tests.waiting import until_said
from tests.web.house import chromium, needs_chromium

pytestmark = [
    needs_openwebui,
    needs_chromium,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]

ROUTES = """
backends:
  qwen36: {url: "http://192.168.1.11:8001", model: Qwen/Qwen3.6-35B-A3B, slots: 4, vision: false}
  gemma4: {url: "http://192.168.1.12:8001", model: google/gemma-4-26B-A4B-it, slots: 4, vision: true}
  qwen8b: {engine: ollama, url: "http://192.168.1.11:11434", model: "qwen3:8b", context: 32768, vision: false}
  parakeet: {engine: http, url: "http://192.168.1.11:8765", serves: [transcriptions]}
  chatterbox: {engine: http, url: "http://192.168.1.12:8882", serves: [speech]}
aliases:
  writer: [qwen36, gemma4, qwen8b]
  small: [qwen8b]
  embed: {use: [qwen8b], listed: false}
  transcribe: [parakeet]
  speak: [chatterbox]
  others: [gemma4]
clients:
  webui:
    key: right-key
    aliases: [writer, small, embed, transcribe, speak]
    on_unsupported: strip
    tasks: {alias: small, thinking: off}
  operator: {key: operator-key, admin: true}
"""
TOOL = '''
class Tools:
    def tell_the_mark(self, name: str) -> str:
        """
        Tell the mark of a name.
        :param name: whose mark
        """
        return "the mark is quartz"
'''
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
OPERATOR = {"authorization": "Bearer operator-key"}
PATIENCE = 60.0


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    folder = tmp_path_factory.mktemp("demo")
    (folder / "routes.yaml").write_text(ROUTES)
    with running_demo(folder, "--config", str(folder / "routes.yaml")) as running:
        yield running


@pytest.fixture(scope="module")
def webui(demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenWebUI]:
    with running_openwebui(tmp_path_factory.mktemp("webui"), demo.url, "right-key") as running:
        running.add_tool("Marks", TOOL)
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    async with chromium(*microphone(tmp_path_factory.mktemp("microphone") / "tone.wav")) as running:
        yield running


async def told(demo: Demo, path: str) -> httpx.Response:
    async with httpx.AsyncClient(headers=OPERATOR, timeout=PATIENCE, trust_env=False) as client:
        return (await client.get(demo.url + path)).raise_for_status()


async def answered(demo: Demo, alias: str, backend: str, endpoint: str) -> int:
    """How many requests of this kind were answered."""
    wanted = {f'alias="{alias}"', f'backend="{backend}"', f'endpoint="{endpoint}"', 'code="200"'}
    text = (await told(demo, "/metrics")).text
    counts = re.findall(r"^gateway_requests_total\{(.*)\} (\S+)$", text, re.M)
    return sum(int(float(count)) for labels, count in counts if wanted == set(labels.split(",")))


def breaks_once(demo: Demo) -> None:
    """The next stream of the alias' first backend breaks after its first tokens."""
    fault = {"kind": "die_mid", "after": 15, "count": 1}
    httpx.post(f"{demo.control}/_sim/qwen36/fault", json=fault, timeout=PATIENCE, trust_env=False).raise_for_status()


async def test_the_picker_offers_the_clients_aliases_and_nothing_else(browser: Browser, webui: OpenWebUI) -> None:
    async with chatting(browser, webui, "writer") as chat:
        assert await chat.models() == ["writer", "small"]


async def test_an_answer_appears_while_it_is_written(browser: Browser, webui: OpenWebUI) -> None:
    words = "".join(filler(number) for number in range(120)).strip()
    async with chatting(browser, webui, "writer") as chat:
        await chat.ask("Say it in 120 words.", words)
        assert len(await chat.lengths()) > 10


async def test_the_title_comes_from_the_alias_for_tasks(browser: Browser, webui: OpenWebUI, demo: Demo) -> None:
    before = await answered(demo, "small", "qwen8b", "chat")
    async with chatting(browser, webui, "writer") as chat:
        await chat.ask("What is 12*17?", "204.")
        await chat.page.wait_for_function("document.title.startsWith('your concise title here')")
    assert await answered(demo, "small", "qwen8b", "chat") > before


async def test_a_tool_is_called_and_its_result_read(browser: Browser, webui: OpenWebUI) -> None:
    async with chatting(browser, webui, "writer") as chat:
        await chat.choose_tool("Marks")
        await chat.ask("Use tell_the_mark for Oslo", "The tool answered: the mark is quartz")


async def test_a_backend_that_dies_in_a_tool_call_is_not_noticed(
    browser: Browser, webui: OpenWebUI, demo: Demo
) -> None:
    async with chatting(browser, webui, "writer") as chat:
        await chat.choose_tool("Marks")
        breaks_once(demo)
        await chat.ask("Use tell_the_mark for Oslo", "The tool answered: the mark is quartz")


async def test_a_backend_that_is_killed_between_two_turns_is_not_missed(
    browser: Browser, webui: OpenWebUI, demo: Demo
) -> None:
    async with chatting(browser, webui, "writer") as chat:
        await chat.ask("Who is there?", "This is Qwen/Qwen3.6-35B-A3B")
        demo.steer("qwen36", "kill")
        try:
            await chat.ask("And who is there now?", "This is google/gemma-4-26B-A4B-it")
        finally:
            demo.steer("qwen36", "revive")
            await until_ready(demo, "qwen36")


async def test_an_answer_whose_backend_dies_in_the_middle_is_whole(
    browser: Browser, webui: OpenWebUI, demo: Demo
) -> None:
    words = "".join(filler(number) for number in range(80)).strip()
    async with chatting(browser, webui, "writer") as chat:
        breaks_once(demo)
        await chat.ask("Say it in 80 words.", words)


async def test_a_picture_goes_to_the_model_that_sees(
    browser: Browser, webui: OpenWebUI, demo: Demo, tmp_path: Path
) -> None:
    picture = tmp_path / "dot.png"
    picture.write_bytes(base64.b64decode(DOT))
    before = await answered(demo, "writer", "gemma4", "chat")
    async with chatting(browser, webui, "writer") as chat:
        await chat.attach(picture)
        await chat.ask("What is in the picture?", "This is google/gemma-4-26B-A4B-it")
    assert await answered(demo, "writer", "gemma4", "chat") == before + 1


@pytest.mark.parametrize("calling", ["native", "legacy"])
async def test_a_question_to_a_document_is_embedded_and_answered_by_the_alias_of_the_chat(
    browser: Browser, webui: OpenWebUI, demo: Demo, tmp_path: Path, calling: str
) -> None:
    """Its prompt begins as those of side calls do. In legacy mode it has no tools either."""
    note = tmp_path / "note.txt"
    note.write_text(f"The lantern of the {calling} harbour is called Marigold.\n")
    before = await answered(demo, "embed", "qwen8b", "embeddings")
    webui.set_params({"function_calling": calling})
    async with chatting(browser, webui, "writer") as chat:
        await chat.attach(note)
        await chat.ask("What is the lantern called?", "This is Qwen/Qwen3.6-35B-A3B")
        await chat.shows("main", "1 Source")
    assert await answered(demo, "embed", "qwen8b", "embeddings") >= before + 2, "the document, and the question"


async def test_what_the_microphone_hears_is_written(browser: Browser, webui: OpenWebUI, demo: Demo) -> None:
    before = await answered(demo, "transcribe", "parakeet", "transcriptions")
    async with chatting(browser, webui, "writer") as chat:
        assert (await chat.dictate()).startswith("This is parakeet, simulated, after ")
        await chat.send("This is parakeet")
    assert await answered(demo, "transcribe", "parakeet", "transcriptions") == before + 1
    await until_said(lambda: used(demo, "audio_in_seconds"), PATIENCE)


async def test_an_answer_is_read_aloud(browser: Browser, webui: OpenWebUI, demo: Demo) -> None:
    before = await answered(demo, "speak", "chatterbox", "speech")
    async with chatting(browser, webui, "writer") as chat:
        await chat.ask("What is 12*17?", "204.")
        assert set(await chat.read_aloud()) == {"ended"}
    assert await answered(demo, "speak", "chatterbox", "speech") > before
    await until_said(lambda: used(demo, "audio_out_seconds"), PATIENCE)


async def used(demo: Demo, what: str) -> float:
    """The client's usage of today; it is summed up every 15 s."""
    rows: list[dict[str, Any]] = (await told(demo, "/status/usage")).json()["today"]["clients"]
    return sum(float(row[what]) for row in rows if row["client"] == "webui")


async def until_ready(demo: Demo, backend: str) -> None:
    async def is_ready() -> bool:
        return bool((await told(demo, "/status")).json()["backends"][backend]["state"] == "ready")

    await until_said(is_ready, PATIENCE)
