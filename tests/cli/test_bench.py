"""`gateway bench`: an alias beside its backend, any server by its URL, and what is said when something is amiss."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.benching.report import as_json
from gateway.benching.session import Settings
from gateway.benching.setup import Through, means_the_same_here
from gateway.benching.ways import NotThere
from gateway.cli.benching import Bench, Wanted, chosen, fitting
from gateway.cli.main import cli
from gateway.config.load import load_text
from gateway.config.snapshot import Snapshot
from gateway.sim import SimOllama, SimVllm
from tests.demo_process import ROOT
from tests.scripted import Turn, json_answer, scripted
from tests.support import PATIENCE, RunningGateway, running_gateway

TOKENS = 64
QUICK = Settings((300, 900), TOKENS, (2,), 2, 1, limit=30.0)
WANTED = Wanted("chat", None, None, None, True, False, False, None, True)
FEW = "--prompt-tokens 300,900 --tokens 64 --concurrency 1,2 --repeats 1 --requests 1"
PER_WAY = 3 + 2 * 2 + 2 * 2  # the warm-up, two lengths twice, two at a time twice
NOWHERE = "http://127.0.0.1:9"


def qwen(**more: Any) -> SimVllm:
    parsers = {"tool_parser": "qwen3_coder", "reasoning_parser": "qwen3"}
    rates = {"prefill": 2e5, "decode": 2000.0, "context": 8192, "prefix_cache": True}
    return SimVllm(**{"served": ["Qwen3.6-35B"], **parsers, **rates, **more})


async def measured(
    snapshot: Snapshot | None, gateway: RunningGateway | None, settings: Settings = QUICK, **wanted: Any
) -> tuple[Bench, dict[str, Any]]:
    """The benchmark, run in this loop, and its JSON."""
    if gateway is not None:
        wanted = {"gateway": gateway.url, **wanted}
    bench = Bench(WANTED._replace(**wanted), settings, snapshot)
    await bench.run()
    return bench, as_json("x", bench.settings, bench.results)


def chats(sim: SimVllm | SimOllama, path: str = "/v1/chat/completions") -> list[Any]:
    return [request for request in sim.requests if request.path == path]


def prompts(requests: list[Any]) -> list[str]:
    return [request.json["messages"][0]["content"] for request in requests]


def notes(told: dict[str, Any]) -> str:
    return "\n".join(told["notes"])


# -- an alias and its backend -----------------------------------------------------------------------------------------


async def test_an_alias_is_measured_beside_its_backend() -> None:
    sim = qwen()
    async with sim.serve() as url:
        routes = f"backends: {{a: {{url: '{url}', slots: 2}}}}\naliases: {{chat: {{use: [a], params: {{top_p: 0.5}}}}}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a")
            _, told = await measured(gateway.gateway.snapshot, gateway)
    assert told["ok"], told["errors"]
    assert told["backend"] == "a"
    assert [(row["via"], row["asked"], row["runs"]) for row in told["single"]] == [
        (way, length, 2) for length in (300, 900) for way in ("gateway", "direct")
    ]
    for row in told["single"]:
        assert row["prompt_tokens"]["median"] == pytest.approx(row["asked"], rel=0.1)
        assert row["completion_tokens"]["low"] == TOKENS
        assert row["decode_rate"]["median"] > 0
    assert [(row["via"], row["concurrency"], row["blocks"]) for row in told["sweep"]] == [
        ("gateway", 2, 2),
        ("direct", 2, 2),
    ]
    assert all(row["output_rate"]["n"] == 2 for row in told["sweep"])
    assert [row["prompt_tokens"] for row in told["added"]["single"]] == [300, 900]
    assert all(row["ttft"]["n"] == 2 for row in told["added"]["single"])
    assert told["added"]["sweep"][0]["output_ratio"]["median"] > 0
    assert Counter(run["via"] for run in told["runs"]) == {"gateway": 8, "direct": 8}
    assert "answers hold thoughts" in notes(told)

    both = chats(sim)
    assert len(both) == 2 * PER_WAY
    texts = prompts(both)
    assert len({text[:20] for text in texts}) == len(texts), "each begins with a nonce of its own"
    assert not any(run["cached"] for run in told["runs"]), "nothing came out of the prefix cache"
    bodies = [{**request.json, "messages": None, "max_tokens": None, "min_tokens": None} for request in both]
    assert all(body == bodies[0] for body in bodies), "what goes direct is what the gateway sends"
    assert (bodies[0]["model"], bodies[0]["top_p"], bodies[0]["ignore_eos"]) == ("Qwen3.6-35B", 0.5, True)


async def test_ollama_is_asked_by_its_own_api_both_ways() -> None:
    """Another `num_ctx` would have it load the model anew, at every turn."""
    sim = SimOllama(models=["qwen3:8b"], prefill=2e5, decode=2000.0, load=0.0)
    async with sim.serve() as url:
        backend = f"{{engine: ollama, url: '{url}', model: 'qwen3:8b', context: 8192}}"
        async with running_gateway(f"backends: {{a: {backend}}}\naliases: {{chat: [a]}}") as gateway:
            await gateway.until_ready("a")
            _, told = await measured(gateway.gateway.snapshot, gateway)
    assert told["ok"], told["errors"]
    assert {row["via"] for row in told["single"]} == {"gateway", "direct"}
    asked = chats(sim, "/api/chat")
    assert len(asked) >= 2 * PER_WAY
    assert {request.json["options"]["num_ctx"] for request in asked} == {8192}
    assert told["added"]["single"][0]["ttft"]["n"] == 2


async def test_a_fallback_is_named_and_measured_beside_itself() -> None:
    sim = qwen()
    async with sim.serve() as url:
        routes = f"backends: {{a: {{url: '{NOWHERE}'}}, b: {{url: '{url}'}}}}\naliases: {{chat: [a, b]}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("b")
            _, told = await measured(gateway.gateway.snapshot, gateway)
    assert told["backend"] == "b"
    assert "chat is not served by its first step now: this is what b does" in notes(told)
    assert {row["backend"] for row in told["single"] if row["via"] == "direct"} == {"b"}


async def test_what_two_backends_side_by_side_did_is_not_one_figure() -> None:
    one, two = qwen(), qwen()
    async with one.serve() as first, two.serve() as second:
        steps = "aliases: {chat: {use: [[a, b]], balance: round_robin}}"
        routes = f"backends: {{a: {{url: '{first}'}}, b: {{url: '{second}'}}}}\n{steps}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a", "b")
            _, told = await measured(gateway.gateway.snapshot, gateway)
    rows = [row for row in told["single"] if row["via"] == "gateway"]
    assert {row["backend"] for row in rows} == {"a", "b"}
    assert sum(row["runs"] for row in rows) == 4
    compared = sum(row["ttft"]["n"] for row in told["added"]["single"] if row["ttft"] is not None)
    assert compared == sum(row["runs"] for row in rows if row["backend"] == told["backend"])


async def test_a_backend_that_cannot_be_reached_from_here_leaves_the_alias_measured() -> None:
    """A client that is no admin is not told where the gateway reaches it; the file says another place."""
    sim = qwen()
    async with sim.serve() as url:
        text = "clients: {{me: {{key: k-123456}}}}\nbackends: {{a: {{url: '{}'}}}}\naliases: {{chat: [a]}}"
        async with running_gateway(text.format(url)) as gateway:
            await gateway.until_ready("a")
            elsewhere = load_text(text.format(NOWHERE)).snapshot
            _, told = await measured(elsewhere, gateway, key="k-123456")
            assert told["ok"], told["errors"]
            assert "not measured directly: http://127.0.0.1:9 does not answer" in notes(told)
            _, told = await measured(None, gateway, key="k-123456")
            assert "not measured directly: that takes the routes.yaml" in notes(told)
            _, told = await measured(elsewhere, gateway, key="k-123456", direct=False)
            assert "directly" not in notes(told)
            with pytest.raises(NotThere, match="answered 401"):
                await measured(elsewhere, gateway)
    assert {row["via"] for row in told["single"]} == {"gateway"}


async def test_the_backend_is_asked_where_the_gateway_reaches_it() -> None:
    """As with `gateway demo`, whose backends are simulated elsewhere than the file says."""
    sim = qwen()
    async with sim.serve() as url:
        text = "backends: {{a: {{url: '{}'}}}}\naliases: {{chat: [a]}}"
        async with running_gateway(text.format(url)) as gateway:
            await gateway.until_ready("a")
            _, told = await measured(load_text(text.format(NOWHERE)).snapshot, gateway)
    assert told["ok"], told["errors"]
    assert {row["via"] for row in told["single"]} == {"gateway", "direct"}


@pytest.mark.parametrize(
    ("url", "gateway", "reached"),
    [
        ("http://192.168.1.11:8001", "http://192.168.1.5:4000", True),
        ("http://127.0.0.1:8001", "http://localhost:4000", True),
        ("http://127.0.0.1:8001", "http://192.168.1.5:4000", False),
        ("http://localhost:8001", "http://192.168.1.5:4000", False),
    ],
)
def test_an_address_that_means_the_gateways_own_machine_is_not_ours(url: str, gateway: str, reached: bool) -> None:
    assert means_the_same_here(url, gateway) is reached


async def test_no_prompt_leaves_the_lan_unless_clouds_are_asked_for() -> None:
    sim = SimVllm(served=["m"], generic=True)
    async with sim.serve() as url:
        cloud = f"{{engine: openai, url: '{url}', cloud: true, model: m}}"
        routes = f"backends: {{a: {{url: '{NOWHERE}'}}, c: {cloud}}}\naliases: {{chat: [a, c], far: [c]}}"
        async with running_gateway(routes + "\ndefaults: {queue: {max_wait: 100ms}}") as gateway:
            with pytest.raises(NotThere, match="the warm-up failed: answered"):
                await measured(gateway.gateway.snapshot, gateway)
            assert not sim.requests
            with pytest.raises(Exception, match="costs money: say --cloud"):
                await measured(gateway.gateway.snapshot, gateway, name="far")
            _, told = await measured(gateway.gateway.snapshot, gateway, name="far", cloud=True)
    assert told["ok"], told["errors"]
    assert sim.requests


async def test_slots_that_our_own_direct_requests_held_are_waited_for() -> None:
    """The gateway has seen them as somebody else's: it would have let the next requests wait."""
    sim = qwen(decode=200.0)
    async with sim.serve() as url:
        routes = f"backends: {{a: {{url: '{url}', slots: 2, health: {{every: 100ms}}}}}}\naliases: {{chat: [a]}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a")
            way = Through(gateway.url, "chat", None, cloud=False)
            body = {"model": "Qwen3.6-35B", "prompt": "a", "max_tokens": 4000, "ignore_eos": True}
            foreign = asyncio.create_task(gateway.client.post(url + "/v1/completions", json=body, timeout=60))
            try:
                await gateway.until(lambda: gateway.gateway.fleet["a"].foreign > 0)
                assert await way.others("a") == 1
                settled = asyncio.create_task(way.settle("a"))
                done, _ = await asyncio.wait({settled}, timeout=0.5)
                assert not done
                foreign.cancel()
                async with asyncio.timeout(PATIENCE):
                    await settled
                assert gateway.gateway.fleet["a"].foreign == 0
            finally:
                foreign.cancel()
                await way.close()


