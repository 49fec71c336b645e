"""`gateway batch`: two judges over one file, run, interrupted, run again, and compared."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.apps.judging.command import _counts
from gateway.cli.main import cli
from simulator import SimVllm
from tests.gateway_process import gateway_process
from tests.scripted import Script, Turn, chunked, json_answer, scripted
from tests.support import from_clients, running_gateway
from tests.waiting import until

CHAT = "/v1/chat/completions"


@dataclass
class Judged:
    url: str
    sims: dict[str, SimVllm]
    folder: Path

    async def call(self, *words: str, gateway: bool = True) -> tuple[int, str]:
        """(exit code, output) of `gateway batch WORDS`."""
        where = ["--gateway", self.url] if gateway else []
        command = [sys.executable, "-m", "gateway", "batch", *words, *where]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=self.folder.parent
        )
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return process.returncode or 0, output.decode()

    def asked(self, name: str) -> int:
        return len([r for r in from_clients(self.sims[name].requests) if r.path == CHAT])


def write_turns(path: Path, count: int) -> Path:
    """Lines of both kinds that are understood."""
    lines: list[dict[str, Any]] = []
    for n in range(count):
        messages = [{"role": "user", "content": f"Score this answer from 1 to 5: number {n}"}]
        lines.append({"custom_id": f"t{n}", "messages": messages, "max_tokens": 50})
        if n % 2:
            lines[-1] = {"custom_id": f"t{n}", "method": "POST", "url": CHAT, "body": {"messages": messages}}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@asynccontextmanager
async def judged(folder: Path, more: str = "", two: str = "", **speed: Any) -> AsyncIterator[Judged]:
    sims = {name: SimVllm(name, served=[f"model-{name}"], **speed) for name in ("one", "two")}
    async with AsyncExitStack() as stack:
        urls = {name: await stack.enter_async_context(sim.serve()) for name, sim in sims.items()}
        given = {"one": "", "two": two}
        lines = [f"  {name}: {{url: '{url}', slots: 4{given[name]}}}\n" for name, url in urls.items()]
        routes = "".join(("backends:\n", *lines, more))
        gateway = await stack.enter_async_context(running_gateway(routes))
        await gateway.until_ready("one", *(() if two else ("two",)))
        yield Judged(gateway.url, sims, folder)


async def test_two_judges_are_run_and_compared(tmp_path: Path) -> None:
    turns, out = write_turns(tmp_path / "turns.jsonl", 40), tmp_path / "judged"
    async with judged(out) as j:
        run = ("run", str(turns), "--alias", "one", "--alias", "two", "--out", str(out))
        code, output = await j.call(*run)
        assert code == 0, output
        assert "40 of 40 answered, 0 failed" in output
        asked = j.asked("one"), j.asked("two")
        assert asked == (40, 40)
        code, output = await j.call(*run)  # there is nothing left to do
        assert (code, (j.asked("one"), j.asked("two"))) == (0, asked)
        code, output = await j.call("status", str(out))
        assert code == 0
        assert output.count("completed") == 2
        page, table = tmp_path / "judged.html", tmp_path / "judged.csv"
        words = ("compare", str(out), "--json", "--html", str(page), "--csv", str(table), "--most", "7")
        code, output = await j.call(*words, gateway=False)
    assert code == 0, output
    found = json.loads(output)
    [pair] = found["agreement"]
    assert (pair["judges"], pair["lines"]) == (["one", "two"], 40)
    assert 0 < pair["kappa"] < 1
    assert pair["weighted_kappa"] > pair["kappa"]
    spreads = [line["spread"] for line in found["read_first"]]
    assert (len(spreads), spreads) == (7, sorted(spreads, reverse=True))
    assert sum(count for _, count in found["judges"]["one"]["counts"]) == 40
    rows = list(csv.reader(table.open()))
    assert rows[0] == ["custom_id", "one", "two", "spread"]
    assert len(rows) == 41
    assert sum(row[1] == row[2] for row in rows[1:]) / 40 == pytest.approx(pair["same"])
    text = page.read_text()
    assert text.count("<article>") == 7
    assert "model-one finds" in text
    assert "Score this answer from 1 to 5" in text


async def test_the_gateway_may_be_killed_in_the_middle(tmp_path: Path) -> None:
    turns, out = write_turns(tmp_path / "turns.jsonl", 60), tmp_path / "judged"
    sim = SimVllm("one", served=["m"], decode=300.0)
    async with sim.serve() as url:
        routes = f"server: {{data: {tmp_path}/state}}\nbackends: {{one: {{url: '{url}', slots: 2}}}}\n"

        def asked() -> int:
            return len([r for r in from_clients(sim.requests) if r.path == CHAT])

        async with gateway_process(tmp_path, routes) as gateway:
            running = asyncio.create_task(
                Judged(gateway.url, {}, out).call("run", str(turns), "--alias", "one", "--out", str(out))
            )
            await until(lambda: asked() > 20)
            os.kill(gateway.pid, signal.SIGKILL)
            running.cancel()
        async with gateway_process(tmp_path, routes) as gateway:
            code, output = await Judged(gateway.url, {}, out).call(
                "run", str(turns), "--alias", "one", "--out", str(out)
            )
        assert code == 0, output
        assert asked() <= 60 + 3
    rows = [json.loads(line) for line in (out / "one.output.jsonl").read_text().splitlines()]
    assert [row["custom_id"] for row in rows] == [f"t{n}" for n in range(60)]


async def test_a_batch_is_cancelled_and_its_results_fetched(tmp_path: Path) -> None:
    turns, out = write_turns(tmp_path / "turns.jsonl", 200), tmp_path / "judged"
    async with judged(out, decode=60.0) as j:
        running = asyncio.create_task(j.call("run", str(turns), "--alias", "one", "--out", str(out)))
        await until(lambda: j.asked("one") > 5)
        code, output = await j.call("cancel", str(out))
        assert code == 0, output
        code, output = await running
        assert code == 1
        assert "cancelled" in output
        code, output = await j.call("results", str(out))
        assert code == 0
        assert 2 <= len((out / "one.output.jsonl").read_text().splitlines()) < 200


def _sends(data: bytes) -> Script:
    async def play(turn: Turn) -> None:
        await turn.send(data)

    return play


def ask(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["batch", *words])
    return result.exit_code, result.output


def test_mistakes_are_said(tmp_path: Path) -> None:
    code, output = ask("compare", str(tmp_path))
    assert (code, "two are needed" in output) == (1, True)
    code, output = ask("compare", str(tmp_path), "--score", "a", "--pattern", "(b)")
    assert (code, "exclude" in output) == (2, True)
    code, output = ask("compare", str(tmp_path), "--pattern", "(")
    assert (code, "regular expression" in output) == (2, True)
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"custom_id": "a"}\n')
    code, output = ask("run", str(bad), "--alias", "x", "--out", str(tmp_path / "o"), "--gateway", "http://127.0.0.1:9")
    assert code == 1
    assert re.search(r"line 1 is neither", output)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "one.json").write_text("{")
    code, output = ask("compare", str(tmp_path / "broken"))
    assert (code, "cannot be read" in output) == (1, True)


def test_two_aliases_whose_files_would_have_one_name_are_refused(tmp_path: Path) -> None:
    turns = write_turns(tmp_path / "turns.jsonl", 1)
    aliases = ("--alias", "qwen3:8b", "--alias", "qwen3_8b")
    code, output = ask("run", str(turns), *aliases, "--out", str(tmp_path / "o"), "--gateway", "http://127.0.0.1:9")
    assert (code, "qwen3:8b and qwen3_8b have the same name" in output) == (1, True)
    assert not (tmp_path / "o").exists()


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    turns = write_turns(tmp_path / "turns.jsonl", 1)
    out = turns / "judged"
    code, output = ask("run", str(turns), "--alias", "one", "--out", str(out), "--gateway", "http://127.0.0.1:9")
    assert code == 1
    assert output.startswith("Error: ")
    assert str(out) in output


@pytest.mark.parametrize(
    "answers",
    [
        [{}],
        [[]],
        [{"id": 5}],
        [{"id": "f"}, {"id": "b"}],
        [{"id": "f"}, {"id": "b", "status": 5}],
        [{"id": "f"}, {"id": "b", "status": "in_progress"}],  # and {} for the batch
    ],
)
async def test_what_is_no_gateway_is_said(tmp_path: Path, answers: list[object]) -> None:
    turns, out = write_turns(tmp_path / "turns.jsonl", 1), tmp_path / "judged"
    async with scripted(*(_sends(json_answer(value)) for value in answers)) as server:
        code, output = await Judged(server.url, {}, out).call("run", str(turns), "--alias", "one", "--out", str(out))
    assert (code, output) == (1, f"Error: what listens at {server.url} does not answer as a gateway\n")


async def test_an_answer_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    async def flood(turn: Turn) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        await turn.send(head)
        while True:
            await turn.send(chunked(b" " * 1024 * 1024))

    turns, out = write_turns(tmp_path / "turns.jsonl", 1), tmp_path / "judged"
    async with scripted(flood) as server:
        code, output = await Judged(server.url, {}, out).call("run", str(turns), "--alias", "one", "--out", str(out))
    assert code == 1
    assert "answers more than 16,777,216 bytes" in output


@pytest.mark.parametrize("counts", [None, [], "3", {"completed": "x", "failed": None}])
def test_counts_that_are_none_are_shown_as_none(counts: object) -> None:
    assert _counts({"request_counts": counts}) == [0, 0, 0]


async def test_lines_that_are_to_stay_in_the_lan_reach_no_cloud(tmp_path: Path) -> None:
    turns, out = write_turns(tmp_path / "turns.jsonl", 2), tmp_path / "out"
    run = ("run", str(turns), "--alias", "far", "--out", str(out))
    async with judged(out, more="aliases: {far: [two, one]}", two=", engine: openai, cloud: true") as j:
        code, said = await j.call(*run, "--local-only")
        assert (code, j.asked("one"), j.asked("two")) == (0, 2, 0), said
        [state] = out.glob("*.json")  # it goes on from the upload, without the option
        state.write_text(json.dumps({**json.loads(state.read_text()), "batch": ""}))
        code, said = await j.call(*run)
        assert (code, j.asked("one"), j.asked("two")) == (0, 4, 0), said


async def test_a_batch_that_was_begun_for_any_backend_becomes_no_local_one(tmp_path: Path) -> None:
    turns, out = write_turns(tmp_path / "turns.jsonl", 2), tmp_path / "out"
    async with judged(out) as j:
        run = ("run", str(turns), "--alias", "one", "--out", str(out))
        assert (await j.call(*run))[0] == 0
        code, said = await j.call(*run, "--local-only")
    assert (code, "begun without --local-only" in said) == (1, True), said


async def test_a_line_with_half_a_character_fails_alone(tmp_path: Path) -> None:
    turns = write_turns(tmp_path / "turns.jsonl", 2)
    cut = {"custom_id": "cut", "messages": [{"role": "user", "content": "a picture \ud83d"}]}
    turns.write_text(turns.read_text() + json.dumps(cut) + "\n")
    async with judged(tmp_path / "out") as f:
        code, said = await f.call("run", str(turns), "--alias", "one", "--out", str(f.folder))
        assert (code, "2 of 3 answered, 1 failed" in said) == (0, True), said


def test_answers_with_half_a_character_are_compared_and_written(tmp_path: Path) -> None:
    line = {"custom_id": "t\ud83d", "messages": [{"role": "user", "content": "question \ud83d"}]}
    (tmp_path / "input.jsonl").write_text(json.dumps(line) + "\n")
    for name, score in (("one", 4), ("two", 2)):
        state = {"alias": name, "input": "", "file": "f", "batch": "b", "status": "completed"}
        (tmp_path / f"{name}.json").write_text(json.dumps(state))
        body = {"choices": [{"message": {"content": f"\ud83d score: {score}"}}]}
        row = {"custom_id": line["custom_id"], "response": {"status_code": 200, "body": body}}
        (tmp_path / f"{name}.output.jsonl").write_text(json.dumps(row) + "\n")
    page, table = tmp_path / "page.html", tmp_path / "table.csv"
    words = ["batch", "compare", str(tmp_path), "--html", str(page), "--csv", str(table)]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    assert "t?,4,2,2" in table.read_text()
    assert "question ?" in page.read_text()


async def test_why_a_whole_batch_failed_is_said(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("\n")
    async with judged(tmp_path / "out") as f:
        code, said = await f.call("run", str(tmp_path / "none.jsonl"), "--alias", "one", "--out", str(f.folder))
        assert (code, "The input file has no lines." in said) == (1, True), said
