"""How ssh is called, with and without the credentials that systemd hands to the gateway's unit."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.apps.control.unit_commands import KEY, KNOWN_HOSTS, SSH, with_credentials
from gateway.apps.fleet.preflight.run import ssh_command

COMMAND = (*SSH, "ops@spark1", "sudo", "systemctl", "stop", "spark-a")


def test_without_credentials_nothing_changes(tmp_path: Path) -> None:
    assert with_credentials(COMMAND, {}) == COMMAND
    assert with_credentials(COMMAND, {"CREDENTIALS_DIRECTORY": str(tmp_path)}) == COMMAND, "none of them is ours"


def test_a_key_and_known_hosts_that_are_there_are_the_only_ones(tmp_path: Path) -> None:
    for name in (KEY, KNOWN_HOSTS):
        (tmp_path / name).touch()
    found = with_credentials(COMMAND, {"CREDENTIALS_DIRECTORY": str(tmp_path)})
    key = ("-i", f"{tmp_path}/{KEY}", "-o", "IdentitiesOnly=yes")
    hosts = ("-o", f"UserKnownHostsFile={tmp_path}/{KNOWN_HOSTS}", "-o", "UpdateHostKeys=no")
    assert found == ("ssh", *key, *hosts, *COMMAND[1:]), "strict as ever"


def test_each_of_them_alone_and_never_for_a_command_of_the_operators(tmp_path: Path) -> None:
    (tmp_path / KNOWN_HOSTS).touch()
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert "-i" not in with_credentials(COMMAND, environ)
    own = ("ssh", "ops@spark1", "sudo", "systemctl", "stop", "spark-a")
    assert with_credentials(own, environ) == own


def test_a_preflight_uses_them_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / KEY).touch()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert ssh_command("ops@spark1")[:3] == ["ssh", "-i", f"{tmp_path}/{KEY}"]