# -- any server -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["", "/v1", "/v1/"])
async def test_a_server_is_measured_by_its_url(base: str) -> None:
    sim = qwen(api_key="right-key")
    async with sim.serve() as url:
        _, told = await measured(None, None, name=url + base, key="right-key")
        with pytest.raises(NotThere, match="answered 401"):
            await measured(None, None, name=url + base, key="wrong-key")
    assert told["ok"], told["errors"]
    assert {row["via"] for row in told["single"]} == {"url"}
    assert told["added"] == {"single": [], "sweep": []}
    assert all(row["prefill_rate"]["n"] == row["decode_rate"]["n"] == 2 for row in told["single"])


async def test_ollamas_v1_is_measured_and_its_cut_prompts_are_noticed() -> None:
    sim = SimOllama(models=["qwen3:8b"], prefill=2e5, decode=2000.0, load=0.0)
    async with sim.serve() as url:
        _, told = await measured(None, None, QUICK, name=url + "/v1")
        assert told["ok"], told["errors"]
        assert "may have cut it" not in notes(told)
        longer = Settings((300, 6000), TOKENS, (), 1, limit=30.0)
        _, told = await measured(None, None, longer, name=url + "/v1")
    assert "of a prompt of about 6,000 tokens the server counted" in notes(told)


