"""Rules about vLLM's Rust front end, which ends the start where it is given what only the Python one knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gateway.apps.fleet.lint.catalog import Catalog
from gateway.apps.fleet.lint.subject import Remark, Rule, Subject
from gateway.config.snapshot import Snapshot
from gateway.launch.rust_front_end import BODY_VARIABLE, SINCE, UNIFIED, VARIABLE, body_most, rust_front_end

_PYTHON = f"take out {VARIABLE}, which leaves the Python front end"
_BY_ITSELF = frozenset({"auto", "none"})  # no parser's name


def rust_parsers(one: Subject, _: Catalog) -> Iterator[Remark]:
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
        yield Remark("error", message, fix, f"vllm-rs {table.version}", one.at(flag))
    tools, thoughts = one.tools, one.text("reasoning-parser")
    if tools in UNIFIED and thoughts != tools and (one.whole or thoughts is not None):
        message = (
            f"'{tools}' reads calls and thoughts in one in vLLM's Rust front end: without it for both, every chat is "
        )
        message += "a 500"
        yield Remark(
            "error",
            message,
            f"--reasoning-parser {tools}",
            f"vllm-rs {table.version}, seen running",
            one.at("tool-call-parser"),
        )


def rust_flags(one: Subject, _: Catalog) -> Iterator[Remark]:
    """Flags that the Rust front end does not implement."""
    if not one.rust_front_end:
        return
    table = rust_front_end()
    for flag, usual in table.refused_flags.items():
        if flag in one.flags and (usual is None or one.flags[flag] != usual):
            message = f"--{flag} is not implemented in vLLM's Rust front end: it does not start"
            yield Remark("error", message, f"take out --{flag}, or {_PYTHON}", f"vllm-rs {table.version}", one.place)


def rust_since(one: Subject, _: Catalog) -> Iterator[Remark]:
    """A vLLM without that front end."""
    if one.rust_front_end and one.profile is None and one.older_than(SINCE):
        message = f"{VARIABLE} does nothing before vLLM {SINCE}"
        yield Remark("warning", message, "take it out, or a newer image", "vLLM's releases", one.place)


def rust_body(snapshot: Snapshot, subjects: Mapping[str, Subject], _: Catalog, __: bool) -> Iterator[Remark]:
    """Requests that the gateway takes and the Rust front end does not."""
    most = snapshot.server.max_body
    for name, one in subjects.items():
        if not one.rust_front_end or (takes := body_most(one.env)) is None or takes >= most:
            continue
        message = f"takes requests up to {takes:,} bytes (its Rust front end's limit), the gateway up to {most:,}"
        message += " (server.max_body): a larger one goes to the next backend, or is refused"
        fix = f"{BODY_VARIABLE}={most} in launch.env"
        yield Remark("note", message, fix, "vLLM's list of variables", ("backends", name, *one.place))


RULES: Mapping[str, Rule] = {"rust-parsers": rust_parsers, "rust-flags": rust_flags, "rust-since": rust_since}
