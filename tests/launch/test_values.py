"""Values of flags, as a real vLLM reads them; ranges and choices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.launch.test_arguments import CASES, read, read_words


def comparable(value: Any) -> Any:
    """vLLM keeps an empty word as None where a flag may be unset; here it stays an empty word."""
    if isinstance(value, list):
        return [comparable(inner) for inner in value]
    return "" if value is None else value


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
