from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from gateway.cli.main import cli

ROOT = Path(__file__).parents[2]


def test_the_command_prints_the_file_that_is_shipped() -> None:
    result = CliRunner().invoke(cli, ["schema"])
    assert result.exit_code == 0
    assert result.output == (ROOT / "routes.schema.json").read_text()
