"""Units of systemd that start an engine."""

from __future__ import annotations

import pytest

from tests.apps.importing.support_starts import notes_of, started, started_file
from tests.apps.importing.test_launches import launch_of


def test_the_unit_of_qwen36() -> None:
    backend = started_file("vllm-qwen36.service", "192.168.1.11").snapshot.backends["qwen36"]
    assert (backend.url, backend.model, backend.context) == (
        "http://192.168.1.11:8001",
        "RedHatAI/Qwen3.6-35B-A3B-NVFP4",
        131072,
    )
    assert (backend.tool_parser, backend.auto_tools, backend.reasoning_parser) == ("qwen3_coder", True, "qwen3")
    launch = launch_of(backend)
    assert launch.image == "nvcr.io/nvidia/vllm:26.04-py3"
    assert launch.parsed.flags["speculative-config"] == {"method": "mtp", "num_speculative_tokens": 2}
    assert launch.env == {"VLLM_FLASHINFER_MOE_BACKEND": "latency", "VLLM_USE_V1": "1", "HF_HOME": "/hf"}
    assert launch.docker == "--gpus=all --ipc=host --ulimit=memlock=-1 --ulimit=stack=67108864 -p 8001:8000"
    assert launch.volumes == ("/home/user/.cache/huggingface:/hf",)


def test_the_unit_of_gemma4_whose_image_serves_itself() -> None:
    backend = started_file("vllm-gemma4.service").snapshot.backends["gemma4"]
    assert (backend.url, backend.context, backend.tool_parser) == ("http://spark1:8001", 65536, "hermes")
    assert launch_of(backend).parsed.program == ()
    assert launch_of(backend).parsed.flags["speculative-config"]["model"] == "google/gemma-4-26B-A4B-it-assistant"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[Service]\nType=exec\nWorkingDirectory=/opt\nExecStart=/opt/vllm serve m",
            "left_out 3 WorkingDirectory: is not taken over",
        ),
        ("[Service]\nUser=vllm\nExecStart=/opt/vllm serve m", "left_out 2 User: is not taken over"),
        (
            "[Service]\nEnvironmentFile=-/etc/x\nExecStart=/opt/vllm serve m",
            "to_do 2 EnvironmentFile: the variables of /etc/x",
        ),
        ("[Service]\nExecStart=/opt/start.sh", "to_do 2 /opt/start.sh: starts a script of its own"),
        ("[Service]\nExecStart=/opt/vllm serve m --port 80%i", "to_do 2 ExecStart: a specifier of systemd"),
        (
            "[Service]\nExecStartPre=/usr/bin/mount /x\nExecStart=/opt/vllm serve m",
            "left_out 2 ExecStartPre: this step",
        ),
        ("[Service]\nExecStart=/opt/vllm serve 'm", "to_do 2 ExecStart: a quote is never closed"),
    ],
)
def test_what_a_unit_has_besides_is_noted_with_its_line(text: str, words: str) -> None:
    assert any(note.startswith(words) for note in notes_of("systemd", text)), notes_of("systemd", text)


def test_a_units_variables_are_the_engines() -> None:
    text = '[Service]\nEnvironment="A=b c" PORT=8004\nExecStart=/opt/vllm serve m --port ${PORT}\n'
    backend = started("systemd", text).snapshot.backends["m"]
    assert (launch_of(backend).env, backend.url) == ({"A": "b c", "PORT": "8004"}, "http://spark1:8004")
