"""`gateway demo` with backends that requests start: a node whose memory holds one of them beside the daily model, the
commands that start and stop them, and its exporter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from tests.demo_process import PATIENCE, Demo, running_demo
from tests.waiting import wait_until

VLLM = "--max-model-len 16384 --max-num-seqs 8 --enable-auto-tool-choice --tool-call-parser hermes"
ROUTES = f"""\
server: {{listen: 127.0.0.1:4000}}
nodes: {{spark1: {{address: 192.168.1.11, memory: 119.67GiB, exporter: "http://192.168.1.11:9835/metrics"}}}}
defaults: {{health: {{every: 250ms}}}}
backends:
  daily:
    node: spark1
    launch: {{command: vllm serve Qwen/Qwen3-8B --port 8001 --gpu-memory-utilization 0.55 {VLLM}}}
  coder:
    node: spark1
    run: on_request
    min_run: 0s
    launch: {{command: vllm serve Qwen/Qwen3-4B-Instruct-2507 --port 8003 --gpu-memory-utilization 0.30 {VLLM}}}
  writer:
    node: spark1
    run: on_request
    stop_after: 4s
    launch: {{command: vllm serve Qwen/Qwen3-14B --port 8004 --gpu-memory-utilization 0.30 {VLLM}}}
aliases:
  code: [coder, daily]
modes: {{day: [daily]}}
"""


def ask(demo: Demo, model: str) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    return httpx.post(f"{demo.url}/v1/chat/completions", json=body, timeout=PATIENCE, trust_env=False)


def get(demo: Demo, path: str) -> Any:
    return httpx.get(demo.url + path, timeout=PATIENCE, trust_env=False).json()


def until(demo: Demo, backend: str, state: str) -> None:
    wait_until(lambda: get(demo, "/status")["backends"][backend]["state"] == state, PATIENCE, demo.log.read_text)


def until_idle(demo: Demo) -> None:
    wait_until(lambda: get(demo, "/admin/operations")["operation"]["state"] != "running", PATIENCE)


def test_what_requests_start_gives_way_and_stops_by_itself(tmp_path: Path) -> None:
    routes = tmp_path / "routes.yaml"
    routes.write_text(ROUTES)
    with running_demo(tmp_path, "--config", str(routes), "--speedup", "20") as demo:
        until(demo, "coder", "parked")
        wait_until(lambda: get(demo, "/status")["nodes"]["spark1"]["memory_used"], PATIENCE)
        meanwhile = ask(demo, "code")
        assert (meanwhile.headers["x-gateway-backend"], meanwhile.headers["x-gateway-routed"]) == ("daily", "busy")
        until(demo, "coder", "ready")
        until_idle(demo)
        assert ask(demo, "code").headers["x-gateway-backend"] == "coder"
        wait_until(lambda: get(demo, "/status")["nodes"]["spark1"]["memory_used"] > 90 * 2**30, PATIENCE)
        wait_until(lambda: ask(demo, "writer").status_code == 200, PATIENCE, demo.log.read_text)
        operation = next(o for o in [get(demo, "/admin/operations")["operation"]] if o["cause"] == "request")
        assert [(step["what"], step["backend"]) for step in operation["steps"]][:2] == [
            ("drain", "coder"),
            ("stop", "coder"),
        ]
        assert get(demo, "/status")["backends"]["coder"]["state"] == "parked"
        until(demo, "writer", "parked")
        until_idle(demo)
        assert get(demo, "/admin/operations")["operation"]["cause"] == "idle"
