"""`gateway top`: one frame of the fleet, at any size, and what it does while the gateway is away."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import signal
import struct
import sys
import termios
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gateway.apps.console.top import StatusPoller
from gateway.apps.console.top_view import View
from gateway.cli.main import cli
from simulator import SimVllm
from tests.demo_process import ROOT
from tests.scripted import answer
from tests.support import PATIENCE, running_gateway

NOWHERE = "http://127.0.0.1:9"
KEY = "watcher-key-1"


def drawn(view: View, width: int = 80, height: int = 24) -> list[str]:
    out = StringIO()
    Console(file=out, width=width, height=height, color_system=None, legacy_windows=False).print(view)
    return out.getvalue().splitlines()


def status(**more: Any) -> dict[str, Any]:
    ready = {"state": "ready", "reason": "answers", "since": 940.0, "slots": 4, "inflight": 1, "foreign": 2, "queue": 3}
    told = {"version": "0.1.0", "started": 400.0, "now": 1000.0, "backends": {"qwen36": ready}}
    return {**told, **more}


def text(*arguments: Any, **more: Any) -> str:
    return "\n".join(drawn(View("http://g:4000", status(**more)), *arguments))


# -- one frame --------------------------------------------------------------------------------------------------------


def test_a_backend_with_its_slots_its_queue_and_why() -> None:
    numbers = {"decode": 101.6, "ttft_p50": 0.17, "kv": 0.42}
    backend = {**status()["backends"]["qwen36"], "now": numbers}
    assert re.search(r"qwen36 +ready +1/4 \+2 +3 +102 +170ms +42% 1 min: answers", text(backends={"qwen36": backend}))
    assert "gateway 0.1.0 at http://g:4000, up 10 min" in text()
    assert re.search(r"qwen36 +ready +1/4 \+2 +3 +1 min: answers", text()), "an older gateway tells no numbers"


def test_a_server_that_loads_on_demand_shows_what_it_holds() -> None:
    desk = status()["backends"]["qwen36"]
    model = {"loaded": True, "load_seconds": 71.0, "window": 32768, "bytes": 5 * 2**30, "until": 1240.0}
    wide = {"backends": {"desk": {**desk, "held": model}}}
    assert "holds its model: 32,768 tokens, 5.0 GiB, for 4 min more" in text(140, **wide)
    away = {"backends": {"desk": {**desk, "held": {"loaded": False, "load_seconds": 71.0}}}}
    assert "its model is not loaded, the last load took 1 min" in text(140, **away)


def test_where_the_number_of_its_slots_comes_from_is_told_unless_it_was_said() -> None:
    desk = status()["backends"]["qwen36"]
    learned = {**desk, "slots_reason": "learned: with more it preempts"}
    assert "4 slots, learned: with more it preempts" in text(140, backends={"qwen36": learned})
    declared = {**desk, "slots_reason": "as routes.yaml says"}
    assert "answers" in text(140, backends={"qwen36": declared})


def test_what_is_parked_takes_one_line() -> None:
    parked = {name: {"state": "parked"} for name in ("ds4", "qwen80b")}
    assert "parked: ds4, qwen80b" in text(backends={**status()["backends"], **parked})


def test_the_mode_in_force_is_beside_the_version() -> None:
    assert text(mode="ds4", backends={}).splitlines()[0].rstrip().endswith("up 10 min, mode ds4")
    assert ", mode" not in text(mode=None)


def alias(course: str, **more: Any) -> dict[str, Any]:
    told = {"course": course, "serving": ["qwen8b"], "since": 280.0, "step": 2, "why": "gemma4 is down (refused)"}
    return {**told, **more}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"aliases": {"writer": alias("fallback")}},
         "writer is on a FALLBACK for 12 min: qwen8b answers. gemma4 is down (refused)"),
        ({"aliases": {"writer": alias("cloud", usd=1.5)}}, "writer is on the CLOUD for 12 min, 1.50 USD so far: qwen"),
        ({"aliases": {"writer": alias("nothing", serving=[])}}, "NOTHING serves writer for 12 min: gemma4 is down"),
        ({"config": {"error": "routes.yaml:3\n bad"}}, "is refused; what was in force still is: routes.yaml:3 bad"),
        ({"budgets": {"fireworks": 0.83}}, "the budget of fireworks is 83% spent"),
        ({"stopping": True}, "the gateway is stopping"),
    ],
)  # fmt: skip
def test_what_must_not_be_overlooked_stands_on_top(more: dict[str, Any], said: str) -> None:
    lines = drawn(View("http://g:4000", status(**more)), 120)
    assert said in " ".join(" ".join(lines[1:3]).split())


@pytest.mark.parametrize(
    "more",
    [
        {"aliases": {"writer": alias("home", step=1, why="")}},
        {"aliases": {"ds4": alias("nothing", implicit=True)}},
        {"aliases": {"judge": alias("parked")}},
        {"config": {"error": None}},
        {"config": None},
        {"budgets": {"fireworks": 0.79}},
    ],
)
def test_nothing_stands_on_top_when_all_is_well(more: dict[str, Any]) -> None:
    lines = drawn(View("http://g:4000", status(**more)))
    assert lines[1].strip() == ""
    assert lines[2].startswith("backend")


def test_who_answers_for_each_alias() -> None:
    told = {"writer": alias("fallback", now={"ttft_p50": 2.61}), "own": alias("home", implicit=True)}
    lines = text(aliases=told)
    assert re.search(r"writer +qwen8b +2.6s step 2: gemma4 is down", lines)
    assert not re.search(r"^own ", lines, re.M)


def test_the_last_events_come_first() -> None:
    events = [
        {"at": 980.0, "kind": "state", "backend": "a", "before": "ready", "after": "down", "reason": "refused"},
        {"at": 995.0, "kind": "drift", "backend": "b", "reason": "window"},
        {"at": 999.0, "kind": "config", "result": "invalid", "reason": "routes.yaml:1"},
    ]
    lines = [" ".join(line.split()) for line in drawn(View("u", status(events=events)))]
    found = [
        lines.index(line)
        for line in ("1 s config invalid: routes.yaml:1", "5 s b drift: window", "20 s a down: refused")
    ]
    assert found == sorted(found)


def test_clients_of_today() -> None:
    rows: list[dict[str, Any]] = [
        {"client": f"c{n}", "requests": n, "errors": 1, "prompt": 1234, "completion": 5, "usd": None} for n in range(6)
    ]
    lines = "\n".join(drawn(View("u", status(), {"today": {"clients": rows}})))
    assert re.search(r"c5 +5 +1 +1,234 +5 +\?", lines)
    assert "and 2 more" in lines
    assert not re.search(r"^c1 ", lines, re.M)
    assert "audio" not in lines
    rows[5] |= {"audio_in_seconds": 1800.25, "audio_out_seconds": 60.0}
    lines = "\n".join(drawn(View("u", status(), {"today": {"clients": rows}})))
    assert re.search(r"c5 +5 +1 +1,234 +5 +1,860 +\?", lines)


def test_trouble_is_what_is_left_when_there_is_no_room() -> None:
    well = {f"well{n}": {"state": "ready", "inflight": 0} for n in range(30)}
    lines = "\n".join(
        drawn(
            View("u", status(backends={**well, "bad": {"state": "down"}, "at-work": {"state": "busy", "inflight": 1}}))
        )
    )
    assert re.search(r"^bad +down", lines, re.M)
    assert re.search(r"^at-work +busy", lines, re.M)
    assert re.search(r"and \d\d more: well", lines)


LEAF = st.none() | st.booleans() | st.integers(-10, 10**12) | st.floats() | st.text(max_size=20)
JSON = LEAF | st.lists(LEAF, max_size=3) | st.dictionaries(st.text(max_size=9), LEAF, max_size=2)


def some(*names: str, **known: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An object with some of these, each of them anything at all; `known` ones are mostly what they ought to be."""
    fields = dict.fromkeys(names, JSON) | {name: JSON | value for name, value in known.items()}
    return st.fixed_dictionaries({}, optional=fields)


