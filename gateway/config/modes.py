"""The modes of routes.yaml, and the one in force: which backends it parks, and how its profiles change others. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gateway.config.backends import ASSUMED_SLOTS
from gateway.config.fleet import keys_from_launch
from gateway.config.problems import Path, Report
from gateway.config.secret import shown
from gateway.config.snapshot import Backend, Mode, Node, Snapshot
from gateway.config.suggest import did_you_mean, listed
from gateway.launch.command import with_changes


def mode_of(snapshot: Snapshot, chosen: str | None) -> Mode | None:
    """The mode that is in force when `chosen` was chosen last: the first one if nothing was chosen, or the file has no
    mode of that name. None = the file has no modes."""
    return snapshot.modes.get(chosen or "") or next(iter(snapshot.modes.values()), None)


def renamed(before: Snapshot, after: Snapshot, chosen: str) -> str:
    """The name of the chosen mode after an edit of the file: another one if the edit did nothing but rename it."""
    was = before.modes.get(chosen)
    if was is None or chosen in after.modes:
        return chosen
    same = [mode.name for mode in after.modes.values() if mode == replace(was, name=mode.name)]
    new = [name for name in same if name not in before.modes]
    return new[0] if len(new) == 1 else chosen


def parked_by(mode: Mode | None, backend: Backend) -> str | None:
    """Why the mode parks the backend; None = it does not. A mode never parks a cloud: clouds run on no machine of the
    fleet. What requests start (`run: on_request`) runs beside every mode that leaves it memory."""
    if mode is None or backend.cloud or backend.run == "on_request" or backend.name in mode.backends:
        return None
    return f"outside mode '{mode.name}'"


def in_mode(snapshot: Snapshot, chosen: str | None) -> Snapshot:
    """The file's snapshot with its backends as they are in the mode in force; unchanged without modes."""
    mode = mode_of(snapshot, chosen)
    if mode is None:
        return snapshot
    backends = {name: _in_mode(mode, backend, snapshot.nodes) for name, backend in snapshot.backends.items()}
    hosted = {n: _with_host(b, snapshot.backends[b.on], backends[b.on]) for n, b in backends.items() if b.on}
    return replace(snapshot, backends=backends | hosted, mode=mode.name)


def _with_host(adapter: Backend, written: Backend, host: Backend) -> Backend:
    """The adapter as it is where the mode has changed its host, which was `written` so."""
    keys = ("url", "slots", "slots_assumed", "kv_pool", "context", "parked", "in_mode")
    follows = {key: getattr(host, key) for key in keys if getattr(host, key) != getattr(written, key)}
    return replace(adapter, **({"parked": host.parked, "in_mode": host.in_mode} | follows))


def _in_mode(mode: Mode, backend: Backend, nodes: Mapping[str, Node]) -> Backend:
    profile = mode.profiles.get(backend.name)
    if profile is not None:
        backend = with_profile(backend, profile, nodes.get(backend.nodes[0]) if backend.nodes else None)
    return replace(backend, parked=parked_by(mode, backend), in_mode=backend.name in mode.backends)


def with_profile(backend: Backend, profile: str, node: Node | None) -> Backend:
    """The backend as it is when it is launched with this profile. Only the keys that the profile changes differ: what
    is stated beside the command still counts for the others."""
    launch = backend.launch
    assert launch is not None, "profiles change a launch command (check_profiles)"
    command = with_changes(launch.parsed, backend.profiles[profile])
    changed = replace(launch, command=command.text, parsed=command)
    before, after = keys_from_launch(launch, node), keys_from_launch(changed, node)
    keys: dict[str, Any] = {key: after.get(key) for key in before.keys() | after.keys()}
    keys = {key: value for key, value in keys.items() if value != before.get(key)}
    if "slots" in keys:
        learned = backend.slots_assumed and before.get("slots") is not None  # `slots: auto`, which begins there
        keys["slots_assumed"] = keys["slots"] is None or learned
        keys["slots"] = keys["slots"] or ASSUMED_SLOTS[backend.server or backend.engine]
    if keys.get("url", "") is None:  # a port that is only known where the engine is started
        del keys["url"]
    return replace(backend, launch=changed, **keys)


