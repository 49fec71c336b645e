"""Rules about the container."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.apps.fleet.preflight.host import CONTAINER_HOME
from tests.apps.fleet.lint.linting import (
    check_mistake,
    launched,
    lint,
    names_of,
    rules,
)


@pytest.mark.parametrize("name", names_of("containers"))
def test_what_went_wrong_gives_its_finding(name: str) -> None:
    check_mistake(name)


@pytest.mark.parametrize(
    ("url", "docker", "told"),
    [
        ("http://192.168.1.11:8001", "-p 127.0.0.1:8001:8001", True),
        ("http://192.168.1.11:8001", "-p 127.0.0.1:8001:8001 -p 8001:8001", False),
        ("http://127.0.0.1:8001", "-p 127.0.0.1:8001:8001", False),
    ],
)
def test_a_port_of_loopback_is_fine_where_the_gateway_asks_there(url: str, docker: str, told: bool) -> None:
    launch = {"image": "vllm/vllm-openai:v0.23.0", "command": "m --port 8001", "docker": docker}
    assert ("port-mapping" in rules(lint({"backends": {"b": {"url": url, "launch": launch}}}))) is told


def test_an_image_and_mounts_that_are_references_are_not_judged() -> None:
    command = "nvidia/Gemma-4-31B-IT-NVFP4 --quantization modelopt"
    found = launched(command, image="${IMAGE}", volumes=["${MODELS:-/models}:/models"], env={"HF_HOME": "${HF}"})
    assert {"image-family", "image-tag", "volumes"} & rules(found).keys() == set()


BOTH = {"HF_HOME": "/models", "VLLM_CACHE_ROOT": "/cache/vllm"}


@pytest.mark.parametrize(
    ("env", "mounts", "missing"),
    [
        ({}, [f"{CONTAINER_HOME}/.cache"], []),
        ({}, ["/models"], [f"{CONTAINER_HOME}/.cache/huggingface"]),
        ({"HF_HOME": "/models"}, ["/models"], [f"{CONTAINER_HOME}/.cache/vllm"]),
        ({"HF_HOME": "/models"}, [f"{CONTAINER_HOME}/.cache"], ["/models"]),
        (BOTH, ["/models", "/cache"], []),
        (BOTH, ["/models"], ["/cache/vllm"]),
    ],
)
def test_weights_and_kernels_are_looked_for_where_the_variables_say(
    env: dict[str, str], mounts: list[str], missing: list[str]
) -> None:
    volumes = [f"/data:{mount}" for mount in mounts]
    found = launched("vllm serve nvidia/Qwen3-32B-FP4", image="vllm/vllm-openai:v0.32.0", env=env, volumes=volumes)
    assert [one.message.split()[0] for one in found if one.rule == "volumes"] == missing
    assert "env-unknown" not in rules(found)


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("bash vllm serve m", {}),
        ("vllm serve m", {"docker": "--entrypoint /bin/bash"}),
        ("sh python3 -m vllm.entrypoints.openai.api_server --model m", {}),
    ],
)
def test_a_shell_before_the_program_is_named(command: str, more: dict[str, Any]) -> None:
    (found,) = [
        one for one in launched(command, image="vllm/vllm-openai:v0.32.0", **more) if one.rule == "image-entrypoint"
    ]
    assert (found.severity, "sh reads the program as a script" in found.message) == ("error", True)
    fine = launched("bash -c 'vllm serve m'", image="vllm/vllm-openai:v0.32.0")
    assert rules(fine)["image-entrypoint"] == "warning"


def test_an_image_with_a_digest_alone_is_known_by_its_name() -> None:
    found = launched("vllm serve m", image="docker.io/vllm/vllm-openai@sha256:0")
    assert rules(found)["image-entrypoint"] == "warning"
    assert "image-tag" not in rules(found)
