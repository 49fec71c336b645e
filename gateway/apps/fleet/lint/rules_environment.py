"""Rules about the engine's environment variables, and the Rust front end that one of them puts before it."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.apps.fleet.lint.catalog import Variable
from gateway.apps.fleet.lint.rules_container import DOCKER, is_loopback
from gateway.apps.fleet.lint.rust_front_end import RUST_SINCE, RUST_UNIFIED, RUST_VARIABLE, rust_front_end
from gateway.apps.fleet.lint.subject import Finding, Subject
from gateway.config.problems import Path


def _rows(one: Subject) -> Iterator[tuple[str, str, Variable, Path]]:
    """(name, value, row, place) of the variables that the catalogue knows; those of a profile are the command's."""
    if one.profile is not None:
        return
    by_name = {row.match: row for row in one.catalog.variables.values()}
    for name, value in one.env.items():
        if name in by_name:
            place: Path = ("launch", "env", name) if name in one.launch.env else one.place
            yield name, value, by_name[name], place


def env_no_op(one: Subject) -> Iterator[Finding]:
    """Variables that this vLLM does not read any more."""
    for name, _, row, place in _rows(one):
        if row.no_op_from is None or one.older_than(row.no_op_from):
            continue
        fix = f"take it out, and write {row.instead}" if row.instead else "take it out"
        if one.at_least(row.no_op_from):
            yield Finding("warning", f"{name} does nothing from vLLM {row.no_op_from} on", fix, row.source, place)
        else:
            message = f"{name} does nothing from vLLM {row.no_op_from} on, and this version is not known"
            yield Finding("note", message, fix, row.source, place)


def env_unknown(one: Subject) -> Iterator[Finding]:
    """Variables that never existed."""
    for name, _, row, place in _rows(one):
        if row.never:
            fix = f"take it out, and write {row.instead}" if row.instead else "take it out"
            yield Finding("warning", f"{name} was never a variable of vLLM", fix, row.source, place)


def env_crash(one: Subject) -> Iterator[Finding]:
    """Values under which the engine dies."""
    for name, value, row, place in _rows(one):
        if row.crashes_with is not None and value == row.crashes_with:
            yield Finding(one.claim(row.versions), f"{name}={value}: {row.why}", f"take out {name}", row.source, place)


def env_global(one: Subject) -> Iterator[Finding]:
    """Variables that choose kernels belong to one launch, not to the machine."""
    for name, _, row, place in _rows(one):
        if row.local:
            fix = f"keep {name} here, and out of /etc/environment"
            yield Finding("note", f"{name} belongs to this launch alone: {row.why}", fix, row.source, place)
    if one.profile is None and "/etc/environment" in one.docker.values("env-file"):
        message = "/etc/environment brings the variables of every other engine into this one"
        source = "what broke on two Sparks, exit code 7"
        yield Finding("warning", message, "take out --env-file /etc/environment", source, DOCKER)


def dev_mode(one: Subject) -> Iterator[Finding]:
    """vLLM's development endpoints, open to the LAN."""
    if one.profile is not None or one.env.get("VLLM_SERVER_DEV_MODE", "0").lower() not in ("1", "true"):
        return
    published = one.docker.ports
    inside = bool(published) and all(is_loopback(value.partition(":")[0]) for value in published)
    if inside or is_loopback(one.text("host")):
        return
    message = "VLLM_SERVER_DEV_MODE opens endpoints that put the engine to sleep, reset it and show its settings"
    place: Path = ("launch", "env") if "VLLM_SERVER_DEV_MODE" in one.launch.env else one.place
    yield Finding("warning", message, "take it out, or --host 127.0.0.1", "vLLM's documentation", place)


_PYTHON = f"take out {RUST_VARIABLE}, which leaves the Python front end"
_BY_ITSELF = frozenset({"auto", "none"})  # no parser's name


def rust_parsers(one: Subject) -> Iterator[Finding]:
    """Parsers that only the Python front end has."""
    if not one.rust_front_end:
        return
    table = rust_front_end()
    family = one.family
    best_tools = (family.tool_parser, *family.older_tool_parsers) if family is not None else ()
    best_thoughts = (family.reasoning_parser,) if family is not None else ()
    for flag, known, best in (
        ("tool-call-parser", table.tool_parsers, best_tools),
        ("reasoning-parser", table.reasoning_parsers, best_thoughts),
    ):
        given = one.text(flag)
        if given is None or given in known or given in _BY_ITSELF:
            continue
        other = next((name for name in best if name in known), None)
        fix = f"--{flag} {other}, or {_PYTHON}" if other else _PYTHON
        message = f"'{given}' is not registered in vLLM's Rust front end: it does not start"
        yield Finding("error", message, fix, f"vllm-rs {table.version}", one.at(flag))
    tools, thoughts = one.tools, one.text("reasoning-parser")
    if tools in RUST_UNIFIED and thoughts != tools and (one.whole or thoughts is not None):
        message = (
            f"'{tools}' reads calls and thoughts in one in vLLM's Rust front end: without it for both, every chat is "
        )
        message += "a 500"
        yield Finding(
            "error",
            message,
            f"--reasoning-parser {tools}",
            f"vllm-rs {table.version}, seen running",
            one.at("tool-call-parser"),
        )


def rust_flags(one: Subject) -> Iterator[Finding]:
    """Flags that the Rust front end does not implement."""
    if not one.rust_front_end:
        return
    table = rust_front_end()
    for flag, usual in table.refused_flags.items():
        if flag in one.flags and (usual is None or one.flags[flag] != usual):
            message = f"--{flag} is not implemented in vLLM's Rust front end: it does not start"
            yield Finding("error", message, f"take out --{flag}, or {_PYTHON}", f"vllm-rs {table.version}")


def rust_since(one: Subject) -> Iterator[Finding]:
    """A vLLM without that front end."""
    if one.rust_front_end and one.profile is None and one.older_than(RUST_SINCE):
        message = f"{RUST_VARIABLE} does nothing before vLLM {RUST_SINCE}"
        yield Finding("warning", message, "take it out, or a newer image", "vLLM's releases")
