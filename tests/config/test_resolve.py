"""What the file leaves out: slots, defaults, probes of clouds, the order of steps."""

from __future__ import annotations

import math

import pytest

from gateway.config.load import load_text
from tests.config.test_load_snapshot import backend, snapshot


def test_steps_keep_their_order_and_their_groups() -> None:
    fleet = 'backends: {a: {url: "http://x:1"}, b: {url: "http://x:2"}, c: {url: "http://x:3"}}\n'
    text = fleet + "aliases: {w: [[a, b], c]}\n"
    assert snapshot(text).aliases["w"].steps == (("a", "b"), ("c",))


@pytest.mark.parametrize(
    ("settings", "slots", "assumed"),
    [
        ("engine: vllm", 8, True),
        ("engine: openai", 8, True),
        ("engine: ollama, model: m, context: 8192", 1, True),
        ("engine: http, serves: [speech]", 8, True),
        ("engine: litellm, model: m", None, True),
        ("engine: openai, cloud: true, model: m", None, True),
        ("slots: 3", 3, False),
        ("slots: none", None, False),
        ("engine: litellm, model: m, slots: 2", 2, False),
    ],
)
def test_slots_that_are_not_said_are_assumed_by_engine(settings: str, slots: int | None, assumed: bool) -> None:
    found = backend(settings)
    assert (found.slots, found.slots_assumed) == (slots, assumed)


def test_a_backend_overrides_single_keys_of_the_defaults() -> None:
    above = "defaults: {timeouts: {connect: 1s, idle: none}, health: {every: 10s}, queue: {length: 0}}"
    found = backend("timeouts: {connect: 250ms, total: 1h, first_byte: 30s}, health: {path: /ping}", above)
    assert found.timeouts.connect == 0.25
    assert found.timeouts.idle is None
    assert found.timeouts.total == 3600
    assert found.timeouts.first_byte == 30
    assert found.timeouts.hold == 45
    assert (found.health.every, found.health.path, found.health.fail_after) == (10, "/ping", 3)
    assert (found.queue.length, found.queue.max_wait) == (0, 300)
    assert backend("timeouts: {first_byte: auto}").timeouts.first_byte is None
    assert backend("timeouts: {first_byte: none}").timeouts.first_byte == math.inf


def test_cloud_backends_are_probed_only_when_they_say_so() -> None:
    above = "defaults: {health: {every: 10s}}"
    cloud = "engine: openai, cloud: true, model: m"
    assert backend(cloud, above).health.every is None
    assert backend(cloud, above).health.canary is None
    assert backend(f"{cloud}, health: {{every: 1m}}", above).health.every == 60


def test_nodes_need_not_be_declared() -> None:
    loaded = snapshot('backends: {a: {url: "http://x:1", node: [n1, n2]}, b: {url: "http://x:2", node: n2}}\n')
    assert list(loaded.nodes) == ["n1", "n2"]


def test_one_model_of_one_server_is_one_backend() -> None:
    alike = "backends: {{a: {{url: 'http://10.0.0.1:8001'{0}}}, b: {{url: 'http://10.0.0.1:8001/v1'{1}}}}}\n"

    def told(first: str = "", second: str = "") -> bool:
        warnings = load_text(alike.format(first, second), "routes.yaml", {}).warnings
        return any("is the same server and model as 'a'" in str(warning) for warning in warnings)

    assert told()
    assert told(", model: m", ", model: m")
    assert told(", model: m")
    assert not told(", model: m", ", model: n")
    assert not told(", engine: http, serves: [speech]", ", engine: http, serves: [transcriptions]")


def test_an_alias_that_no_mode_serves_is_told() -> None:
    fleet = "backends: {a: {url: 'http://10.0.0.1:8001'}, b: {url: 'http://10.0.0.2:8001'}}\n"
    aliases = "aliases: {one: [a], two: [b, a], three: [b]}\n"
    warnings = [str(one) for one in load_text(f"{fleet}{aliases}modes: {{day: [a]}}", "routes.yaml", {}).warnings]
    (said,) = [one for one in warnings if "no mode has any of its backends" in one]
    assert "aliases.three" in said
    assert "put one into a mode: b" in said
    assert "no mode has" not in "".join(map(str, load_text(fleet + aliases, "routes.yaml", {}).warnings))