def named(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(st.text(min_size=1, max_size=9), value | LEAF, max_size=3)


NUMBERS = some("decode", "kv", "ttft_p50")
BACKEND = some(
    "state",
    "reason",
    "since",
    "slots",
    "inflight",
    "foreign",
    "elsewhere",
    "room",
    "queue",
    "drift",
    now=NUMBERS,
    held=some("loaded", "load_seconds", "window", "bytes", "until"),
)
COURSES = st.sampled_from(["home", "fallback", "cloud", "nothing", "parked"])
ALIAS = some("serving", "why", "since", "step", "usd", "implicit", course=COURSES, now=NUMBERS)
EVENT = some("at", "kind", "backend", "after", "result", "reason")
NODE = some("state", "memory", "memory_used", "memory_total", "temperature")
CLIENT = some("client", "requests", "errors", "prompt", "completion", "usd", "audio_in_seconds", "audio_out_seconds")
BATCH = some("id", "client", "status", "models", "total", "completed", "failed", "rate", "left")
TOLD = some(
    *("version", "started", "now", "stopping"),
    backends=named(BACKEND),
    aliases=named(ALIAS),
    nodes=named(NODE),
    events=st.lists(EVENT, max_size=3),
    batches=st.lists(BATCH, max_size=9),
    config=some("error"),
    shared=some("since", "gateways", joined=st.booleans()),
    budgets=named(LEAF),
)
USAGE = some(today=some(clients=st.lists(CLIENT, max_size=3)))


@given(told=TOLD, usage=USAGE, width=st.integers(10, 200), height=st.integers(1, 60))
def test_any_answer_is_drawn_within_any_terminal(
    told: dict[str, Any], usage: dict[str, Any], width: int, height: int
) -> None:
    out = StringIO()
    console = Console(file=out, width=width, height=height, color_system=None, legacy_windows=False)
    lines = console.render_lines(View("http://g:4000", told, usage, trouble="cannot be reached"), pad=False)
    assert len(lines) <= height
    assert all(sum(segment.cell_length for segment in line) <= width for line in lines)
    assert not any("\x1b" in segment.text for line in lines for segment in line), "a backend's words steer no terminal"


# -- the command ------------------------------------------------------------------------------------------------------


async def top(*arguments: str) -> Result:
    """In a thread: the gateway that it asks lives in this loop."""
    return await asyncio.to_thread(CliRunner(env={"COLUMNS": "100"}).invoke, cli, ["top", *arguments])


async def test_the_running_fleet_is_shown(tmp_path: Path) -> None:
    first, second = SimVllm(served=["m"]), SimVllm(served=["m"])
    async with first.serve() as one, second.serve() as two:
        routes = f"backends: {{a: {{url: '{one}'}}, b: {{url: '{two}'}}}}\naliases: {{chat: [a, b]}}"
        async with running_gateway("defaults: {health: {every: 100ms}}\n" + routes) as gateway:
            await gateway.until_ready("a", "b")
            file = tmp_path / "routes.yaml"
            file.write_text(f"server: {{listen: '127.0.0.1:{gateway.url.rpartition(':')[2]}'}}\n{routes}")
            calm = await top("--config", str(file), "--once")
            assert calm.exit_code == 0, calm.output
            assert re.search(r"^a +ready +0/8 ", calm.output, re.M)
            assert re.search(r"^chat +a *$", calm.output, re.M)
            await first.kill()
            await gateway.until(lambda: gateway.gateway.alias_status.since.get("chat") is not None)
            broken = await top("--gateway", gateway.url)
            assert broken.exit_code == 0, broken.output
            assert re.search(r"^ a is (suspect|down) for .*: chat is on a FALLBACK: b answers", broken.output, re.M)
            assert re.search(r"^chat +b +step 2: a is down", broken.output, re.M)
            told = json.loads((await top("--gateway", gateway.url + "/v1", "--json")).output)
            assert told["ok"] is True
            assert told["aliases"]["chat"]["course"] == "fallback"
            assert "usage" in told


async def test_a_key_is_asked_for_and_taken() -> None:
    text = f"clients: {{me: {{key: {KEY}}}}}\nbackends: {{a: {{url: '{NOWHERE}'}}}}"
    async with running_gateway(text) as gateway:
        refused = await top("--gateway", gateway.url, "--once")
        assert refused.exit_code == 1
        assert "refuses the key (--key KEY, or GATEWAY_KEY)" in refused.output
        assert (await top("--gateway", gateway.url, "--once", "--key", KEY)).exit_code == 0
        refused = await top("--gateway", gateway.url, "--json", "--key", "wrong-key-1")
        assert (refused.exit_code, json.loads(refused.output)["ok"]) == (1, False)


async def test_nobody_there_exits_1() -> None:
    done = await top("--gateway", NOWHERE, "--once")
    assert done.exit_code == 1
    assert "The gateway at http://127.0.0.1:9 cannot be reached" in done.output


async def test_wrong_usage_exits_2() -> None:
    done = await top("--gateway", "nonsense", "--once")
    assert (done.exit_code, "has no scheme" in done.output) == (2, True)
    assert (await top("what")).exit_code == 2


async def test_while_the_gateway_is_away_the_last_is_kept_and_it_is_tried_again() -> None:
    routes = f"backends: {{a: {{url: '{NOWHERE}'}}}}"
    async with running_gateway(routes) as gateway:
        client = httpx.Client(base_url=gateway.url, trust_env=False)
        watch = StatusPoller(client, gateway.url)
        await asyncio.to_thread(watch.look)
        assert watch.view.trouble is None
    await asyncio.to_thread(watch.look)
    assert "a " in "\n".join(drawn(watch.view))
    assert drawn(watch.view, 100)[1].startswith(" the gateway cannot be reached")
    assert "trying again; what follows is" in drawn(watch.view, 160)[1]
    async with running_gateway(routes) as gateway:
        client.base_url = httpx.URL(gateway.url)
        await asyncio.to_thread(watch.look)
        assert watch.view.trouble is None
    await asyncio.to_thread(client.close)


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (answer(b"<html>", content_type="text/html"), "does not answer in JSON"),
        (answer(b"[]"), "what listens there answers 200 at /status"),
        (answer(b"{}", "404 Not Found"), "what listens there answers 404 at /status"),
    ],
)
async def test_what_is_no_gateway_is_told(head: bytes, said: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        done = await top("--gateway", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "--once")
    assert done.exit_code == 1
    assert said in done.output


# -- on a terminal ----------------------------------------------------------------------------------------------------


class Terminal:
    """`gateway top` on a terminal of its own; `screen` is all that it has written."""

    def __init__(self, width: int, height: int) -> None:
        self._ours, self._its = pty.openpty()
        self.screen = ""
        self._grown = asyncio.Event()
        self.resize(width, height)

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self._its, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", "top", *arguments),
            cwd=ROOT,
            env={**environ, "TERM": "xterm-256color"},
            stdin=self._its,
            stdout=self._its,
            stderr=self._its,
        )
        asyncio.get_running_loop().add_reader(self._ours, self._read)
        return process

    def press(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def _read(self) -> None:
        self.screen += os.read(self._ours, 65536).decode(errors="replace")
        self._grown.set()

    async def until(self, condition: Callable[[str], object]) -> None:
        async with asyncio.timeout(6 * PATIENCE):
            while not condition(self.screen):
                self._grown.clear()
                await self._grown.wait()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._ours)
        os.close(self._ours)
        os.close(self._its)


