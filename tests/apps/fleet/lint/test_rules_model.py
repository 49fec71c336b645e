"""Rules about weights, kernels and layers."""

from __future__ import annotations

import pytest

from tests.apps.fleet.lint.linting import (
    check_mistake,
    names_of,
)


@pytest.mark.parametrize("name", names_of("kernels"))
def test_what_went_wrong_gives_its_finding(name: str) -> None:
    check_mistake(name)
