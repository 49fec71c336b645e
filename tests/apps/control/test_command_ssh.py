"""What an ssh that failed says, and the command that mends it."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest

from gateway.apps.control.command import problem_of, was_cut

CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
The fingerprint for the ED25519 key sent by the remote host is
SHA256:newnewnewnewnewnewnewnewnewnewnewnewnewnewne.
Please contact your system administrator.
Add correct host key in {file} to get rid of this message.
Offending ED25519 key in {file}:2
Host key for spark1 has changed and you have requested strict checking.
Host key verification failed.
"""
NEW = "SHA256:newnewnewnewnewnewnewnewnewnewnewnewnewnewne"


def test_a_key_that_has_changed_is_told_with_both_fingerprints(tmp_path: Path) -> None:
    key = b"of before"
    (tmp_path / "known_hosts").write_text(f"other ssh-rsa AAAA\nspark1 ssh-ed25519 AAAA{b64encode(key).decode()}\n")
    known = b64encode(sha256(b"\0\0\0" + key).digest()).decode().rstrip("=")
    found = problem_of("ops@spark1", CHANGED.format(file=tmp_path / "known_hosts"))
    assert found is not None
    assert f"the host key of spark1 has changed: it sends {NEW} (ED25519), and SHA256:{known} is known" in found.why
    assert found.mend.startswith(f"ssh-keygen -R spark1 -f {tmp_path}/known_hosts && ssh-keyscan spark1 >>")
    assert "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub" in found.mend


def test_a_key_of_the_gateways_credentials_is_installed_as_at_first() -> None:
    found = problem_of("ops@spark1", CHANGED.format(file="/run/credentials/spark-gateway.service/fleet-known-hosts"))
    assert found is not None
    assert found.mend.startswith("./fleet/_gateway/host-keys.sh && sudo install -m 0600 ./fleet/_gateway/known_hosts")


def test_one_that_is_not_known_yet_is_another_thing() -> None:
    found = problem_of("ops@spark1", "Host key verification failed.\n")
    assert found is not None
    assert "is not known here" in found.why
    assert problem_of("ops@spark1", "sudo: a password is required") is None


@pytest.mark.parametrize(
    ("problem", "said", "cut"),
    [
        ("exit code 255", "Timeout, server spark1 not responding.", True),
        ("exit code 255", "ssh: connect to host spark1 port 22: Connection refused", True),
        ("did not end within 300 s", "", True),
        ("exit code 255", "ops@spark1: Permission denied (publickey).", False),
        ("exit code 255", "Host key verification failed.", False),
        ("exit code 1", "sudo: a password is required", False),
    ],
)
def test_a_connection_that_was_cut_is_told_from_what_no_other_try_mends(problem: str, said: str, cut: bool) -> None:
    assert was_cut(problem, said) is cut
