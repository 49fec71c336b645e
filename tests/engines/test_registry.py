"""An engine is a name, a row of traits and a client; none of them is ever missing."""

from __future__ import annotations

from typing import get_args

from gateway.config.backends import UNBOUNDED
from gateway.config.snapshot import Engine, ModelServer
from gateway.domain.engine_traits import TRAITS
from gateway.engines.registry import ENGINES


def test_every_engine_and_every_server_that_routes_yaml_may_name_has_traits() -> None:
    assert set(TRAITS) == set(get_args(Engine)) | set(get_args(ModelServer))


def test_every_engine_has_a_client_of_its_name() -> None:
    assert set(ENGINES) == set(get_args(Engine))
    assert all(engine.name == name for name, engine in ENGINES.items())


def test_what_computes_beyond_its_window_is_asked_for_a_declared_one() -> None:
    assert {name for name, row in TRAITS.items() if row.computes_beyond} == UNBOUNDED