async def test_a_server_that_refuses_ignore_eos_is_asked_without_it() -> None:
    async def script(turn: Turn) -> None:
        if "ignore_eos" in turn.json:
            await turn.send(json_answer({"error": {"message": "Unknown parameter: 'ignore_eos'"}}, "400 Bad Request"))
            return
        text = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":%s}]}\n\n'
        usage = b'data: {"choices":[],"usage":{"prompt_tokens":300,"completion_tokens":2}}\n\n'
        await turn.stream(text % b"null", text % b'"stop"', usage, b"data: [DONE]\n\n")

    async with scripted(script) as backend:
        _, told = await measured(None, None, name=backend.url)
    assert told["ok"], told["errors"]
    assert "ignore_eos and min_tokens are refused" in notes(told)
    assert "8 of 8 answers have fewer than 64 tokens (the shortest 2)" in notes(told)


async def test_without_usage_no_rate_is_claimed() -> None:
    async def script(turn: Turn) -> None:
        text = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":%s}]}\n\n'
        await turn.stream(*[text % b"null"] * 63, text % b'"length"', b"data: [DONE]\n\n")

    async with scripted(script) as backend:
        _, told = await measured(None, None, name=backend.url)
    assert "the server reports no usage" in notes(told)
    for row in told["single"]:
        assert row["ttft"]["n"] == 2
        assert (row["prefill_rate"], row["decode_rate"]) == (None, None)
    assert told["sweep"][0]["output_rate"] is None


