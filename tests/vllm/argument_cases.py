"""Writes tests/data/launch/arguments.jsonl: command lines, and what the argument parser of a real vLLM makes of them.

Run with the Python of an environment that has vLLM. Each line is {"words", "flags"} with the values that the words set,
by full name, or {"words", "error"} with the parser's refusal.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LINES = 1500
# Flags whose values are looked into while the words are parsed, and one whose choices are checked behind the parser.
ELSEWHERE = ("config", "lora-modules", "device-ids", "model", "kv-cache-dtype")
PARSER_AT = ("vllm.entrypoints.common.cli_args", "vllm.entrypoints.launchers.cli_args")  # it moved with 0.33
SAMPLES = {
    "integer": ["4", "0", "-1", "many", "4k", "4.5"],
    "number": ["0.9", "1", "half"],
    "count": ["8192", "8k", "8K", "25.6k", "2.5K", "eight"],
    "count or auto": ["131072", "128k", "auto", "-1", "lots"],
    "text": ["word", "two words", "a=b", "-dash", ""],
    "json": ['{"a": 1}', '{"method":"mtp","num_speculative_tokens":2}', "{method:mtp}", '["x"]'],
    "json or text": ['{"a": {"b": [1, 2]}}', "word"],
}


def main() -> None:
    table = json.loads(Path("gateway/launch/vllm_flags.json").read_text(encoding="utf-8"))
    parser = import_module("vllm.utils.argparse_utils").FlexibleArgumentParser(prog="vllm")
    serve = parser.add_subparsers(dest="subparser").add_parser("serve")
    serve = import_module(next(name for name in PARSER_AT if find_spec(name))).make_arg_parser(serve)
    for action in serve._actions:
        action.default = argparse.SUPPRESS  # what the words do not set is not there
    rng = random.Random(33)
    flags = [flag for flag in table["flags"] if flag["name"] not in ELSEWHERE]
    for _ in range(LINES):
        words = _line(flags, rng)
        read = _read(parser, words)
        if "pydantic" not in read.get("error", ""):  # the members of a JSON value are not part of the comparison
            sys.stdout.write(json.dumps({"words": words, **read}) + "\n")


def _line(flags: list[dict[str, Any]], rng: random.Random) -> list[str]:
    words = [] if rng.random() < 0.1 else ["org/model"]
    for flag in rng.sample(flags, rng.randint(1, 4)):
        words += _flag(flag, rng)
    if rng.random() < 0.05:
        words.append("left-over")
    return words


def _flag(flag: dict[str, Any], rng: random.Random) -> list[str]:
    """One flag in one of the ways in which people write it, right or wrong."""
    name = f"--{flag['name']}"
    if flag.get("short") and rng.random() < 0.3:
        name = flag["short"][0]
    elif flag.get("negated") and rng.random() < 0.3:
        name = f"--no-{flag['name']}"
    elif flag.get("opposite") and rng.random() < 0.4:
        name = f"--{flag['opposite']}"
    if name.startswith("--") and rng.random() < 0.2:
        name = "--" + name[2:].replace("-", "_")
    if rng.random() < 0.1 and len(name) > 3:
        name = name[: rng.randint(max(3, len(name) - 6), len(name))]
    if flag["kind"] == "switch":
        return [name if rng.random() < 0.9 else f"{name}=true"]
    if flag["kind"] == "json" and name.startswith("--") and rng.random() < 0.3:
        return [f"{name}.{rng.choice(('a', 'a.b_c'))}", rng.choice(("1", "2k", "word", "true", '"x"'))]
    samples = [str(choice) for choice in flag.get("choices", ())] or SAMPLES[flag["kind"]]
    value = rng.choice(samples) if rng.random() < 0.9 else "no-choice"
    if flag.get("folded") and rng.random() < 0.5:
        value = value.upper().replace("_", "-")
    values = [value] if not flag.get("many") or rng.random() < 0.5 else [value, rng.choice(samples)]
    style = rng.random()
    if style < 0.3 and len(values) == 1:
        return [f"{name}={value}"]
    return [name] if style > 0.97 else [name, *values]


def _read(parser: argparse.ArgumentParser, words: list[str]) -> dict[str, Any]:
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            found = vars(parser.parse_args(["serve", *words]))
    except SystemExit:
        return {"error": complaint.getvalue().strip().splitlines()[-1][-300:]}
    except (ValueError, IndexError) as error:
        return {"error": str(error)[:300]}
    model = found.pop("model_tag", None)
    flags = {name.replace("_", "-"): _plain(value) for name, value in found.items() if name != "subparser"}
    return {"flags": flags, "model": model}


def _plain(value: Any) -> Any:
    """Plain data; what vLLM turns into an object of its own is left out of the comparison."""
    try:
        return json.loads(json.dumps(value))
    except TypeError:
        return {"object": type(value).__name__}


if __name__ == "__main__":
    main()