def last_frame(screen: str) -> list[str]:
    frames = screen.split("\x1b[H")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", frames[-2])  # the last one may not be whole
    return [line.rstrip("\r") for line in plain.split("\n")]


async def test_it_follows_the_gateway_and_its_terminal_until_ctrl_c() -> None:
    terminal = Terminal(80, 24)
    async with running_gateway(f"backends: {{spark: {{url: '{NOWHERE}'}}}}") as gateway:
        process = await terminal.start("--gateway", gateway.url)
        await terminal.until(lambda screen: "spark" in screen and screen.count("\x1b[H") > 3)
        assert all(len(line) <= 80 for line in last_frame(terminal.screen))
        terminal.resize(50, 12)
        begun = terminal.screen.count("\x1b[H")
        await terminal.until(lambda screen: screen.count("\x1b[H") > begun + 4)
        frame = last_frame(terminal.screen)
        assert max(len(line) for line in frame) == 50
        assert len(frame) <= 12
    await terminal.until(lambda screen: "the gateway cannot be reached" in screen)
    assert process.returncode is None
    process.send_signal(signal.SIGINT)
    await terminal.until(lambda screen: "\x1b[?1049l" in screen)
    assert await process.wait() == 0
    assert "Traceback" not in terminal.screen
    terminal.close()


async def test_q_leaves_it_and_the_terminal_is_as_before() -> None:
    terminal = Terminal(80, 24)
    async with running_gateway(f"backends: {{spark: {{url: '{NOWHERE}'}}}}") as gateway:
        before = termios.tcgetattr(terminal._its)
        process = await terminal.start("--gateway", gateway.url)
        await terminal.until(lambda screen: "spark" in screen)
        terminal.press("x")
        terminal.press("q")
        await terminal.until(lambda screen: "\x1b[?1049l" in screen)
        assert await process.wait() == 0
        assert termios.tcgetattr(terminal._its) == before
    terminal.close()
