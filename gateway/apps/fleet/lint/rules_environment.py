"""Rules about the engine's environment variables."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.apps.fleet.lint.catalog import Catalog
from gateway.apps.fleet.lint.catalog_rows import Variable
from gateway.apps.fleet.lint.rules_container import DOCKER, is_loopback
from gateway.apps.fleet.lint.subject import Remark, Subject, named
from gateway.config.problems import Path


def _rows(one: Subject, catalog: Catalog) -> Iterator[tuple[str, str, Variable, Path]]:
    """(name, value, row, place) of the variables that the catalogue knows; those of a profile are the command's."""
    if one.profile is not None:
        return
    by_name = {row.match: row for row in catalog.variables.values()}
    for name, value in one.env.items():
        if name in by_name:
            place: Path = ("launch", "env", name) if name in one.launch.env else one.place
            yield name, value, by_name[name], place


def env_no_op(one: Subject, catalog: Catalog) -> Iterator[Remark]:
    """Variables that this vLLM does not read any more."""
    for name, _, row, place in _rows(one, catalog):
        if row.no_op_from is None or one.older_than(row.no_op_from):
            continue
        fix = f"take it out, and write {row.instead}" if row.instead else "take it out"
        if one.at_least(row.no_op_from):
            yield Remark("warning", f"{name} does nothing from vLLM {row.no_op_from} on", fix, row.source, place)
        else:
            message = f"{name} does nothing from vLLM {row.no_op_from} on, and this version is not known"
            yield Remark("note", message, fix, row.source, place)


def env_unknown(one: Subject, catalog: Catalog) -> Iterator[Remark]:
    """Variables that never existed."""
    for name, _, row, place in _rows(one, catalog):
        if row.never:
            fix = f"take it out, and write {row.instead}" if row.instead else "take it out"
            yield Remark("warning", f"{name} was never a variable of vLLM", fix, row.source, place)


def env_crash(one: Subject, catalog: Catalog) -> Iterator[Remark]:
    """Values under which the engine dies."""
    for name, value, row, place in _rows(one, catalog):
        if row.crashes_with is not None and value == row.crashes_with:
            yield Remark(one.claim(row.versions), f"{name}={value}: {row.why}", f"take out {name}", row.source, place)


def env_global(one: Subject, catalog: Catalog) -> Iterator[Remark]:
    """Variables that choose kernels belong to one launch, not to the machine."""
    for name, _, row, place in _rows(one, catalog):
        if row.local:
            fix = f"keep {name} here, and out of /etc/environment"
            yield Remark("note", f"{name} belongs to this launch alone: {row.why}", fix, row.source, place)
    if one.profile is None and "/etc/environment" in one.docker.values("env-file"):
        message = "/etc/environment brings the variables of every other engine into this one"
        source = "what broke on two Sparks, exit code 7"
        yield Remark("warning", message, "take out --env-file /etc/environment", source, DOCKER)


def dev_mode(one: Subject, _: Catalog) -> Iterator[Remark]:
    """vLLM's development endpoints, open to the LAN."""
    if one.profile is not None or one.env.get("VLLM_SERVER_DEV_MODE", "0").lower() not in ("1", "true"):
        return
    published = one.docker.ports
    inside = bool(published) and all(is_loopback(value.partition(":")[0]) for value in published)
    if inside or is_loopback(one.text("host")):
        return
    message = "VLLM_SERVER_DEV_MODE opens endpoints that put the engine to sleep, reset it and show its settings"
    place: Path = ("launch", "env") if "VLLM_SERVER_DEV_MODE" in one.launch.env else one.place
    yield Remark("warning", message, "take it out, or --host 127.0.0.1", "vLLM's documentation", place)


RULES = named(env_no_op, env_unknown, env_crash, env_global, dev_mode)
