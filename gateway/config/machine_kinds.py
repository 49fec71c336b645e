"""The kinds of values in routes.yaml that say where a machine is reached."""

from __future__ import annotations

import re
from typing import Annotated, Any

from gateway.config.kinds import HOST_NAME, Kind, read_text
from gateway.config.secret import shown
from gateway.config.urls import is_address

_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
_SSH = re.compile(r"(ssh://)?([A-Za-z0-9_][\w.+@-]*@)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_][\w.:%-]*)", re.ASCII)


def _host(value: Any) -> str:
    """A machine's name or address, as it stands in a URL between the scheme and the port."""
    host = read_text(value)
    is_name = HOST_NAME.fullmatch(host.lower()) and not host.rpartition(".")[2].isdigit()
    if not is_name and not is_address(host):
        raise ValueError(f"{shown(host)} is no host name or address; write it without scheme and port: 192.168.1.11")
    return host


def _ssh(value: Any) -> str:
    """Where ssh connects to. It becomes one word of command lines, so it must be no option of ssh and have no space."""
    target = read_text(value)
    if not _SSH.fullmatch(target):
        raise ValueError(f"{shown(target)} is nothing that ssh connects to; write USER@HOST, or a Host of ssh_config")
    return target


Host = Annotated[str, Kind(_host, _TEXT, "host name or address", private=True)]
SshTarget = Annotated[str, Kind(_ssh, _TEXT, "USER@HOST or Host", private=True)]
