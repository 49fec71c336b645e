"""The load tests: each passes against the simulated fleet, and fails when what it is there for is missing."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from loadtests import demo, k6
from loadtests.k6 import Result
from loadtests.scripts import BY_NAME, SCRIPTS, SPARE
from loadtests.table import complaints
from simulator import SimVllm
from simulator.control import Control
from simulator.server import SimServer
from tests.demo_process import ROOT
from tests.support import running_gateway

PAGE = (ROOT / "loadtests" / "README.md").read_text()
CAPTURES = ROOT / "tests" / "data" / "captures"
SLOW = "30000"  # ms: the machine may be busy, and how quick it is is not asked here

# -- each passes -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[demo.Demo]:
    """The fleet of `make loadtest`, quicker still."""
    folder = tmp_path_factory.mktemp("loadtests")
    text = (k6.FOLDER / "routes.yaml").read_text()
    assert "every: 250ms" in text
    routes = folder / "routes.yaml"
    routes.write_text(text.replace("every: 250ms", "every: 100ms"))
    with demo.running_demo(folder, 20.0, routes) as running:
        yield running


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_every_script_passes_against_the_simulated_fleet(script: Any, fleet: demo.Demo, tmp_path: Path) -> None:
    told = {"BASE_URL": fleet.url, "CONTROL_URL": fleet.control, **script.environ}
    told |= {"DURATION": "2s", "VUS": "4", "FIRST_TOKEN_P95_MS": SLOW}
    told |= {"ADDED_MEDIAN_MS": SLOW, "ADDED_P95_MS": SLOW}
    if script.beside:
        told |= {"DIRECT_URL": fleet.backend(SPARE), "DIRECT_MODEL": SPARE}
    result = k6.run(script.name, told, tmp_path)
    assert result.passed, complaints(result)
    assert result.answers >= 5
    assert (result.value("answer_tokens", "count") or 0) > 0
    assert (result.value("checks", "passes") or 0) >= 5
    if script.beside:
        assert result.value("added_latency", "med") is not None


def test_the_command_runs_them_and_prints_a_table(tmp_path: Path) -> None:
    written = tmp_path / "results.json"
    command = [sys.executable, "-m", "loadtests", "--only", "chat", "--duration", "1s", "--json", str(written)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    results = json.loads(written.read_text())
    assert list(results) == ["chat"]
    assert (done.returncode == 0) == results["chat"]["passed"], done.stdout + done.stderr
    assert re.search(r"^chat +[\d,]+ +100% .* ms / .*(?:kept|NOT KEPT)", done.stdout, re.M), done.stdout


# -- and fails when it should ------------------------------------------------------------------------------------------


async def run(script: str, url: str, **told: str) -> Result:
    """For a second, while this loop serves what it asks."""
    told = {"BASE_URL": url, "DURATION": "1s", "VUS": "4", "FIRST_TOKEN_P95_MS": SLOW, **told}
    with_folder = Path(told.pop("folder"))
    return await asyncio.to_thread(k6.run, script, told, with_folder)


@pytest.mark.parametrize("script", list(BY_NAME))
def test_without_a_gateway_it_says_so_and_fails(script: str, tmp_path: Path) -> None:
    told = {"BASE_URL": "http://127.0.0.1:9", "CONTROL_URL": "http://127.0.0.1:9"}
    result = k6.run(script, told, tmp_path)
    assert not result.passed
    assert any("No gateway answers at http://127.0.0.1:9/v1/models" in line for line in complaints(result))


async def test_chat_fails_when_streams_are_cut_and_nobody_says_so(tmp_path: Path) -> None:
    backend = SimVllm("bare", served=["bare"], decode=5000)
    async with backend.serve() as url:
        backend.fault("die_mid", after=5)
        result = await run("chat", url, MODEL="bare", folder=str(tmp_path))
    assert result.code == k6.LIMITS_CROSSED
    assert {"answers_wrong rate==0", "answers_whole{stream:yes} rate>0.99"} <= set(result.crossed)
    assert any("the connection broke, and nothing was said of it" in error for error in result.errors)


async def test_chat_fails_when_a_tenth_of_the_streams_break_though_it_is_said(tmp_path: Path) -> None:
    backend = SimVllm("v", slots=8, decode=5000)
    async with backend.serve() as url, running_gateway(f"backends: {{v: {{url: '{url}'}}}}") as gateway:
        await gateway.until_ready("v")
        backend.fault("die_mid", after=20, count=10)
        result = await run("chat", gateway.url, MODEL="v", folder=str(tmp_path))
    assert result.code == k6.LIMITS_CROSSED
    assert "answers_whole rate>0.99" in result.crossed
    assert "answers_wrong rate==0" not in result.crossed, result.errors
    assert (result.value("answers_interrupted", "passes") or 0) > 0


async def test_agents_fail_when_calls_come_as_text(tmp_path: Path) -> None:
    backend = SimVllm("bare", served=["bare"], tool_parser="hermes", decode=5000)
    async with backend.serve() as url:
        backend.fault("leak_tools")
        result = await run("agents", url, MODEL="bare", folder=str(tmp_path))
    assert result.code == k6.LIMITS_CROSSED
    assert result.crossed == ["checks rate>0.99"]
    assert {line.partition(":")[0] for line in result.failed} >= {
        "a request with tools yields a call",
        "no call is left in the text",
    }


async def test_agents_fail_when_sessions_wander(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        sims = [SimVllm(name, slots=8, decode=5000, tool_parser="hermes") for name in ("a", "b", "c")]
        urls = [await stack.enter_async_context(sim.serve()) for sim in sims]
        backends = ", ".join(f"{s.name}: {{url: '{u}', tool_parser: hermes}}" for s, u in zip(sims, urls, strict=True))
        routes = f"backends: {{{backends}}}\naliases: {{turns: {{use: [[a, b, c]], balance: round_robin}}}}"
        gateway = await stack.enter_async_context(running_gateway(routes))
        await gateway.until_ready("a", "b", "c")
        result = await run("agents", gateway.url, MODEL="turns", folder=str(tmp_path))
    assert result.crossed == ["answers_at_home rate>0.75"], complaints(result)


async def test_long_fails_when_a_prompt_that_fits_nowhere_is_refused_in_other_words(tmp_path: Path) -> None:
    backend = SimVllm("bare", served=["bare"], context=65536, prefill=1e6, decode=5000)
    async with backend.serve() as url:
        result = await run("long", url, MODEL="bare", folder=str(tmp_path))
    assert result.code == k6.LIMITS_CROSSED
    assert any("a prompt that fits nowhere is refused as that" in line for line in result.failed)


async def test_mixed_fails_when_thoughts_are_in_the_text(tmp_path: Path) -> None:
    backend = SimVllm("bare", served=["bare"], reasoning_parser="qwen3", decode=5000)
    async with backend.serve() as url:
        backend.fault("leak_think")
        result = await run("mixed", url, MODEL="bare", THINKING_MODEL="bare", folder=str(tmp_path))
    assert result.code == k6.LIMITS_CROSSED
    assert any("no thoughts are in the text" in line for line in result.failed)
    assert any("thoughts are in their own field" in line for line in result.failed)


async def test_failover_fails_when_there_is_nobody_to_take_over(tmp_path: Path) -> None:
    first, second = SimVllm("first", slots=8, decode=5000), SimVllm("second", slots=8, decode=5000)
    health = "defaults: {health: {every: 100ms}}\n"
    steering = SimServer(Control({"first": first, "second": second}))
    async with first.serve() as one, second.serve() as two, steering as control:
        routes = f"{health}backends: {{first: {{url: '{one}', tool_parser: hermes}}, second: {{url: '{two}'}}}}"
        async with running_gateway(f"{routes}\naliases: {{chain: [first, second]}}") as gateway:
            await gateway.until_ready("first", "second")
            second.fault("status", status=500)
            result = await run("failover", gateway.url, MODEL="chain", CONTROL_URL=control.url, folder=str(tmp_path))
    assert result.code == k6.LIMITS_CROSSED
    assert "answers_refused rate<0.01" in result.crossed, complaints(result)


async def test_soak_fails_when_answers_grow_slow_and_something_stays_under_way(tmp_path: Path) -> None:
    backend, stuck = SimVllm("v", slots=8, decode=5000, tool_parser="hermes"), SimVllm("stuck", slots=8)
    async with backend.serve() as url, stuck.serve() as other:
        routes = f"backends: {{v: {{url: '{url}', tool_parser: hermes}}, stuck: {{url: '{other}'}}}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("v", "stuck")
            backend.fault("slow", delay=0.3)
            stuck.fault("hang_before")
            body = {"model": "stuck", "messages": [{"role": "user", "content": "hi"}]}
            waiting = asyncio.create_task(gateway.client.post("/v1/chat/completions", json=body, timeout=60))
            await stuck.wait_inflight(1)
            result = await run("soak", gateway.url, MODEL="v", FIRST_TOKEN_P95_MS="250", folder=str(tmp_path))
            stuck.clear()
            await waiting
    assert result.code == k6.LIMITS_CROSSED
    assert "first_token p(95)<250" in result.crossed
    assert any("nothing is left under way" in line for line in result.failed)


# -- what an answer is -------------------------------------------------------------------------------------------------

CUT = "unexpected EOF"
DELTA = 'data: {{"id":"x","choices":[{{"index":0,"delta":{},"finish_reason":{}}}]}}\n\n'
HELLO, STOP, DONE = DELTA.format('{"content":"hi"}', "null"), DELTA.format("{}", '"stop"'), "data: [DONE]\n\n"
BEAT = DELTA.format("{}", "null")


def error(code: str | None, **further: Any) -> str:
    return json.dumps({"error": {"message": "no", "type": "t", "param": None, "code": code, **further}})


def told(code: str) -> str:
    return f"data: {error(code)}\n\n"


def reading(cases: list[tuple[int, str, str, bool]], folder: Path) -> list[dict[str, Any]]:
    """What lib/reading.js makes of (status, transport error, body, stream was asked for), all in one run of k6."""
    given, result, script = folder / "cases.json", folder / "read.json", folder / "read.js"
    given.write_text(json.dumps([[{"status": s, "error": e, "body": b}, stream] for s, e, b, stream in cases]))
    script.write_text(
        f"import {{ readChat }} from '{k6.FOLDER}/lib/reading.js';\n"
        f"const cases = JSON.parse(open('{given}'));\n"
        "export const options = { iterations: 1 };\n"
        "export default function () {}\n"
        "export const handleSummary = () => "
        f"({{ '{result}': JSON.stringify(cases.map(([got, stream]) => readChat(got, stream))) }});\n"
    )
    subprocess.run([k6.executable(), "run", "--quiet", "--no-usage-report", script], check=True, capture_output=True)
    read: list[dict[str, Any]] = json.loads(result.read_text())
    return read


def test_an_answer_is_whole_or_refused_or_told_to_be_broken_or_wrong(tmp_path: Path) -> None:
    cases = {
        "whole": [
            (200, "", HELLO + STOP + DONE, True),
            (200, "", ": hello\n\n" + BEAT + HELLO + BEAT + STOP + DONE, True),
            (200, "", (HELLO + STOP + DONE).replace("\n", "\r\n"), True),
            (200, "", '{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}', False),
        ],
        "refused": [
            (429, "", error("queue_full"), True),
            (400, "", error(None), False),
            (0, CUT, BEAT + told("upstream_error"), True),
        ],
        "interrupted": [(0, CUT, HELLO + told("stream_interrupted"), True)],
        "wrong": [
            (0, CUT, HELLO, True),  # cut, and nothing is said
            (200, "", HELLO, True),  # as if it were whole
            (200, "", HELLO + DONE, True),
            (200, "", HELLO + STOP, True),
            (200, "", HELLO + DELTA.format("{}", '"abort"') + DONE, True),
            (200, "", HELLO + told("stream_interrupted"), True),  # told, and then a clean end
            (200, "", HELLO + told("stream_interrupted") + DONE, True),
            (0, CUT, HELLO + told("stream_interrupted") + HELLO, True),
            (0, CUT, HELLO + told("upstream_error"), True),
            (0, CUT, BEAT + told("stream_interrupted"), True),
            (0, CUT, HELLO + STOP + told("stream_interrupted"), True),
            (200, "", HELLO + "data: {oops\n\n" + STOP + DONE, True),
            (200, "", HELLO + STOP.replace('"x"', '"y"') + DONE, True),  # two answers in one stream
            (200, "", '{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}', True),
            (200, "", '{"choices":[{"message":{"content":"hi"},"finish_reason":null}]}', False),
            (200, "", '{"choices":[]}', False),
            (200, "", '{"choices"', False),
            (0, "timeout", "", False),
            (500, "", error("internal_error"), False),
            (502, "", "<html>Bad Gateway</html>", False),
            (503, "", '{"error":"later"}', True),
            (503, "", error("x", hint="y"), True),
        ],
    }
    flat = [(kind, case) for kind, some in cases.items() for case in some]
    read = reading([case for _, case in flat], tmp_path)
    assert [(answer["kind"], case) for answer, (_, case) in zip(read, flat, strict=True)] == flat
    assert all(answer["why"] for answer in read if answer["kind"] in ("wrong", "refused", "interrupted"))


def test_streams_of_a_real_vllm_are_read_whole_and_no_part_of_one_is(tmp_path: Path) -> None:
    bodies = {}
    for path in sorted(CAPTURES.glob("*.txt")):
        body = path.read_text().partition("---- response, verbatim ----")[2].replace("\r\n", "\n").partition("\n\n")[2]
        if body.lstrip().startswith("data: ") and '"delta"' in body and "[DONE]" in body and '"index":1' not in body:
            bodies[path.name] = body
    assert len(bodies) >= 5
    random, parts = Random(1), []
    for body in bodies.values():
        end = body.index("data: [DONE]")
        parts += [body[: random.randrange(1, end)] for _ in range(40)]
    whole = reading([(200, "", body, True) for body in bodies.values()], tmp_path)
    for (name, body), answer in zip(bodies.items(), whole, strict=True):
        assert answer["kind"] == "whole", (name, answer["why"])
        chunks = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        assert answer["content"] == "".join(delta.get("content") or "" for delta in deltas), name
        named = [c["function"]["name"] for d in deltas for c in d.get("tool_calls") or [] if c["function"].get("name")]
        assert [call["name"] for call in answer["calls"]] == named, name
    ends = [("", 200), (CUT, 0)]
    read = reading([(status, how, part, True) for part in parts for how, status in ends], tmp_path)
    assert {answer["kind"] for answer in read} == {"wrong"}


# -- and the page says it ----------------------------------------------------------------------------------------------


def test_every_variable_is_documented_and_no_other() -> None:
    named = re.findall(r"^\| `([A-Z0-9_]+)`", PAGE, re.M)
    assert sorted(named) == sorted(k6.known())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_every_script_is_documented(script: Any) -> None:
    assert (k6.FOLDER / f"{script.name}.js").exists()
    assert f"| `{script.name}` |" in PAGE


def test_make_loadtest_runs_them() -> None:
    assert re.search(r"^loadtest:.*\n\t\$\(BIN\)/python -m loadtests$", (ROOT / "Makefile").read_text(), re.M)
