"""Where the flags that an engine reports differ from its launch block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.snapshot import Backend, Launch
from gateway.domain.backend import BackendState
from gateway.domain.drift import drift
from gateway.domain.health_machine import Health
from gateway.domain.health_state import State
from gateway.domain.observed_flags import POSITIONS_MOST, ObservedFlags, flag_drift
from gateway.launch.command import ServeCommand, parse

NOW = 1000.0


def launched(flags: Mapping[str, Any], **keys: Any) -> Backend:
    return Backend("b", url="http://127.0.0.1:1", launch=Launch(parsed=ServeCommand(flags=flags)), **keys)


def differences(flag: str, written: Any, seen: Any) -> list[str]:
    return list(flag_drift(launched({flag: written}), ObservedFlags({flag: seen})))


# -- one flag ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "written", "seen", "told"),
    [
        ("gpu-memory-utilization", 0.55, 0.92, "0.55 is declared, it runs with 0.92"),
        ("kv-cache-dtype", "fp8", "auto", "fp8 is declared, it runs with auto"),
        ("kv-cache-dtype", "fp8", "fp8_e5m2", "fp8 is declared, it runs with fp8_e5m2"),
        ("block-size", 32, 16, "32 is declared, it runs with 16"),
        ("enable-prefix-caching", True, False, "true is declared, it runs with false"),
        ("enable-prefix-caching", False, True, "false is declared, it runs with true"),
        ("num-gpu-blocks-override", 512, None, "512 is declared, it runs without"),
        ("kv-offloading-size", 16, 8.0, "16 is declared, it runs with 8.0"),
    ],
)
def test_a_flag_that_the_engine_runs_otherwise_is_told(flag: str, written: Any, seen: Any, told: str) -> None:
    assert differences(flag, written, seen) == [f"{flag}: {told}"]


@pytest.mark.parametrize(
    ("flag", "written", "seen"),
    [
        ("gpu-memory-utilization", 0.9, 0.9),
        ("gpu-memory-utilization", 0.1 + 0.2, 0.3),
        ("gpu-memory-utilization", "${SHARE}", 0.92),
        ("kv-cache-dtype", "auto", "fp8"),
        ("kv-cache-dtype", "fp8", "fp8_e4m3"),
        ("kv-cache-dtype", "fp8", "fp8_ds_mla"),
        ("kv-cache-dtype", "bfloat16", "auto"),
        ("kv-cache-dtype", "${DTYPE}", "fp8"),
        ("swap-space", 0, 0.0),
        ("kv-offloading-size", 0, None),
        ("enable-prefix-caching", True, True),
        ("block-size", None, 16),
    ],
)
def test_the_same_in_other_words_is_no_difference(flag: str, written: Any, seen: Any) -> None:
    assert differences(flag, written, seen) == []


def test_what_is_not_written_or_not_seen_differs_from_nothing() -> None:
    everything = ObservedFlags({"gpu-memory-utilization": 0.3, "enable-prefix-caching": False, "spec-tokens": 3})
    assert flag_drift(launched({}), everything) == ()
    assert flag_drift(launched({"gpu-memory-utilization": 0.9, "max-num-seqs": 4}), ObservedFlags()) == ()
    assert flag_drift(launched({"gpu-memory-utilization": 0.9}), None) == ()
    assert flag_drift(Backend("b", url="http://127.0.0.1:1"), everything) == ()


def test_a_value_that_the_engine_may_have_settled_itself_is_no_difference() -> None:
    observed = ObservedFlags({"block-size": 2128}, settled=frozenset({"block-size"}))
    assert flag_drift(launched({"block-size": 16}), observed) == ()


def test_a_backend_may_run_with_any_of_its_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "gateway.domain.observed_flags.with_changes",
        lambda command, changes, **_: replace(command, flags={**command.flags, **changes}),
    )
    backend = launched({"gpu-memory-utilization": 0.55}, profiles={"big": {"gpu-memory-utilization": 0.8}})
    assert flag_drift(backend, ObservedFlags({"gpu-memory-utilization": 0.8})) == ()
    assert flag_drift(backend, ObservedFlags({"gpu-memory-utilization": 0.9})) == (
        "gpu-memory-utilization: 0.55 or 0.8 is declared, it runs with 0.9",
    )


values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.lists(st.integers())


@given(values, st.none() | st.booleans() | st.integers(0, 10**15) | st.floats(0, 1e15) | st.text(max_size=8))
def test_any_two_values_are_compared(written: Any, seen: Any) -> None:
    found = differences("gpu-memory-utilization", written, seen)
    assert all(line.startswith("gpu-memory-utilization: ") for line in found)


# -- speculative decoding ---------------------------------------------------------------------------------------------


def drafting(seen: int, **flags: Any) -> list[str]:
    declared = {name.replace("_", "-"): value for name, value in flags.items()}
    return list(flag_drift(launched(declared), ObservedFlags({"spec-tokens": seen})))


def test_drafts_are_compared_by_their_length() -> None:
    config = {"method": "mtp", "num_speculative_tokens": 2}
    assert drafting(2, speculative_config=config) == []
    assert drafting(3, speculative_config=config) == ["speculative-config: 2 tokens are declared, it drafts 3"]
    assert drafting(0, speculative_config=config) == ["speculative-config: 2 tokens are declared, it drafts none"]
    assert drafting(2, spec_method="mtp", spec_tokens=2) == []
    assert drafting(4, speculative_config={"num-speculative-tokens": 4}) == []
    assert drafting(POSITIONS_MOST, speculative_config={"num_speculative_tokens": 500}) == []


def test_drafts_whose_length_the_engine_chooses_only_have_to_be_there() -> None:
    assert drafting(5, speculative_config={"method": "eagle3"}) == []
    assert drafting(5, speculative_config="${SPECULATION}") == []
    assert drafting(0, spec_model="org/drafter") == ["speculative-config: drafts are declared, it drafts none"]


# -- the backend ------------------------------------------------------------------------------------------------------


def state_of(backend: Backend) -> BackendState:
    return BackendState(backend, None, Health("b", backend.health, state=State.READY))


def test_drift_follows_what_is_seen_and_what_is_declared() -> None:
    state = state_of(launched({"gpu-memory-utilization": 0.55}))
    assert drift(state, NOW) == []
    state.saw_flags(ObservedFlags({"gpu-memory-utilization": 0.92}))
    assert drift(state, NOW) == ["gpu-memory-utilization: 0.55 is declared, it runs with 0.92"]
    state.define(launched({"gpu-memory-utilization": 0.92}))
    assert drift(state, NOW) == []
    state.saw_flags(None)
    assert state.reported.flags is None


def test_the_window_is_named_by_where_it_is_written() -> None:
    by_flag = state_of(launched({"max-model-len": 131072}, context=131072))
    beside = state_of(launched({"max-model-len": "auto"}, context=131072))
    for state, key in ((by_flag, "max-model-len"), (beside, "context")):
        state.saw_model("m", 65536)
        assert drift(state, NOW) == [f"{key}: 131072 is declared, it serves 65536"]


@pytest.mark.parametrize(
    ("name", "written", "tokens"),
    [
        ("max-model-len", 200000, 200000),
        ("max_model_len", 200000, 200000),
        ("max-model-len", "128K", 131072),
        ("max-model-len", "200k", 200000),
    ],
)
def test_the_window_of_a_profile_is_as_good_as_that_of_the_command(name: str, written: object, tokens: int) -> None:
    state = state_of(launched({"max-model-len": 131000}, profiles={"latency": {name: written}}))
    state.saw_model("m", tokens)
    assert drift(state, NOW) == []
    state.saw_model("m", 65536)
    assert drift(state, NOW) == ["max-model-len: 131000 is declared, it serves 65536"]


def test_a_profile_of_a_command_whose_image_starts_vllm_is_read_too() -> None:
    image = "vllm/vllm-openai:v0.23.0"
    parsed = parse("org/model --gpu-memory-utilization 0.55", image=image)
    profiles = {"big": {"gpu-memory-utilization": 0.8}}
    backend = Backend("b", url="http://127.0.0.1:1", launch=Launch(image=image, parsed=parsed), profiles=profiles)
    assert flag_drift(backend, ObservedFlags({"gpu-memory-utilization": 0.8})) == ()
    assert flag_drift(backend, ObservedFlags({"gpu-memory-utilization": 0.9})) == (
        "gpu-memory-utilization: 0.55 or 0.8 is declared, it runs with 0.9",
    )
