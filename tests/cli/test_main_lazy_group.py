"""Commands are listed without being imported."""

from __future__ import annotations

from click.testing import CliRunner

from gateway.cli.main import cli, commands


def test_help_lists_the_commands_without_importing_them() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    assert all(name in result.output for name in commands())
    assert CliRunner().invoke(cli, ["nonsense"]).exit_code == 2
    assert CliRunner().invoke(cli, ["--version"]).output.startswith("gateway, version ")
