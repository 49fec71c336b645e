"""What an ssh that failed means, and the command that mends it. OpenSSH never translates its words."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from gateway.printable import visible

_CHANGED = "REMOTE HOST IDENTIFICATION HAS CHANGED"
_SENT = re.compile(r"^(SHA256:[A-Za-z0-9+/]+)\.?\s*$", re.M)
_OFFENDING = re.compile(r"^Offending (\S+) key in (\S+?):(\d+)\s*$", re.M)
_FILE_MOST = 1024 * 1024  # bytes of a known_hosts that are read
# A connection that was there and went, or never came about: the command may have run. What a key or a name is about is
# no matter of trying again.
_FINAL = ("host key", "permission denied", "could not resolve", "bad configuration", "no such identity", "usage: ssh")


class SshProblem(NamedTuple):
    """`why`: in a sentence. `mend`: a command."""

    why: str
    mend: str


def problem_of(target: str, said: str) -> SshProblem | None:
    """What the output of a failed ssh to `target` says of the connection; None: it says nothing of one."""
    host = target.rpartition("@")[2]
    stated = said.lower()
    if _CHANGED in said:
        return _changed(host, said)
    if "host key verification failed" in stated or "host key is known" in stated:
        mend = f"ssh {target} true   # and compare the host's key with the one on its console before you accept it"
        return SshProblem(f"the host key of {host} is not known here: Host key verification failed.", mend)
    return None


def was_cut(problem: str, said: str) -> bool:
    """Whether the connection failed, and another try may do. `problem`: how the command ended. 255: ssh itself."""
    if problem != "exit code 255" and not problem.startswith("did not end"):
        return False
    return not any(word in said.lower() for word in _FINAL)


def _changed(host: str, said: str) -> SshProblem:
    sent, place = _SENT.search(said), _OFFENDING.search(said)
    why = f"the host key of {host} has changed: it sends {sent[1] if sent else 'another key'}"
    if place is None:
        return SshProblem(why, f"ssh-keygen -R {host}")
    kind, file, line = place[1], visible(place[2]), int(place[3])
    why += f" ({kind}), and {_known(Path(place[2]), line) or 'another one'} is known (line {line} of {file})"
    why += "; was the machine installed anew? If not, somebody else answers in its place"
    compare = f"# when `ssh-keygen -lf /etc/ssh/ssh_host_{kind.lower()}_key.pub` on {host}'s console says the same"
    if file.startswith("/run/credentials/"):
        install = "sudo install -m 0600 ./fleet/_gateway/known_hosts /etc/spark-gateway/ssh/known_hosts"
        return SshProblem(why, f"./fleet/_gateway/host-keys.sh && {install}   {compare}; then restart the gateway")
    return SshProblem(why, f"ssh-keygen -R {host} -f {file} && ssh-keyscan {host} >>{file}   {compare}")


def _known(file: Path, line: int) -> str | None:
    """The fingerprint of the key in this line of a known_hosts; None where it cannot be read."""
    try:
        with file.open("rb") as opened:
            words = opened.read(_FILE_MOST).splitlines()[line - 1].split()
        key = next(word for word in words if word.startswith(b"AAAA"))
        return f"SHA256:{b64encode(sha256(b64decode(key)).digest()).decode().rstrip('=')}"
    except (OSError, IndexError, StopIteration, ValueError):
        return None
