"""A backend's keys, by the command line of its server."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.apps.importing.llama_swap import backend_keys


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        ("vllm serve Qwen/Q --max-num-seqs 2", {"slots": 2, "model": "Qwen/Q"}),
        ("docker run vllm/vllm-openai:x --model a/b --max-model-len=1K", {"context": 1024, "model": "a/b"}),
        ("python -m vllm.entrypoints.openai.api_server --model m --served-model-name s", {"model": "s"}),
        ("vllm serve m --tool-call-parser hermes", {"tool_parser": "hermes", "auto_tools": False, "model": "m"}),
        ("vllm serve m --max-model-len auto", {"model": "m"}),
        ("llama-server -c 8192 --parallel 2", {"engine": "openai", "context": 4096, "slots": 2}),
        ("llama-server -c 0 -np 'unclosed", {"engine": "openai"}),
        ("", {"engine": "openai"}),
    ],
)
def test_what_a_command_line_tells(command: str, keys: dict[str, Any]) -> None:
    assert backend_keys(command) == keys
