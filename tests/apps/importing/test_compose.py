"""Compose files whose services run a vLLM."""

from __future__ import annotations

import pytest

from tests.apps.importing.support_starts import notes_of, started, started_file
from tests.apps.importing.test_launches import launch_of


def test_a_compose_key_without_a_value_is_no_flag() -> None:
    keys = "ipc: null, shm_size: , ulimits: {nofile: null, memlock: {soft: -1, hard: null}}"
    text = f"services: {{a: {{image: vllm/vllm-openai, command: m, {keys}}}}}"
    (found,) = started("compose", text).snapshot.backends.values()
    assert launch_of(found).docker == "--ulimit=memlock=-1"


@pytest.mark.parametrize(
    ("port", "flag"),
    [
        ("target: 8000, published: 8001, host_ip: 127.0.0.1", "-p 127.0.0.1:8001:8000"),
        ("target: 8000, published: 8001, host_ip: '::1'", "-p '[::1]:8001:8000'"),
        ("target: 8000, published: '8001', protocol: tcp", "-p 8001:8000"),
        ("target: 8000, published: 8001, protocol: udp", "-p 8001:8000/udp"),
    ],
)
def test_a_port_stays_bound_to_its_address(port: str, flag: str) -> None:
    text = f"services: {{a: {{image: vllm/vllm-openai, command: m, ports: [{{{port}}}]}}}}"
    (found,) = started("compose", text).snapshot.backends.values()
    assert launch_of(found).docker == flag


def test_a_compose_file() -> None:
    found = started_file("compose.yaml")
    writer, reviewer = found.snapshot.backends["writer"], found.snapshot.backends["reviewer"]
    assert list(found.snapshot.backends) == ["writer", "reviewer"]
    assert (writer.url, writer.context, writer.slots, writer.tool_parser) == ("http://spark1:8001", 32768, 2, "hermes")
    assert launch_of(writer).image == "vllm/vllm-openai:v0.23.0"
    assert launch_of(writer).volumes == ("~/vllm:/models", "/srv/templates:/templates:ro")
    assert launch_of(writer).docker == (
        "--ipc=host --ulimit=memlock=-1 --ulimit=stack=67108864:67108864 --shm-size=16g --gpus=all -p 8001:8000"
    )
    assert (reviewer.url, launch_of(reviewer).env["HF_TOKEN"]) == ("http://spark1:8002", "${HF_TOKEN}")
    assert found.note("services.writer.environment.HF_TOKEN").problem.line == 17
    assert found.note("services.ollama").kind == "left_out"


@pytest.mark.parametrize(
    ("top", "volume"),
    [
        ("name: fleet\nvolumes: {hf: }", "fleet_hf:/hf"),
        ("volumes: {hf: {name: weights}}", "weights:/hf"),
        ("volumes: {hf: {external: true}}", "hf:/hf"),
        ("volumes: {hf: {}}", "hf:/hf"),
    ],
)
def test_a_volume_of_a_compose_file_has_the_name_that_docker_knows(top: str, volume: str) -> None:
    service = "{image: 'vllm/vllm-openai:v1', command: m, ports: ['8001:8000'], volumes: ['hf:/hf']}"
    text = f"{top}\nservices:\n  m: {service}\n"
    (backend,) = started("compose", text).snapshot.backends.values()
    assert launch_of(backend).volumes == (volume,)
    told = [note for note in notes_of("compose", text) if "as PROJECT_hf" in note]
    assert bool(told) == (top == "volumes: {hf: {}}")
