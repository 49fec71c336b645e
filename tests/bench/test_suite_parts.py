"""The parts of the benchmark: bodies of exact size, a mock that speaks as vLLM does, honest marks, measured CPU."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from bench import processes, report, runner
from bench.replies import DELTA_EVENTS
from bench.runner import Plan, Samples
from bench.scenarios import SCENARIOS, TURN_EVENTS, Scenario, body


@pytest.fixture
def mock() -> Iterator[httpx.Client]:
    with (
        runner.upstream(processes.cores()[1]) as ports,
        httpx.Client(base_url=f"http://127.0.0.1:{ports[0]}", timeout=10) as client,
    ):
        yield client


def chat(client: httpx.Client, **fields: object) -> httpx.Response:
    message = {"role": "user", "content": "What is 12*17?"}
    return client.post("/v1/chat/completions", json={"model": "bench-model", "messages": [message], **fields})


def events(text: str) -> list[Any]:
    """The JSON of every event; the stream has to end with [DONE]."""
    *data, last = (block.removeprefix("data: ") for block in text.strip().split("\n\n"))
    assert last == "[DONE]"
    return [json.loads(item) for item in data]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_body_is_json_of_exactly_the_size_it_says(scenario: Scenario) -> None:
    for model in ("bench-model", "a-longer-alias-name"):
        content = body(scenario, model)
        assert len(content) == scenario.body_bytes
        document = json.loads(content)
        assert document["model"] == model
        assert len(document["messages"]) == scenario.messages
        assert len(document.get("tools", ())) == scenario.tools


def test_an_event_has_235_bytes() -> None:
    assert {len(event) for event in DELTA_EVENTS} == {235}
    assert len(set(DELTA_EVENTS)) == len(DELTA_EVENTS)


def test_the_mock_tells_a_prober_what_vllm_tells(mock: httpx.Client) -> None:
    assert mock.get("/health").status_code == 200
    assert mock.get("/v1/models").json()["data"][0]["max_model_len"] == 131072
    assert mock.get("/version").json() == {"version": "0.32.0"}
    assert "vllm:num_requests_running{" in mock.get("/metrics").text
    assert mock.get("/v1/nope").json() == {"detail": "Not Found"}
    assert mock.post("/v1/chat/completions/render", json={}).status_code == 404


def test_the_mock_passes_the_test_questions_of_a_gateway(mock: httpx.Client) -> None:
    assert "204" in chat(mock).json()["choices"][0]["message"]["content"]
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
    choice = chat(mock, tools=tools).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]).keys() == {"city"}
    streamed = events(chat(mock, tools=tools, stream=True).text)
    assert streamed[1]["choices"][0]["delta"]["tool_calls"][0]["function"]["name"] == "weather"


@pytest.mark.parametrize("pace", ["burst", "each", "steps", "alone"])
def test_a_stream_has_the_shape_of_vllm_at_every_pace(mock: httpx.Client, pace: str) -> None:
    bench = f"5/2/{pace}"
    options = {"include_usage": True}
    got = events(chat(mock, bench=bench, stream=True, stream_options=options).text)
    assert got[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [event["choices"][0]["finish_reason"] for event in got[1:-1]] == [None] * 4 + ["stop"]
    assert got[-1]["choices"] == []
    assert got[-1]["usage"]["completion_tokens"] == 8
    assert len(events(chat(mock, metadata={"bench": bench}, stream=True).text)) == 6


def test_an_agents_turn_is_thoughts_and_one_call_in_pieces(mock: httpx.Client) -> None:
    got = events(chat(mock, bench=f"{TURN_EVENTS}/1/turn", stream=True).text)
    deltas = [event["choices"][0]["delta"] for event in got]
    assert len(deltas) == TURN_EVENTS + 1
    assert sum("reasoning" in delta for delta in deltas) == TURN_EVENTS * 0.6
    pieces = [call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", ())]
    assert json.loads("".join(pieces))["field_0"].startswith("a line 0\n")
    assert got[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_the_mock_hangs_up_on_a_proxy_that_tries_http2(mock: httpx.Client) -> None:
    with socket.create_connection((mock.base_url.host, mock.base_url.port or 0), timeout=10) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert mock.get("/health").status_code == 200


def test_cpu_time_of_a_process_is_what_it_has_run() -> None:
    before = processes.cpu_ns([os.getpid()])
    started = time.process_time_ns()
    while time.process_time_ns() - started < 50_000_000:
        pass
    used = processes.cpu_ns([os.getpid()]) - before
    assert 40_000_000 < used < 200_000_000


def test_the_owner_of_a_listening_port_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert os.getpid() in processes.listeners(listener.getsockname()[1])
    assert processes.rss_bytes([os.getpid()]) > 1_000_000


def lines(gateway: float, **errors: int) -> list[str]:
    cells = {
        "nginx": Samples([10.0, 30.0, 20.0]),
        "gateway": Samples([gateway], dict(errors)),
        "vllm-router": Samples([80.0]),
    }
    return report.table_lines({"small": cells}, ["nginx", "gateway", "vllm-router"], Plan(["small"]))


def test_a_row_shows_the_ratio_of_medians_and_which_levels_are_kept() -> None:
    assert "200 (10.0x)" in lines(200)[2]
    assert lines(200)[2].split()[-5:] == ["2.50x", "14x", "ok", "1.4x", "MISS"]
    assert lines(60)[2].split()[-5:] == ["0.75x", "14x", "ok", "1.4x", "ok"]
    assert lines(300)[2].split()[-5:] == ["3.75x", "14x", "MISS", "1.4x", "MISS"]


@pytest.mark.parametrize("router", [None, Samples(), Samples([80.0], {"status 500": 1})])
def test_a_level_is_not_judged_beside_a_router_without_right_answers(router: Samples | None) -> None:
    cells = {"nginx": Samples([20.0]), "gateway": Samples([60.0])} | ({"vllm-router": router} if router else {})
    line = report.table_lines({"small": cells}, ["nginx", "gateway", "vllm-router"], Plan(["small"]))[2]
    assert line.split()[-3:] == ["14x", "ok", "1.4x"]


def test_a_row_with_wrong_answers_shows_no_figure() -> None:
    line = lines(60, **{"status 500": 3})[2]
    assert "FAILED" in line
    assert "ok" not in line
    assert "0.75x" not in line


def test_the_noise_is_the_spread_of_the_yardstick() -> None:
    table = {"small": {"nginx": Samples([10.0, 11.0, 12.0])}}
    assert "small 18%" in report.noise_line(table, 3)
