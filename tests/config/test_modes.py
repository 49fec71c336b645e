"""The fleet in one of its modes: what is parked, and what profiles change."""

from __future__ import annotations

import pytest

from gateway.config.changes import changes
from gateway.config.load import load_text
from gateway.config.modes import in_mode, mode_of, parked_by, renamed
from gateway.config.problems import ConfigError
from gateway.config.snapshot import Backend, Snapshot

FLEET = """\
nodes: {spark1: {address: 192.168.1.11}}
backends:
  a: {url: 'http://192.168.1.12:1'}
  b: {url: 'http://192.168.1.12:2'}
  cloud: {engine: openai, model: m, url: 'https://x.example.com', cloud: true}
  ds4:
    node: spark1
    slots: 8
    launch:
      command: vllm serve org/m --served-model-name ds4 other --port 8000 --max-model-len 131072 --max-num-seqs 8
    profiles:
      latency: {max-model-len: 200000, max-num-seqs: 4, tool-call-parser: hermes, enable-auto-tool-choice: true}
      read: {max-model-len: none, max-num-seqs: none}
      moved: {port: 8009}
"""
MODES = "modes:\n  daily: [a, b]\n  large: [ds4]\n  long: {backends: [ds4], profiles: {ds4: latency}}\n"


def snapshot(modes: str = MODES) -> Snapshot:
    return load_text(FLEET + modes, environ={}).snapshot


def in_profile(profile: str) -> Backend:
    modes = f"modes: {{x: {{backends: [ds4], profiles: {{ds4: {profile}}}}}}}\n"
    return in_mode(snapshot(modes), "x").backends["ds4"]


def test_without_modes_the_file_counts_as_it_is() -> None:
    fleet = snapshot("")
    assert in_mode(fleet, None) is fleet
    assert in_mode(fleet, "daily").mode is None


@pytest.mark.parametrize(("chosen", "in_force"), [(None, "daily"), ("large", "large"), ("gone", "daily")])
def test_the_first_mode_is_in_force_unless_one_of_the_file_was_chosen(chosen: str | None, in_force: str) -> None:
    assert in_mode(snapshot(), chosen).mode == in_force


def test_local_backends_outside_the_mode_are_parked_and_clouds_never() -> None:
    parked = {name: backend.parked for name, backend in in_mode(snapshot(), "large").backends.items()}
    assert parked == {"a": "outside mode 'large'", "b": "outside mode 'large'", "cloud": None, "ds4": None}


def test_nothing_is_parked_where_no_mode_is_in_force() -> None:
    fleet = snapshot()
    assert parked_by(None, fleet.backends["a"]) is None
    assert parked_by(mode_of(fleet, "large"), fleet.backends["a"]) == "outside mode 'large'"


def test_a_profile_changes_what_follows_from_its_flags_and_nothing_else() -> None:
    fleet = snapshot()
    plain, long = in_mode(fleet, "large").backends["ds4"], in_mode(fleet, "long").backends["ds4"]
    assert (plain.context, plain.slots, plain.tool_parser, plain.auto_tools) == (131072, 8, "none", False)
    assert (long.context, long.slots, long.tool_parser, long.auto_tools) == (200000, 4, "hermes", True)
    assert (long.identity, long.model, long.nodes) == (plain.identity, plain.model, plain.nodes)
    assert fleet.backends["ds4"].context == 131072, "the file's snapshot stays as it is"


def test_what_is_stated_beside_the_command_counts_where_the_profile_is_silent() -> None:
    assert in_profile("moved").slots == 8
    assert in_profile("moved").url == "http://192.168.1.11:8009"


def test_a_flag_that_a_profile_leaves_out_gives_the_key_its_default() -> None:
    read = in_profile("read")
    assert (read.context, read.slots, read.slots_assumed) == (None, 8, True)


@pytest.mark.parametrize(
    ("after", "name"),
    [
        (MODES, "large"),
        (MODES.replace("large", "big"), "big"),
        (MODES.replace("large: [ds4]", "big: [ds4, a]"), "large"),
        ("modes: {daily: [a, b]}\n", "large"),
        (MODES.replace("large: [ds4]", "big: [ds4]\n  bigger: [ds4]"), "large"),
    ],
    ids=["the same", "renamed", "another one", "removed", "ambiguous"],
)
def test_a_mode_that_an_edit_only_renames_is_the_same_mode(after: str, name: str) -> None:
    assert renamed(snapshot(), snapshot(after), "large") == name


def test_a_backend_in_no_mode_is_warned_of() -> None:
    warnings = [str(w) for w in load_text(FLEET + "modes: {daily: [a, ds4]}\n", environ={}).warnings]
    assert [w for w in warnings if "is in no mode, so it is always parked" in w] == [
        "routes.yaml:4  backends.b: is in no mode, so it is always parked - put it into a mode"
    ]


def test_an_edit_of_modes_is_told() -> None:
    edited = "modes:\n  daily: [a]\n  long: {backends: [ds4], profiles: {ds4: latency}}\n  new: [b]\n"
    assert changes(snapshot(), snapshot(edited)) == ["- modes.large", "~ modes.daily", "+ modes.new"]


@pytest.mark.parametrize("profile", ["[latency]", "{a: b}", "1", "null"])
def test_a_profile_that_is_no_name_is_a_mistake(profile: str) -> None:
    with pytest.raises(ConfigError, match="'ds4' has no profile"):
        in_profile(profile)
