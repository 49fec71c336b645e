"""Modes as routes.yaml has them."""

from __future__ import annotations

from tests.config.test_fleet_launch_keys import snapshot


def test_modes_keep_their_order_and_name_profiles() -> None:
    text = (
        "backends:\n  a: {node: spark1, launch: {command: vllm serve m}, profiles: {long: {max-model-len: 200000}}}\n"
        "  b: {url: 'http://x:1'}\nmodes:\n  daily: [a, b]\n  long: {backends: [a], profiles: {a: long}}\n"
    )
    modes = snapshot(text).modes
    assert list(modes) == ["daily", "long"]
    assert (modes["daily"].backends, modes["long"].profiles) == (("a", "b"), {"a": "long"})
