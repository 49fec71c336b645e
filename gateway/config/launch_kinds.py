"""The kinds of values in routes.yaml that say what is launched (command lines, variables, profiles, modes) and where a
machine is reached."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from gateway.config.kinds import HOST_NAME, Kind, mapping_of, read_text, refuse_control_characters
from gateway.config.problems import each
from gateway.config.secret import shown
from gateway.config.urls import is_address

_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
_TEXT_BY_NAME = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}


def _command_line(value: Any) -> str:
    """Text of one or several lines, as a person types it into a shell."""
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not a command line; write it as text, e.g. with `command: >-`")
    if not value.strip():
        raise ValueError("is empty")
    if any((ord(c) < 32 and c not in "\n\t") or ord(c) == 127 for c in value):
        raise ValueError("holds a control character")
    return str(value).strip()


def _environment(value: Any) -> dict[str, str]:
    """Names of environment variables with their values as text; a number counts as its text."""
    value = mapping_of(value, 'variables; write {NAME: "value"}')
    return dict(each(((str(name), pair) for name, pair in zip(value, value.items(), strict=True)), _variable))


def _variable(pair: tuple[Any, Any]) -> tuple[str, str]:
    name, value = pair
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise ValueError(f"{shown(name)} is no name of a variable; write letters, digits and _")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{shown(value)} is not text; write it in quotes")
    refuse_control_characters(str(value))
    return name, str(value)


def _profiles(value: Any) -> dict[str, dict[str, Any]]:
    return _each_by_name(mapping_of(value, "profiles; write {NAME: {max-model-len: 200000}}"), _flags)


def _flags(value: Any) -> dict[str, Any]:
    return _each_by_name(mapping_of(value, "flags; write {max-model-len: 200000}"), _flag)


def _each_by_name(value: dict[Any, Any], read: Callable[[Any], Any]) -> dict[str, Any]:
    named = {str(name): inner for name, inner in value.items()}
    return dict(zip(named, each(named.items(), read), strict=True))


def _flag(value: Any) -> Any:
    if value is None or (isinstance(value, list) and None in value):
        raise ValueError("has no value; write one, or none to leave the flag out")
    return value


def _modes(value: Any) -> dict[str, Any]:
    named = mapping_of(value, "modes; write {daily: [BACKEND, BACKEND]}")
    return {str(name): inner for name, inner in named.items()}


CommandLine = Annotated[str, Kind(_command_line, _TEXT, "command line", private=True)]
Environment = Annotated[
    Mapping[str, str], Kind(_environment, _TEXT_BY_NAME, "mapping of names to text", holds_any=True, private=True)
]
_PROFILES = {"type": "object", "additionalProperties": {"type": "object"}}
Profiles = Annotated[
    Mapping[str, Mapping[str, Any]], Kind(_profiles, _PROFILES, "mapping of names to flags", holds_any=True)
]
Modes = Annotated[Mapping[str, Any], Kind(_modes, {"type": "object"}, "mapping of names to backends", holds_any=True)]


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
