"""An engine is a name, a row of traits and a client; none of them is ever missing."""

from __future__ import annotations

from typing import get_args

from gateway.config.snapshot import Engine
from gateway.domain.engine_traits import TRAITS
from gateway.engines.registry import ENGINES


def test_every_engine_that_routes_yaml_may_name_has_traits() -> None:
    assert set(TRAITS) == set(get_args(Engine))


def test_every_engine_has_a_client_of_its_name() -> None:
    assert set(ENGINES) == set(TRAITS)
    assert all(engine.name == name for name, engine in ENGINES.items())