# -- failures ---------------------------------------------------------------------------------------------------------


async def test_failed_runs_are_counted_shown_and_claim_nothing() -> None:
    sim = qwen()
    async with sim.serve() as url:
        bench = Bench(WANTED._replace(name=url), QUICK, None)
        failing = asyncio.create_task(sim.wait_for(lambda: len(chats(sim)) >= 3))
        failing.add_done_callback(lambda _: sim.fault("error_event", after=3))
        await bench.run()
    told = as_json("x", QUICK, bench.results)
    assert not told["ok"]
    failed = [run for run in told["runs"] if run["error"] is not None]
    assert failed
    assert sum(found["count"] for found in told["errors"]) == len(failed)
    assert told["sweep"][0]["failed"] > 0
    assert told["sweep"][0]["output_rate"] is None
    for row in told["single"]:
        assert (row["ttft"] or {"n": 0})["n"] == row["runs"] - row["failed"]


async def test_nothing_is_measured_where_the_warm_up_fails() -> None:
    sim = qwen()
    async with sim.serve() as url:
        sim.fault("status", status=503)
        with pytest.raises(NotThere, match="the warm-up failed: answered 503"):
            await measured(None, None, name=url)
    assert len(chats(sim)) == 1


# -- the window -------------------------------------------------------------------------------------------------------


async def test_prompts_that_do_not_fit_are_left_out_and_said() -> None:
    sim = qwen(context=1024)
    async with sim.serve() as url:
        bench, told = await measured(None, None, name=url, trim=True)
        assert told["settings"]["prompt_tokens"] == [300, 900]
        longer = Settings((300, 5000), TOKENS, (), 1, limit=30.0)
        bench, told = await measured(None, None, longer, name=url, trim=True)
        assert told["settings"]["prompt_tokens"] == [300]
        assert "prompts of 5,000 tokens are left out: the window is 1,024" in notes(told)
        with pytest.raises(Exception, match="at most 931"):
            await measured(None, None, longer, name=url)
    assert bench.results.ok


def test_room_is_kept_for_the_answer() -> None:
    assert fitting(None, 128) is None
    assert fitting(4096, 128) == 3848
    assert fitting(100, 128) == 0


# -- usage ------------------------------------------------------------------------------------------------------------

