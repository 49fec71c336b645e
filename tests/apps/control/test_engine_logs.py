"""Logs of engines, their last words while they are out, and restarts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gateway.apps.control.engine_logs import shown
from gateway.domain.health_state import State
from tests.apps.control.machine import ended, error, steps
from tests.apps.control.node import fleet
from tests.apps.fleet.test_operations import ask

DAILY = "{daily: [a], ds4: [c]}"


async def test_the_log_is_shown_without_escapes_and_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet(tmp_path, monkeypatch, "a", away="c", modes=DAILY, nodes={}) as (gateway, _, node):
        node.says(
            "\x1b[32mINFO\x1b[0m begun",
            "HF_TOKEN=hf_abcdefghijkl api key sk-0123456789abcdef \x1b]0;title\x07",
            "third",
        )
        answer = await gateway.client.get("/admin/backends/a/logs")
        assert answer.text == "INFO begun\nHF_TOKEN=******** api key ********\nthird\n"
        assert (await gateway.client.get("/admin/backends/a/logs?lines=1")).text == "third\n"
        told = await ask(gateway, "logs", "a")
        assert (told.exit_code, told.stdout.splitlines()[0]) == (0, "INFO begun")
        as_json = json.loads((await ask(gateway, "logs", "a", "--json")).stdout)
        assert as_json["lines"][2] == "third"
        assert error(await gateway.client.get("/admin/backends/a/logs?node=mars"))[:2] == (404, "not_found")
        (tmp_path / "cut").write_text("journalctl")
        assert error(await gateway.client.get("/admin/backends/a/logs"))[:2] == (502, "upstream_error")
        (tmp_path / "cut").write_text("journalctl")
        failed = await ask(gateway, "logs", "a")
        assert (failed.exit_code, "not responding" in failed.stderr) == (1, True)


async def test_a_log_is_followed_until_the_reader_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet(tmp_path, monkeypatch, "a", away="c", modes=DAILY, nodes={}) as (gateway, _, node):
        node.says("first")
        (tmp_path / "journalctl").write_text(
            f'#!/bin/sh\ncase "$*" in *-f*) exec tail -f {tmp_path}/journal ;; esac\necho x\n'
        )
        async with gateway.client.stream("GET", "/admin/backends/a/logs?follow=true") as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == "first"
            with (tmp_path / "journal").open("a") as journal:
                journal.write("second\n")
            assert await anext(lines) == "second"


async def test_no_more_than_so_many_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.apps.control.api.FOLLOWERS_MOST", 1)
    path = "/admin/backends/a/logs?follow=true"
    async with fleet(tmp_path, monkeypatch, "a", away="c", modes=DAILY, nodes={}) as (gateway, _, node):
        node.says("first")
        (tmp_path / "journalctl").write_text(
            f'#!/bin/sh\ncase "$*" in *-f*) exec tail -f {tmp_path}/journal ;; esac\necho x\n'
        )
        async with gateway.client.stream("GET", path) as answer:
            assert await anext(answer.aiter_lines()) == "first"
            refused = await gateway.client.get(path)
            assert error(refused)[:2] == (429, "rate_limit_exceeded")
            assert "followed already" in refused.text
        async with asyncio.timeout(10.0):
            while True:  # who has left makes room for another one
                async with gateway.client.stream("GET", path) as answer:
                    if answer.status_code == 200:
                        break


def test_a_line_that_never_ends_is_cut() -> None:
    assert len(shown("x y " * 5000)) == 2000


async def test_the_last_words_stand_beside_a_backend_that_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(tmp_path, monkeypatch, "a", away="c", modes=DAILY, nodes={}) as (gateway, there, node):
        gateway.gateway.apps.control.troubles.settle = 0.0
        node.says("torch.OutOfMemoryError: CUDA out of memory.", "RuntimeError: Engine core initialization failed")
        node.unit("a", "ActiveState=failed", "ExecMainStatus=1")
        await there.sims["a"].kill()
        await gateway.until(lambda: gateway.state("a") is State.DOWN)
        await gateway.until(lambda: "a" in gateway.gateway.apps.control.troubles.known)
        found = (await gateway.client.get("/status")).json()["backends"]["a"]["trouble"]
        assert found["unit"] == "the unit has failed (exit code 1), and systemd starts it no more"
        assert found["words"][0] == "torch.OutOfMemoryError: CUDA out of memory."
        assert found["cause"].startswith("CUDA ran out of memory")
        assert found["mend"].startswith("gateway fleet plan")
        await there.sims["a"].revive()
        await gateway.until(lambda: gateway.state("a") is State.READY)
        assert "trouble" not in (await gateway.client.get("/status")).json()["backends"]["a"]


async def test_a_restart_stops_and_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet(tmp_path, monkeypatch, "a", away="c", modes=DAILY, nodes={}) as (gateway, there, _):
        done = await ended(gateway, (await gateway.client.post("/admin/backends/a/restart")).json())
        assert steps(done) == [
            "preflight a: done", "drain a: done", "stop a: done", "preflight a: done", "start a: done", "wait a: done",
            "resume a: done",
        ]  # fmt: skip
        assert there.orders == ["stop a", "start a"]
        assert (await asyncio.wait_for(ask(gateway, "restart", "a"), 30)).exit_code == 0


async def test_a_death_that_no_restart_mends_ends_the_wait_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(tmp_path, monkeypatch, "a", away="c", modes=DAILY, nodes={}) as (gateway, there, node):
        there.faults["start c"] = "ignore"
        begun = (await gateway.client.post("/admin/backends/c/start")).json()
        await there.until_asked("start c")
        node.says("vllm serve: error: argument --foo: invalid choice", "something else")
        node.unit("c", "ActiveState=activating", "SubState=auto-restart", "ExecMainStatus=1", "NRestarts=0")
        failed = await ended(gateway, begun)
        assert failed["error"] == (
            "wait c: it died at its start on spark1, exit code 1: vllm serve: error: argument --foo: invalid choice"
        )
        assert "mend: gateway fleet check" in failed["steps"][2]["output"]
