"""Engines that are started, switched, killed and hung over real ssh, systemd and docker, with requests meanwhile."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.machines.asking import trickle
from tests.machines.install import by_ops
from tests.machines.scene import MACHINES, chat, on, said, states, until

pytestmark = [pytest.mark.usefixtures("daily"), pytest.mark.timeout(900)]
SERVING = ("ready", "busy")


def test_a_switch_to_the_engine_on_two_nodes_and_back_costs_no_request_of_what_stays(tmp_path: Path) -> None:
    with trickle(tmp_path, "big", rate=1.0) as asked:
        time.sleep(3)
        by_ops("gateway fleet switch ds4", 400)
        assert chat("big") == (200, "ds4")
        assert all("spark-ds4" in said(node, "docker ps --format '{{.Names}}'") for node in ("spark1", "spark2"))
        by_ops("gateway fleet switch daily", 400)
        time.sleep(3)
    for node in ("spark1", "spark2"):
        assert "spark-ds4" not in said(node, "docker ps --format '{{.Names}}'"), "nothing of the other mode is left"
    assert {row["by"] for row in asked.rows} >= {"ds4", "qwen36"}
    refused = ("backend_warming", "no_backend_available", "queue_full")
    broken = [row for row in asked.failed() if row.get("end") not in refused]
    assert broken == [], "each request is whole, or refused with the reason"


def test_a_request_starts_an_engine_and_gets_its_answer() -> None:
    assert chat("code", within=180) == (200, "coder")
    by_ops("gateway fleet stop coder", 200)
    until(lambda: "spark-coder" not in said("spark2", "docker ps --format '{{.Names}}'"), 60, "coder is off")


def test_an_engine_that_is_killed_is_left_and_comes_back(tmp_path: Path) -> None:
    with trickle(tmp_path, "main") as asked:
        time.sleep(3)
        said("spark1", "docker kill spark-qwen36")
        until(lambda: chat("main") == (200, "gemma4"), 15, "the next step serves")
        until(lambda: chat("main") == (200, "qwen36"), 120, "systemd has started it, and it is used again")
    assert [row for row in asked.failed() if not str(row["end"]).startswith("broken, told")] == []


def test_an_engine_that_hangs_is_left(tmp_path: Path) -> None:
    """A paused container takes connections, and answers nothing. Nobody is refused while the next step is well."""
    with trickle(tmp_path, "main") as asked:
        until(lambda: asked.so_far() >= 6, 30, "requests flow")
        said("spark1", "docker pause spark-qwen36")
        seconds = until(lambda: chat("main", within=90) == (200, "gemma4"), 90, "the next step serves")
        until(lambda: states()["qwen36"] == "down", 90, "it is known to be down")
        said("spark1", "docker unpause spark-qwen36")
        until(lambda: chat("main") == (200, "qwen36"), 120, "it is used again")
    assert [row for row in asked.failed() if not str(row["end"]).startswith("broken, told")] == []
    assert seconds < 60


def test_preflight_names_what_makes_a_start_fail() -> None:
    by_ops("gateway fleet stop small", 200)
    try:
        said("spark1", "setsid python3 -m http.server 8005 </dev/null >/dev/null 2>&1 & sleep 1")
        told = said("gw", "gateway fleet preflight --node spark1", 120, user="ops", codes=(0, 1))
        assert "8005" in told
        refused = on("gw", "gateway fleet start small 2>&1", 120, "ops")
        assert (refused.returncode, "8005" in refused.stdout) == (1, True), refused.stdout
    finally:
        on("spark1", "fuser -k 8005/tcp || kill $(ss -Hltnp 'sport = :8005' | grep -o 'pid=[0-9]*' | cut -d= -f2)")
    parts = MACHINES / "m/spark1/srv/models/hub/models--Qwen--Qwen3-4B-Instruct-2507/snapshots/abc"
    part = parts / "model-00002-of-00002.safetensors"
    part.rename(part.with_suffix(".away"))
    try:
        told = said("gw", "gateway fleet preflight --node spark1", 120, user="ops", codes=(0, 1))
        assert "model-00002-of-00002" in told or "part" in told
    finally:
        part.with_suffix(".away").rename(part)
    by_ops("gateway fleet start small", 300)
    assert states()["small"] in SERVING


def test_a_gateway_that_is_killed_in_mid_switch_can_go_back(tmp_path: Path) -> None:
    """Nothing of the engine that was being started is left beside the mode that serves."""
    (MACHINES / "m/spark1/srv/models/.fake/deepseek-v4-flash").write_text("cold 25\n")
    said("gw", "su - ops -c 'nohup gateway fleet switch ds4 >/dev/null 2>&1 &'")
    until(lambda: "spark-ds4" in said("spark1", "docker ps --format '{{.Names}}'"), 120, "ds4 is being started")
    said("gw", "systemctl kill -s KILL spark-gateway")
    until(lambda: bool(states()), 30, "systemd has started the gateway again")
    by_ops("gateway fleet switch daily", 400)
    until(lambda: chat("main") == (200, "qwen36"), 120, "the daily mode serves")
    for node in ("spark1", "spark2"):
        assert "spark-ds4" not in said(node, "docker ps --format '{{.Names}}'")
        assert said(node, "systemctl is-active spark-ds4", codes=(0, 3)).strip() in ("inactive", "failed")