TEXT = f"""
backends:
  a: {{url: "{NOWHERE}"}}
  asr: {{engine: http, url: "{NOWHERE}", serves: [transcriptions]}}
aliases: {{chat: [a], long: {{use: [a], min_max_tokens: 10000}}, ears: [asr]}}
"""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("chatt", "Did you mean 'chat'?"),
        ("zzz", "There are: chat"),
        ("long", "--tokens 10000"),
        ("ears", "does not chat"),
    ],
)
def test_what_cannot_be_measured_is_said_at_once(name: str, says: str) -> None:
    with pytest.raises(Exception, match=re.escape(says)):
        chosen(load_text(TEXT).snapshot, WANTED._replace(name=name), QUICK)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["chat", "--config", "none.yaml"], "there is no file 'none.yaml'"),
        ([NOWHERE, "--prompt-tokens", "1,x"], "write whole numbers"),
        ([NOWHERE, "--prompt-tokens", "none"], "at least one length"),
        ([NOWHERE, "--concurrency", "0"], "write whole numbers"),
        ([NOWHERE, "--duration", "5"], "write a number and its unit"),
        ([NOWHERE, "--chart", "x.gif"], "ends in .png or .svg"),
        ([NOWHERE, "--chart", "no/where.png"], "there is no directory"),
        (["httpx://a", "--model", "m"], "unknown scheme"),
        ([], "Missing argument"),
    ],
)
def test_wrong_usage_exits_2(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(cli, ["bench", *arguments])
    assert (result.exit_code, says in result.output) == (2, True), result.output


def test_nobody_there_exits_1() -> None:
    result = CliRunner().invoke(cli, ["bench", NOWHERE])
    assert result.exit_code == 1
    assert "Nothing was measured: http://127.0.0.1:9 does not answer" in result.output
    result = CliRunner().invoke(cli, ["bench", NOWHERE, "--json"])
    assert (result.exit_code, json.loads(result.stdout)["ok"]) == (1, False)


def test_a_chart_without_its_library_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.benching.chart.find_spec", lambda _: None)
    result = CliRunner().invoke(cli, ["bench", NOWHERE, "--chart", "x.png"])
    assert result.exit_code == 2
    assert "pip install 'spark-gateway[charts]'" in " ".join(result.output.split())


# -- as a user runs it ------------------------------------------------------------------------------------------------


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "bench", *arguments),
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def output(process: asyncio.subprocess.Process) -> tuple[str, str]:
    async with asyncio.timeout(6 * PATIENCE):
        out, err = await process.communicate()
    return out.decode(), err.decode()


async def test_a_table_a_chart_and_json(tmp_path: Path) -> None:
    sim = qwen()
    async with sim.serve() as url:
        routes = f"backends: {{a: {{url: '{url}', slots: 1}}}}\naliases: {{chat: [a]}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a")
            port = gateway.url.rpartition(":")[2]
            file = tmp_path / "routes.yaml"
            file.write_text(f"server: {{listen: '127.0.0.1:{port}'}}\n{routes}")
            few = FEW.split()
            chart = tmp_path / "c.png"
            process = await start("chat", "--config", str(file), *few, "--chart", str(chart))
            out, err = await output(process)
            assert process.returncode == 0, out + err
            assert f"chat at {gateway.url}, answered by a" in out
            for row in (r"[\d,]+ +gateway +[\d.]+ m?s +[\d,.]+ +[\d,.]+ +1 *$", r"[\d,]+ +direct +[\d.]+ m?s"):
                assert len(re.findall(row, out, re.M)) == 2, out
            assert "the gateway adds at 300 tokens: first token " in out
            assert "through the gateway, 2 at a time: " in out
            assert "note: a has 1 slot: requests beyond that wait" in out
            assert max(len(line.rstrip()) for line in out.splitlines() if "─" in line) <= 80
            assert chart.read_bytes().startswith(b"\x89PNG")

            vector = tmp_path / "c.svg"
            process = await start("chat", "--config", str(file), *few, "--json", "--chart", str(vector), "--no-direct")
            out, err = await output(process)
            assert process.returncode == 0, err
            assert json.loads(out)["ok"] is True
            assert "<svg" in vector.read_text()


async def test_ctrl_c_shows_what_there_is() -> None:
    sim = qwen()
    async with sim.serve() as url:
        process = await start(url, "--tokens", "64", "--prompt-tokens", "300", "--repeats", "10000")
        await sim.wait_for(lambda: len(chats(sim)) >= 8, timeout=6 * PATIENCE)
        process.send_signal(signal.SIGINT)
        out, err = await output(process)
    assert process.returncode == 1, err
    assert "stopped before all was measured" in out
    assert re.search(r"url +[\d.]+ m?s", out)
    assert "Traceback" not in err
