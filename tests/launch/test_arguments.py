"""Arguments of `vllm serve` are read as vLLM reads them: 1,300 lines that the parser of a real vLLM has read."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.launch.arguments import Arguments, read_arguments
from gateway.launch.flags import flag_names, one_typo_away, vllm_flags

CASES = [json.loads(line) for line in Path("tests/data/launch/arguments.jsonl").read_text().splitlines()]


def read(text: str) -> Arguments:
    return read_words(shlex.split(text))


def read_words(words: list[str]) -> Arguments:
    return read_arguments(tuple(words), vllm_flags())


def refused(found: Arguments) -> bool:
    """What vLLM's parser would end with: a mistake, a flag that it does not have, or a word too many. Numbers out of
    range pass the parser; its settings refuse them afterwards."""
    told = [m for m in found.mistakes if m.rule != "flag-range"]
    wrong = any(m.severity == "error" or m.rule == "flag-unknown" for m in told)
    return wrong or len(found.positional) > 1


def comparable(value: Any) -> Any:
    """vLLM keeps an empty word as None where a flag may be unset; here it stays an empty word."""
    if isinstance(value, list):
        return [comparable(inner) for inner in value]
    return "" if value is None else value


def test_the_same_lines_are_refused_as_by_a_real_vllm() -> None:
    differ = [
        case for case in CASES if refused(read_arguments(tuple(case["words"]), vllm_flags())) != ("error" in case)
    ]
    assert differ == []
    assert sum("error" in case for case in CASES) > 100


def test_the_same_values_are_read_as_by_a_real_vllm() -> None:
    differ = []
    for case in CASES:
        found = json.loads(json.dumps(read_words(case["words"]).flags))
        for name in {*case.get("flags", ()), *found} if "flags" in case else ():
            theirs = case["flags"].get(name, "not set")
            if not (isinstance(theirs, dict) and "object" in theirs):
                ours = found.get(name, "not set")
                differ += [(case["words"], name, theirs, ours)] if comparable(ours) != comparable(theirs) else []
    assert differ == []


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


def test_a_wrong_choice_lists_the_choices() -> None:
    (mistake,) = read("x --scheduling-policy best").mistakes
    assert "fcfs, priority" in mistake.message


@pytest.mark.parametrize(
    "text",
    ["x --max-model-len -1", "x --max-model-len auto", "x --gpu-memory-utilization 1", "x --max-num-seqs ${N}",
     "x --node-rank 0", "x --max-logprobs -1", "x --data-parallel-rpc-port 65535"],
)  # fmt: skip
def test_the_ends_of_a_range_and_what_stands_for_auto_are_fine(text: str) -> None:
    assert read(text).mistakes == []


def test_a_number_out_of_range_says_the_range_and_of_a_repeated_flag_only_the_last_one_counts() -> None:
    (mistake,) = read("x --gpu-memory-utilization 55").mistakes
    assert "it must be above 0 and at most 1" in mistake.message
    assert [m.rule for m in read("x --max-num-seqs 0 --max-num-seqs 4").mistakes] == ["flag-twice"]


@pytest.mark.parametrize(
    "text",
    [
        "x --api-kye SECRET",
        "x --api-kye=SECRET",
        "x --api_kye SECRET SECRET2",
        "x --hf-tokn SECRET",
        "x --hf-t0ken SECRET",
        "x --my-password SECRET",
        "x --api-key.a SECRET",
        "x --ap SECRET",
        "x --max-num-seqs sk-live-123456789",
        "x --tool-call-parsr hf_abcdefGHIJ1234",
    ],
)
def test_secrets_are_in_no_message(text: str) -> None:
    shown = "".join(f"{m.message}{m.fix}" for m in read(text).mistakes)
    assert not {"SECRET", "sk-live", "hf_abc"} & {word for word in ("SECRET", "sk-live", "hf_abc") if word in shown}
    assert read(text).mistakes


def test_what_is_no_secret_stays_in_the_words_to_write() -> None:
    assert read("x --long-prefill-token-threshol 4096").mistakes[0].fix == "--long-prefill-token-threshold 4096"
    assert read("x --api-kye ${KEY}").mistakes[0].fix == "--api-key ${KEY}"


def test_an_unknown_flag_names_the_version_that_is_known() -> None:
    (mistake,) = read("x --no-such-thing-at-all").mistakes
    assert vllm_flags().version in mistake.message


@given(st.sampled_from(flag_names()), st.data())
def test_one_typo_leads_back_to_the_flag(name: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(name) - 1))
    letter = data.draw(st.sampled_from("qxz"))
    typo = data.draw(st.sampled_from([name[:at] + letter + name[at:], name[:at] + letter + name[at + 1 :]]))
    assert one_typo_away(typo, [name]) == (name if typo != name else None)


@given(
    st.lists(st.text(max_size=12) | st.sampled_from(["--port", "-tp", "--a.b", "-O", "--", "-", "--=", "{", "--x.y+"]))
)
def test_no_words_make_the_reader_fail(words: list[str]) -> None:
    found = read_arguments(tuple(words), vllm_flags())
    assert all(0 <= start < end <= len(words) for _, start, end in found.spans)
