"""How this process calls ssh: never a password prompt, never an unknown host key.

A gateway that systemd runs has no home with keys in it. The drop-in that `gateway fleet render` writes hands it a key
and the known hosts as credentials (LoadCredential=). Where they are there, ssh uses them and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

STRICT = ("ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes")
SSH = (*STRICT, "-o", "ConnectTimeout=10", "--")

# The credentials, files in $CREDENTIALS_DIRECTORY, and the options that make ssh use nothing but that file.
KEY, KNOWN_HOSTS = "fleet-ssh-key", "fleet-known-hosts"
_OPTIONS = {
    KEY: ("-i", "{path}", "-o", "IdentitiesOnly=yes"),
    KNOWN_HOSTS: ("-o", "UserKnownHostsFile={path}", "-o", "UpdateHostKeys=no"),
}


def with_credentials(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The same argument vector, which uses the credentials that systemd gave to this process. Unchanged where there are
    none, and where it does not begin with `STRICT`: an operator's own command has its own options."""
    folder = environ.get("CREDENTIALS_DIRECTORY")
    if not folder or tuple(argv[: len(STRICT)]) != STRICT:
        return tuple(argv)
    given = {name: Path(folder, name) for name in _OPTIONS}
    words = [(word, path) for name, path in given.items() if path.is_file() for word in _OPTIONS[name]]
    return (argv[0], *(word.replace("{path}", str(path)) for word, path in words), *argv[1:])
