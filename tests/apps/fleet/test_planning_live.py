"""`gateway fleet plan --live`: what exporters and engines tell stands beside the plan; a silent one is no error."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.cli.main import cli

GIB = 1024**3


@contextmanager
def pages(answers: Mapping[str, str]) -> Iterator[int]:
    """A server on a free port that has these pages; any other path is a 404."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers.get(self.path)
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write((body or "").encode())

        def log_message(self, *_: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def metrics(*, tokens: int | None, share: float = 0.2) -> str:
    size = "" if tokens is None else f',kv_cache_size_tokens="{tokens}"'
    return f'vllm:cache_config_info{{engine="0",gpu_memory_utilization="{share}"{size}}} 1.0\n'


def exporter(gib: float) -> str:
    return f"memory_total_bytes {119.67 * GIB}\nmemory_used_bytes {gib * GIB}\n"


def run(folder: Path, port: int, *arguments: str, exported: bool = True, machine: int | None = None) -> Result:
    """`machine`: the port of the exporter, where it is not that of the engine."""
    path = folder / "routes.yaml"
    command = f"vllm serve Qwen/Qwen3-4B-Instruct-2507 --gpu-memory-utilization 0.2 --max-model-len 16384 --port {port}"
    watched = f', exporter: "http://127.0.0.1:{machine or port}/machine"' if exported else ""
    path.write_text(
        f"nodes: {{spark1: {{address: 127.0.0.1, memory: 119.67GiB{watched}}}}}\n"
        f"backends: {{small: {{node: spark1, launch: {{command: {command}}}}}}}\n"
    )
    return CliRunner().invoke(cli, ["fleet", "plan", "--config", str(path), "--live", *arguments])


def planned(folder: Path) -> dict[str, Any]:
    """The plan's figures for the engine, and what it has of the node."""
    node = json.loads(run(folder, 9, "--json").stdout)["nodes"]["spark1"]
    return {**node["backends"]["small"], "used": node["memory_gib"] - node["free_gib"]}


def test_live_figures_stand_beside_the_plan_and_the_engines_own_cache_replaces_the_estimate(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    tokens = round(plan["kv_tokens"] * 1.05)
    with pages({"/metrics": metrics(tokens=tokens), "/machine": exporter(plan["used"])}) as port:
        told = json.loads(run(tmp_path, port, "--json").stdout)["nodes"]["spark1"]
        text = run(tmp_path, port).output
    small = told["backends"]["small"]
    assert told["live"] == {
        "used": pytest.approx(plan["used"]), "planned": pytest.approx(plan["used"], abs=0.01),
        "note": None, "warning": None,
    }  # fmt: skip
    assert small["live"] == {
        "kv_tokens": tokens, "planned": plan["kv_tokens"], "utilization": 0.2, "note": None, "warning": None,
    }  # fmt: skip
    assert (small["kv_tokens"], small["source"], plan["source"]) == (tokens, "observed", "estimated")
    assert small["kv_gib"] == pytest.approx(plan["kv_gib"] * 1.05, rel=0.01)
    assert small["full_windows"] == pytest.approx(plan["full_windows"] * 1.05, rel=0.01)
    assert f"live small: {tokens:,} tokens of cache, {plan['kv_tokens']:,} planned" in text
    assert f"live: {plan['used']:.1f} GiB in use, {plan['used']:.1f} planned" in text
    assert "warning" not in text


def test_a_difference_above_ten_percent_is_a_warning(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    tokens = round(plan["kv_tokens"] * 0.8)
    with pages({"/metrics": metrics(tokens=tokens), "/machine": exporter(plan["used"] * 1.2)}) as port:
        result = run(tmp_path, port)
    assert result.exit_code == 0
    assert f"warning: small: its cache has {tokens:,} tokens, 20% less than the {plan['kv_tokens']:,}" in result.output
    assert "20% more than the" in result.output


@pytest.mark.parametrize(
    ("page", "note"),
    [
        (metrics(tokens=1000, share=0.5), "it runs with --gpu-memory-utilization 0.5, 0.20 is planned"),
        (metrics(tokens=None), "it does not tell the size of its cache"),
        ("other_metric 1\n", "it does not tell the size of its cache"),
    ],
)
def test_what_cannot_be_compared_is_said_and_changes_no_figure(tmp_path: Path, page: str, note: str) -> None:
    plan = planned(tmp_path)
    with pages({"/metrics": page}) as port:
        node = json.loads(run(tmp_path, port, "--json", exported=False).stdout)["nodes"]["spark1"]
        text = run(tmp_path, port, exported=False).output
    small = node["backends"]["small"]
    assert (node["live"], small["live"]["planned"], small["live"]["note"]) == (None, None, note)
    assert (small["kv_tokens"], small["source"]) == (plan["kv_tokens"], "estimated")
    assert note in text
    assert "live: no exporter tells its memory" in text


def test_nobody_answers_and_the_plan_is_printed_all_the_same(tmp_path: Path) -> None:
    with pages({}) as port:
        pass
    result = run(tmp_path, port, "--json")
    node = json.loads(result.stdout)["nodes"]["spark1"]
    assert (result.exit_code, node["live"], node["backends"]["small"]["live"]) == (0, None, None)


def test_while_an_engine_is_down_the_memory_of_its_node_is_not_compared(tmp_path: Path) -> None:
    with pages({}) as gone:
        pass
    with pages({"/machine": exporter(50.0)}) as port:
        text = run(tmp_path, gone, machine=port).output
    assert "live: 50.0 GiB in use (small not up)" in text
