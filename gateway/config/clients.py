"""Clients: each has a key of its own, and its patterns name aliases that exist."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

from gateway.config.problems import Path, Report
from gateway.config.schema import Section, built, has_all
from gateway.config.secret import Secret
from gateway.config.snapshot import Alias, Client, Tasks, Users
from gateway.config.suggest import did_you_mean

# `printf %s "$KEY" | sha256sum` and `echo "$KEY" | sha256sum` of a variable that is not set.
_OF_NOTHING = frozenset(hashlib.sha256(text).hexdigest() for text in (b"", b"\n", b"\r\n", b" "))


def resolve_clients(file: Section, aliases: Mapping[str, Alias], report: Report) -> Mapping[str, Client]:
    clients = {n: _client(n, section, aliases, report) for n, section in file.clients.items()}
    owners: dict[str, str] = {}
    for client in clients.values():
        for field, key in (("key", client.key_sha256), ("old_key", client.old_key_sha256)):
            if key and (owner := owners.setdefault(key, client.name)) != client.name:
                report.error(("clients", client.name, field), f"the same key as client '{owner}'", "each needs its own")
    return clients


def _client(name: str, section: Section, aliases: Mapping[str, Alias], report: Report) -> Client:
    path: Path = ("clients", name)
    tasks = _tasks(section.tasks, path, aliases, report)
    old = _digest_of(section.old_key, (*path, "old_key"), report) if section.old_key is not None else None
    # Without a key anybody could be that client.
    has_key = has_all(section, ("key",), path, report, 'write key: "${NAME}" or key: "sha256:<64 hex digits>"')
    key = _digest_of(section.key, (*path, "key"), report) if has_key else None
    users = built(Users, section.users) if section.users is not None else None
    client = built(Client, section, name=name, key_sha256=key, old_key_sha256=old, tasks=tasks, users=users)
    if not client.aliases:
        report.warn((*path, "aliases"), "an empty list: this client may use nothing")
    for i, pattern in enumerate(section.aliases or ()):
        alone = Client(name, aliases=(pattern,))
        if not any(alone.may_use(n) for n in aliases) and not report.was_dropped("aliases", pattern):
            owner = next((a.name for a in aliases.values() if pattern in a.also), None)
            hint = f"that is a further name of '{owner}'" if owner else did_you_mean(pattern, aliases)
            report.warn((*path, "aliases", i), f"'{pattern}' matches no alias", hint)
    return client


def _digest_of(key: Secret, path: Path, report: Report) -> str:
    """Hex SHA-256 of the key."""
    text = key.reveal()
    scheme, separator, digest = text.partition(":")
    if separator and scheme.lower() == "sha256":
        if not re.fullmatch(r"[0-9a-fA-F]{64}", digest):
            report.error(path, "'sha256:' must be followed by 64 hex digits")
        if digest.lower() in _OF_NOTHING:
            report.error(path, "the SHA-256 of nothing", "the variable was empty when it was made")
        return digest.lower()
    if text.lower() == "none":
        report.error(path, "'none' is what programs without a key send", "write a key that nobody can guess")
    if not text.isascii() or " " in text:
        report.error(path, "holds a space or a character outside ASCII", "no header can carry it")
    return hashlib.sha256(text.encode()).hexdigest()


def _tasks(section: Section | None, path: Path, aliases: Mapping[str, Alias], report: Report) -> Tasks | None:
    hint = "name the alias that answers the task calls"
    if section is None or not has_all(section, ("alias",), (*path, "tasks"), report, hint):
        return None
    names = [*aliases, *(n for alias in aliases.values() for n in alias.also)]
    if not any(fnmatchcase(section.alias, name) for name in names) and not report.was_dropped("aliases", section.alias):
        report.error((*path, "tasks", "alias"), f"unknown alias '{section.alias}'", did_you_mean(section.alias, names))
    return built(Tasks, section)
