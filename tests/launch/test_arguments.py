"""Arguments of `vllm serve` are read as vLLM reads them: 1,300 lines that the parser of a real vLLM has read."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.launch.arguments import ParsedArguments, read_arguments
from gateway.launch.flags import vllm_flags

CASES = [json.loads(line) for line in Path("tests/data/launch/arguments.jsonl").read_text().splitlines()]


def read(text: str) -> ParsedArguments:
    return read_words(shlex.split(text))


def read_words(words: list[str]) -> ParsedArguments:
    return read_arguments(tuple(words), vllm_flags())


def refused(found: ParsedArguments) -> bool:
    """What vLLM's parser would end with: a mistake, a flag that it does not have, or a word too many. Numbers out of
    range pass the parser; its settings refuse them afterwards."""
    told = [m for m in found.mistakes if m.rule != "flag-range"]
    wrong = any(m.severity == "error" or m.rule == "flag-unknown" for m in told)
    return wrong or len(found.positional) > 1


def test_the_same_lines_are_refused_as_by_a_real_vllm() -> None:
    differ = [
        case for case in CASES if refused(read_arguments(tuple(case["words"]), vllm_flags())) != ("error" in case)
    ]
    assert differ == []
    assert sum("error" in case for case in CASES) > 100


@pytest.mark.parametrize(
    ("text", "flag", "value"),
    [
        ("x --max-model-len=131072", "max-model-len", 131072),
        ("x --max_model_len 128k", "max-model-len", 128000),
        ("x --max-model-len 128K", "max-model-len", 131072),
        ("x --max-model-len auto", "max-model-len", -1),
        ("x -tp 2", "tensor-parallel-size", 2),
        ("x --tensor-par 2", "tensor-parallel-size", 2),
        ("x --no-enable-prefix-caching", "enable-prefix-caching", False),
        ("x --enable-prefix-caching", "enable-prefix-caching", True),
        ("x -O3", "optimization-level", "3"),
        ("x --compilation-config.mode 3", "compilation-config", {"mode": 3}),
        ("x -sc.method mtp -sc.num_speculative_tokens=2", "speculative-config",
         {"method": "mtp", "num_speculative_tokens": 2}),
        ("x --speculative-config '{\"method\":\"mtp\"}'", "speculative-config", {"method": "mtp"}),
        ("x --served-model-name a b --port 1", "served-model-name", ["a", "b"]),
        ("x --moe-backend MARLIN", "moe-backend", "marlin"),
        ("x --port 8000 --port 8001", "port", 8001),
        ("x --port ${PORT}", "port", "${PORT}"),
    ],
)  # fmt: skip
def test_every_way_to_write_a_flag(text: str, flag: str, value: object) -> None:
    assert read(text).flags[flag] == value


@pytest.mark.parametrize(
    ("text", "severity", "rule", "fix"),
    [
        ("x --max-modle-len 5", "error", "flag-unknown", "--max-model-len 5"),
        ("x --max-modle-len=5", "error", "flag-unknown", "--max-model-len 5"),
        ("x --tool-call-parsr hermes", "error", "flag-unknown", "--tool-call-parser hermes"),
        ("x --speculative-disable-by-batch-size 32", "warning", "flag-unknown", None),
        ("x --kv-cache-dtype fp9", "error", "flag-choice", "--kv-cache-dtype fp8"),
        ("x --dtype bf16", "error", "flag-choice", "--dtype bfloat16"),
        ("x --max-num-seqs four", "error", "flag-value", None),
        ("x --max-num-seqs 8,192", "error", "flag-value", "--max-num-seqs 8192"),
        ("x --gpu-memory-utilization 0,9", "error", "flag-value", "--gpu-memory-utilization 0.9"),
        ("x --enable-prefix-caching=true", "error", "flag-value", "--enable-prefix-caching"),
        ("x --port", "error", "flag-value", None),
        ("x --max-model-len 2.5K", "error", "flag-value", "--max-model-len 2.5k"),
        ("x --speculative-config {method:mtp,num_speculative_tokens:2}", "error", "flag-json",
         "--speculative-config '{\"method\":\"mtp\",\"num_speculative_tokens\":2}'"),
        ("x --kv-cache-dtyp fp8", "error", "flag-ambiguous", "--kv-cache-dtype fp8"),
        ("x --port 1 --port 2", "warning", "flag-twice", "write it once"),
        ("x --gpu-memory-utilization .nan", "error", "flag-value", None),
        ("x --gpu-memory-utilization 25", "error", "flag-range", "--gpu-memory-utilization 0.25"),
        ("x --gpu-memory-utilization 1.5", "error", "flag-range", None),
        ("x --gpu-memory-utilization 0", "error", "flag-range", None),
        ("x --gpu-memory-utilization -0.1", "error", "flag-range", None),
        ("x --max-num-seqs 0", "error", "flag-range", None),
        ("x --max-num-batched-tokens 0", "error", "flag-range", None),
        ("x -tp 0", "error", "flag-range", None),
        ("x --max-model-len -5", "error", "flag-range", None),
        ("x --max-model-len 0", "error", "flag-range", None),
    ],
)  # fmt: skip
def test_a_mistake_says_what_to_write(text: str, severity: str, rule: str, fix: str | None) -> None:
    (mistake,) = read(text).mistakes
    assert (mistake.severity, mistake.rule, mistake.fix) == (severity, rule, fix)


@given(
    st.lists(st.text(max_size=12) | st.sampled_from(["--port", "-tp", "--a.b", "-O", "--", "-", "--=", "{", "--x.y+"]))
)
def test_no_words_make_the_reader_fail(words: list[str]) -> None:
    found = read_arguments(tuple(words), vllm_flags())
    assert all(0 <= start < end <= len(words) for _, start, end in found.spans)