def first_step(steps: tuple[tuple[str, ...], ...], backends: Mapping[str, Backend]) -> tuple[str, ...]:
    """The first step, without what the mode in force parks; if it parks every step, the first one as it is written."""
    for step in steps:
        if there := tuple(name for name in step if backends[name].parked is None):
            return there
    return steps[0] if steps else ()


def resolve_modes(written: Mapping[str, Any], backends: Mapping[str, Backend], report: Report) -> Mapping[str, Mode]:
    """The modes by name, in the file's order. A mode is a list of backends, or {backends, profiles}."""
    modes = {}
    for name, value in written.items():
        path: Path = ("modes", name)
        members: Path = (*path, "backends")
        if isinstance(value, list):
            value, members = {"backends": value}, path
        if not isinstance(value, Mapping) or not isinstance(value.get("backends"), list):
            report.error(
                path, "is not a list of backends", "write [BACKEND, ...] or {backends: [...], profiles: {...}}"
            )
            continue
        for key in value.keys() - {"backends", "profiles"}:
            report.error((*path, str(key)), f"unknown key '{key}'", did_you_mean(str(key), ("backends", "profiles")))
        names = _mode_backends(value["backends"], members, backends, report)
        refused = tuple(one for one in value["backends"] if one not in names)
        profiles = _mode_profiles(value.get("profiles"), path, names, refused, backends, report)
        modes[name] = Mode(name, names, profiles)
    used = {name for mode in modes.values() for name in mode.backends}
    for backend in backends.values() if modes else ():
        if backend.on is None and not backend.cloud and backend.run != "on_request" and backend.name not in used:
            report.warn(("backends", backend.name), "is in no mode, so it is always parked", "put it into a mode")
    return modes


def _mode_backends(names: list[Any], path: Path, backends: Mapping[str, Backend], report: Report) -> tuple[str, ...]:
    """The known backends of a mode, whose list stands at `path`."""
    known = []
    for i, name in enumerate(names):
        here: Path = (*path, i)
        if not isinstance(name, str):
            as_text = f'write "{name}"' if isinstance(name, int | float) and f"{name}" in backends else None
            report.error(here, f"{shown(name)} is no name of a backend", as_text or listed(backends))
        elif name not in backends:
            if not report.was_dropped("backends", name):
                report.error(here, f"unknown backend '{name}'", did_you_mean(name, backends) or listed(backends))
        elif backends[name].cloud:
            report.error(here, f"'{name}' is a cloud backend: it runs on no machine of yours", "take it out")
        elif (host := backends[name].on) is not None:
            report.error(here, f"'{name}' is a model of '{host}', and runs with it", f"write {host}")
        else:
            known.append(str(name))  # the name alone, without what the document knows of it
    return tuple(dict.fromkeys(known))


def _mode_profiles(
    written: Any,
    path: Path,
    names: tuple[str, ...],
    refused: tuple[Any, ...],
    backends: Mapping[str, Backend],
    report: Report,
) -> Mapping[str, str]:
    """The profiles of a mode with the backends `names`; those that it `refused` have been reported."""
    if written is None:
        return {}
    here: Path = (*path, "profiles")
    if not isinstance(written, Mapping):
        report.error(here, "is not a mapping of backends to profiles", "write {BACKEND: PROFILE}")
        return {}
    found = {}
    for backend, profile in written.items():
        if backend not in names:
            if backend not in refused:
                hint = did_you_mean(str(backend), names) or "put it among the mode's backends"
                report.error((*here, str(backend)), f"'{backend}' is not in this mode", hint)
        elif not isinstance(profile, str) or profile not in backends[backend].profiles:
            known = backends[backend].profiles
            hint = did_you_mean(str(profile), known) or f"there are {', '.join(known) or 'none'}"
            given = profile if isinstance(profile, str) else shown(profile).strip("'")
            report.error((*here, str(backend)), f"'{backend}' has no profile '{given}'", hint)
        else:
            found[str(backend)] = str(profile)  # the name alone, as above
    return found
