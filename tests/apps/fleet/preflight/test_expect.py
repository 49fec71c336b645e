"""What routes.yaml expects of a node."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from gateway.apps.fleet.preflight.expect import expected_nodes, without_node
from gateway.apps.fleet.preflight.host import (
    expected_node,
)
from gateway.apps.fleet.preflight.run import script
from gateway.config.load import load_text
from tests.apps.fleet.preflight.test_run import NODE

ROUTES = """
nodes:
  spark1: {address: 192.168.1.11, memory: 119.67GiB, ssh: ops@spark1}
  spark2: {address: 192.168.1.12}
backends:
  qwen36:
    node: spark1
    launch:
      image: nvcr.io/nvidia/vllm:26.04-py3
      command: >-
        vllm serve RedHatAI/Qwen3.6-35B-A3B-NVFP4 --port 8000 --gpu-memory-utilization 0.55
        --speculative-config '{"method":"mtp","model":"a/draft","num_speculative_tokens":2}'
      volumes: ["~/vllm:/models"]
      env: {HF_TOKEN: "${HF_TOKEN}", HF_HUB_OFFLINE: "1", VLLM_API_KEY: sk-secret}
      docker: -p 8001:8000 --ipc=host
  ds4:
    node: [spark1, spark2]
    launch: {command: vllm serve /models/DS4 --nnodes 2 --master-port 29600, env: {NCCL_SOCKET_IFNAME: bond0}}
  ears: {engine: http, url: "http://192.168.1.11:8765", serves: [transcriptions], node: spark1}
  cloud: {engine: openai, url: "https://api.example.com", cloud: true, model: m}
"""


def test_what_a_launch_block_needs_is_expected_of_its_node() -> None:
    snapshot = load_text(ROUTES, "routes.yaml", {}).snapshot
    spark1, spark2 = expected_nodes(snapshot)
    qwen, ds4, ears = spark1.backends
    assert (spark1.memory, qwen.port, qwen.utilization) == (int(119.67 * 1024**3), 8001, 0.55)
    assert qwen.models == ("RedHatAI/Qwen3.6-35B-A3B-NVFP4", "a/draft")
    assert (qwen.unit, qwen.served) == ("spark-qwen36.service", "RedHatAI/Qwen3.6-35B-A3B-NVFP4")
    assert (ds4.nodes, ds4.worker, ds4.master_port, ds4.program) == (2, False, 29600, "vllm")
    assert (spark2.backends[0].worker, ears.port, ears.utilization) == (True, 8765, None)
    assert without_node(snapshot) == ["cloud"]


@pytest.mark.parametrize(
    "launch",
    [
        "{image: vllm, command: vllm serve m, docker: -e HF_HOME=/models}",
        "{command: vllm serve m, env: {HF_HOME: /models}}",
        "{command: HF_HOME=/models vllm serve m}",
    ],
)
def test_a_variable_is_expected_wherever_it_is_written(launch: str) -> None:
    text = f"nodes: {{n: {{address: 10.0.0.1}}}}\nbackends: {{a: {{node: n, launch: {launch}}}}}\n"
    (node,) = expected_nodes(load_text(text, "routes.yaml", {}).snapshot)
    assert node.backends[0].env == {"HF_HOME": "/models"}


def test_of_a_block_that_only_tells_what_was_measured_nothing_of_vllm_is_expected() -> None:
    text = (
        "nodes: {s: {address: 10.0.0.1}}\nbackends:\n"
        "  tts: {node: s, url: 'http://10.0.0.1:8008', model: m, launch: {resident: 4GiB}}\n"
    )
    (node,) = expected_nodes(load_text(text, "routes.yaml", {}).snapshot)
    (tts,) = node.backends
    assert (tts.port, tts.program, tts.unit, tts.utilization, tts.models) == (8008, None, None, None, ())


def test_no_secret_leaves_this_machine() -> None:
    sent = "".join(script(node) for node in expected_nodes(load_text(ROUTES, "routes.yaml", {}).snapshot))
    assert "sk-secret" not in sent
    assert "HF_HUB_OFFLINE" in sent


def test_what_is_expected_survives_the_trip() -> None:
    assert expected_node(json.loads(json.dumps(asdict(NODE)))) == NODE
