"""The compose file of a node: every word and variable as the launch script has it, and what compose can say besides."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from gateway.apps.fleet.render.words import compose_text, pieces
from gateway.config.snapshot import Mode
from tests.apps.fleet.render.blocks import fleet, messages, one_backend, render, text_of

TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=16)


def services(text: str) -> dict[str, Any]:
    found = YAML(typ="safe", pure=True).load(text)["services"]
    assert isinstance(found, dict)
    return found


def read_by_compose(text: str, environ: dict[str, str]) -> str:
    """How compose reads a value: $$ is a dollar sign, ${NAME:-default} and ${NAME:?} are replaced."""

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return environ.get(match[1], "") or (match[2] or "").replace("$$", "$")

    return re.sub(r"\$\$|\$\{(\w+)(?::[-?]([^}]*))?\}", value, text)


@given(st.lists(TEXTS, max_size=5), st.dictionaries(st.sampled_from("ABC"), TEXTS))
def test_every_word_and_variable_survives_the_yaml_and_the_dollar_signs(words: list[str], env: dict[str, str]) -> None:
    words = [word.replace("${", "$") for word in words]
    env = {name: value.replace("${", "$") for name, value in env.items()}
    snapshot = one_backend(shlex.join(["m", *words]), image="vllm/vllm-openai:v1", env=env)
    (backend,) = snapshot.backends.values()
    assert backend.launch is not None
    service = services(text_of(render(snapshot), "compose.yaml"))["it"]
    assert [read_by_compose(word, {}) for word in service["command"]] == list(backend.launch.parsed.words)
    assert {k: read_by_compose(v, {}) for k, v in service.get("environment", {}).items()} == env


@given(TEXTS, TEXTS, TEXTS.filter(bool))
def test_a_reference_stays_one(before: str, behind: str, value: str) -> None:
    before, behind = before.replace("$", ""), behind.replace("${", "")
    text = f"{before}${{KEY}}{behind}$${{KEY}}${{NO:-a$b}}"
    assert [piece.name for piece in pieces(text) if piece.name] == ["KEY", "NO"]
    assert read_by_compose(compose_text(text), {"KEY": value}) == f"{before}{value}{behind}${{KEY}}a$b"


def test_what_a_spark_needs_is_there() -> None:
    service = services(text_of(render(fleet()), "compose.yaml", "spark2"))["gemma4"]
    (gpus,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert gpus == {"driver": "nvidia", "capabilities": ["gpu"], "count": "all"}
    assert service["ipc"] == "host"
    assert service["ulimits"] == {"memlock": -1, "stack": 67108864}
    assert service["ports"] == ["8001:8001"]
    assert service["logging"] == {"driver": "local", "options": {"max-size": "50m", "max-file": "5"}}
    assert service["environment"]["HF_TOKEN"] == "${HF_TOKEN:?}"
    assert "http://127.0.0.1:8001/health" in service["healthcheck"]["test"][-1]
    assert service["restart"] == "on-failure:4"


def test_flags_of_docker_become_keys_and_the_others_are_said() -> None:
    docker = "--net host --privileged --shm-size=16g --ulimit nofile=1:2 --gpus device=1 --sysctl a=b --cpu-rt-period 5"
    rendering = render(one_backend("m", image="vllm/vllm-openai:v1", docker=docker))
    service = services(text_of(rendering, "compose.yaml"))["it"]
    assert (service["network_mode"], service["privileged"], service["shm_size"]) == ("host", True, "16g")
    assert service["ulimits"]["nofile"] == {"soft": 1, "hard": 2}
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] == ["1"]
    assert service["sysctls"] == ["a=b"]
    assert "ports" not in service
    assert "not in compose.yaml, only in the unit: --cpu-rt-period" in messages(rendering)


def test_the_biggest_is_healthy_before_the_next_one_starts() -> None:
    routes = fleet()
    found = services(text_of(render(routes), "compose.yaml", "spark2"))
    # 0.9 of vLLM's default before a card of 20 GiB that says nothing of its share
    assert list(found["plugin"]["depends_on"]) == ["patched", "omni"]
    assert found["plugin"]["profiles"] == found["omni"]["profiles"] == ["guide"]
    assert found["plugin"]["depends_on"]["omni"] == {"condition": "service_healthy"}


def test_an_engine_that_a_profile_lacks_is_not_waited_for_there() -> None:
    """`required: false` is for Compose 2.20: written only where the order needs it."""
    routes = fleet()
    modes = {"guide": ("omni", "plugin"), "small": ("plugin",)}
    routes = replace(routes, modes={name: Mode(name, backends) for name, backends in modes.items()})
    plugin = services(text_of(render(routes), "compose.yaml", "spark2"))["plugin"]
    assert plugin["profiles"] == ["guide", "small"]
    assert plugin["depends_on"]["omni"] == {"condition": "service_healthy", "required": False}


def test_the_older_compose_takes_the_file(tmp_path: Path) -> None:
    older = shutil.which("docker-compose")
    if older is None:
        pytest.skip("no docker-compose here")
    (tmp_path / "compose.yaml").write_text(text_of(render(fleet()), "compose.yaml", "spark2"))
    environ = {**os.environ, **dict.fromkeys(re.findall(r"\$\{(\w+)", (tmp_path / "compose.yaml").read_text()), "x")}
    command = [older, "-f", "compose.yaml", "config", "--quiet"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_worker_has_no_healthcheck_and_its_own_words() -> None:
    worker = services(text_of(render(fleet()), "compose.yaml", "spark2"))["ds4"]
    assert worker["command"][-1] == "--headless"
    assert worker["environment"]["VLLM_HOST_IP"] == "192.168.1.12"
    assert "healthcheck" not in worker
    assert "healthcheck" in services(text_of(render(fleet()), "compose.yaml", "spark1"))["ds4"]


def test_the_healthcheck_asks_where_the_engine_listens() -> None:
    plain = one_backend("m --host 10.0.0.1 --port 9000", image="vllm/vllm-openai:v1", docker="--net host")
    check = services(text_of(render(plain), "compose.yaml"))["it"]["healthcheck"]["test"][-1]
    assert "'http://10.0.0.1:9000/health'" in check
    tls = one_backend(
        "m --port 9000 --ssl-certfile /c --ssl-keyfile /k", image="vllm/vllm-openai:v1", docker="-p 1:9000"
    )
    check = services(text_of(render(tls), "compose.yaml"))["it"]["healthcheck"]["test"][-1]
    assert "'https://127.0.0.1:9000/health'" in check
    assert "_create_unverified_context" in check
    compile(check, "healthcheck", "exec")


def test_an_entrypoint_is_replaced_as_in_the_script() -> None:
    omni = services(text_of(render(fleet()), "compose.yaml", "spark2"))["omni"]
    assert omni["entrypoint"] == ["/bin/bash"]
    assert omni["command"][0] == "-c"
    assert '\'{"video":1,"image":1}\'' in omni["command"][1]
    assert "127.0.0.1:8006" in omni["healthcheck"]["test"][-1]


def test_a_named_volume_is_declared_and_is_the_one_of_docker_run() -> None:
    volumes = ("hf.cache:/hf", "/models:/m", "~/x:/x", "${DIR}:/y", "/anonymous")
    snapshot = one_backend("m", image="vllm/vllm-openai:v1", volumes=volumes, docker="-v logs:/logs:ro")
    text = text_of(render(snapshot), "compose.yaml")
    assert YAML(typ="safe", pure=True).load(text)["volumes"] == {
        "hf.cache": {"name": "hf.cache"},
        "logs": {"name": "logs"},
    }


def test_without_containers_there_is_no_compose_file() -> None:
    rendering = render(one_backend("vllm serve m"))
    assert not any(file.path.endswith("compose.yaml") for file in rendering.files)
