"""The chart of a benchmark."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from gateway.cli.main import cli
from tests.apps.bench.measuring import NOWHERE


def test_a_chart_without_its_library_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.apps.bench.report.find_spec", lambda _: None)
    result = CliRunner().invoke(cli, ["bench", NOWHERE, "--chart", "x.png"])
    assert result.exit_code == 2
    assert "pip install 'spark-gateway[charts]'" in " ".join(result.output.split())
