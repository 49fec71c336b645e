"""Writes gateway/apps/fleet/lint/vllm_rust.json: what vLLM's Rust front end lacks of `vllm serve`, asked of a real
`vllm-rs`.

Run with the Python of an environment that has a vLLM with that binary: `make vllm-rust`. The binary names its parsers
when it is given an unknown one, and the arguments that it does not implement when it is given them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from vllm_flags import _actions, _is_flag

_NO_FILE = ("--listen-fd", "0", "--input-listener-fd", "0", "--output-listener-fd", "0")
_SAMPLES: tuple[Any, ...] = (True, 1, "x", {"x": 1}, ["x"])
_PARSERS = re.compile(r"is not registered \(choose from: ([^)]*)\)")
# What `vllm serve` does not hand on to it.
_KEPT_BACK = frozenset(
    {"api_server_count", "data_parallel_rank", "data_parallel_external_lb", "data_parallel_hybrid_lb"}
)


def main() -> None:
    package = Path(import_module("vllm").__file__ or "").parent
    binary = package / "vllm-rs"
    version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    actions = [action for action in _actions() if _is_flag(action) and action.dest not in _KEPT_BACK]
    refused = {
        action.option_strings[0].removeprefix("--"): _plain(action.default)
        for action in sorted(actions, key=lambda one: one.option_strings[0])
        if _refuses(binary, action.dest)
    }
    found = {
        "version": version,
        "tool_parsers": _parsers(binary, "tool_call_parser"),
        "reasoning_parsers": _parsers(binary, "reasoning_parser"),
        "refused_flags": refused,  # with the defaults: `vllm serve` hands on only other values
    }
    lines = [f' "{name}": {json.dumps(value)}' for name, value in found.items()]
    sys.stdout.write("{\n" + ",\n".join(lines) + "\n}\n")


def _plain(value: Any) -> Any:
    """A default as JSON has it; None where it is no plain value."""
    return value if isinstance(value, bool | int | float | str) else None


def _parsers(binary: Path, name: str) -> list[str]:
    found = _PARSERS.search(_said(binary, {name: "none-of-its-own"}))
    if found is None:
        raise SystemExit(f"vllm-rs no longer names its parsers ({name}): see what it says now")
    return sorted(found[1].split(", "))


def _refuses(binary: Path, name: str) -> bool:
    """Does it refuse this argument, whatever its value?"""
    for sample in _SAMPLES:
        said = _said(binary, {name: sample, "tool_call_parser": "none-of-its-own"})
        if "not implemented in Rust frontend" in said:
            return True
        if _PARSERS.search(said):  # it has read all arguments
            return False
    return False


def _said(binary: Path, arguments: dict[str, Any]) -> str:
    given = json.dumps({"model_tag": "x", **arguments})
    command = [str(binary), "frontend", *_NO_FILE, "--args-json", given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL, check=False)
    return f"{done.stdout}{done.stderr}"


if __name__ == "__main__":
    main()
