"""The launch of a backend: the keys that follow from its command, its profiles, and what starts and stops it.

A launch block is the one source of what it says. A key that is written beside it may repeat it; one that differs is an
error that names both lines.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gateway.config.problems import Path, Report
from gateway.config.secret import ExpandedText
from gateway.config.snapshot import Backend, Launch, Node
from gateway.launch.command import ServeCommand, with_changes
from gateway.launch.families import takes_images
from gateway.launch.words import split

# Key of a backend -> what of the command line it follows from, for messages.
_SOURCES = {
    "url": "--port",
    "model": "the model",
    "context": "--max-model-len",
    "slots": "--max-num-seqs",
    "tool_parser": "--tool-call-parser",
    "auto_tools": "--enable-auto-tool-choice",
    "reasoning_parser": "--reasoning-parser",
    "vision": "--limit-mm-per-prompt",
    "serves": "--runner",
}


def keys_from_launch(launch: Launch, node: Node | None) -> dict[str, Any]:
    """The keys of a backend that its launch command decides, by their names in the file. Empty where the command starts
    no vLLM; a value that is only known where the engine is started (`${PORT}`) gives no key. What a flag that is not
    written means is known only without `--config`, whose file may hold it."""
    command = launch.parsed
    if not command.is_vllm:
        return {}
    flags = command.flags
    whole = not has_config(command)
    parser = flags.get("tool-call-parser")
    auto = flags.get("enable-auto-tool-choice", False if whole else None)
    named = command.served_names if whole or "served-model-name" in flags else ()
    found: dict[str, Any] = {
        "url": _url(launch, node) if whole or "port" in flags else None,
        "model": named[0] if named else None,
        "context": _count(flags.get("max-model-len")),
        "slots": _count(flags.get("max-num-seqs")),
        "tool_parser": parser or ("none" if whole else None),
        "auto_tools": bool(parser) and auto if whole else auto,
        "reasoning_parser": flags.get("reasoning-parser") or ("none" if whole else None),
        "vision": _vision(command),
        "serves": _pooled(flags),
    }
    return {key: value for key, value in found.items() if value is not None and "$" not in str(value)}


def has_config(command: ServeCommand) -> bool:
    """Whether the engine reads further flags from a file."""
    return bool(command.flags.get("config"))


def _pooled(flags: Mapping[str, Any]) -> tuple[str, ...] | None:
    """What an engine serves that generates no text; None = it is not started as such a one."""
    if flags.get("runner") != "pooling" and flags.get("task") not in ("embed", "embedding", "score", "classify"):
        return None
    classifies = flags.get("convert") == "classify" or flags.get("task") in ("score", "classify")
    return ("rerank", "score") if classifies else ("embeddings", "rerank", "score")


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _vision(command: ServeCommand) -> bool | None:
    """Whether the engine takes images: by its flags, else by its model's family; None = not known."""
    if command.flags.get("language-model-only"):
        return False
    limits = command.flags.get("limit-mm-per-prompt")
    allowed = limits.get("image") if isinstance(limits, Mapping) else None
    if isinstance(allowed, Mapping):
        allowed = allowed.get("count")
    if isinstance(allowed, int) and not isinstance(allowed, bool):
        return allowed > 0
    return takes_images(command.model)


def _url(launch: Launch, node: Node | None) -> str | None:
    """Where the engine listens, seen from the LAN; None where the node has no address."""
    if node is None or node.address is None:
        return None
    port = launch.parsed.port
    if port is None:
        return None
    before = "https://" if launch.parsed.flags.get("ssl-certfile") else "http://"
    after = f":{launch.host_port(port)}"
    if ":" in node.address:
        before, after = f"{before}[", f"]{after}"
    url = before + node.address + after
    return ExpandedText(url, f"{before}{node.address}{after}") if isinstance(node.address, ExpandedText) else url


def _by_a_flag(key: str, command: ServeCommand) -> bool:
    """Whether a flag decides this key; what only the model's family suggests may be stated otherwise."""
    return key != "vision" or bool(command.flags.keys() & {"language-model-only", "limit-mm-per-prompt"})


def check_stated(
    name: str, written: Mapping[str, Any], followed: Mapping[str, Any], launch: Launch, report: Report
) -> None:
    """An error for each key that is written beside a launch block and differs from what follows from its command.
    `written`: the keys of the backend's section as they were read."""
    source: Path = ("backends", name, "launch", "command")
    where = f"{report.file}:{report.line(source)}"
    for key, from_command in followed.items():
        stated = written.get(key)
        if stated is None or not _by_a_flag(key, launch.parsed) or _same(key, stated, from_command, launch.parsed):
            continue
        here: Path = ("backends", name, key)
        given = _shown(report.written_as(here, stated))
        message = f"{given} here, but {_SOURCES[key]} in launch.command ({where}) says {_shown(from_command)}"
        report.error(here, message, f"remove '{key}': it follows from the command")


def _same(key: str, stated: Any, from_command: Any, command: ServeCommand) -> bool:
    if key == "url":
        base = str(stated).rstrip("/").removesuffix("/v1").rstrip("/").lower()
        other = str(from_command).lower()
        if has_config(command) and "ssl-certfile" not in command.flags:  # its file may hold the certificate
            return base.partition("://")[2] == other.partition("://")[2]
        return base == other
    if key == "model":
        return stated in command.served_names
    if key == "serves":
        return set(stated) <= set(from_command)
    return bool(stated == from_command)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def check_profiles(backend: Backend, report: Report) -> None:
    """The profiles of a backend: they change a launch command, with flags that exist and values that vLLM takes."""
    path: Path = ("backends", backend.name, "profiles")
    launch = backend.launch
    if launch is None or not launch.starts:
        if not backend.profiles:
            return
        report.error(path, "profiles change a launch command, and there is none", "write launch: {command: ...}")
        return
    for name, changes in backend.profiles.items():
        if not name.isprintable() or not 0 < len(name) <= 128:  # it stands in scripts that root runs
            report.error((*path, name), "a name that cannot be used", "write 1 to 128 printable characters")
        before = set(launch.parsed.mistakes)
        changed = with_changes(launch.parsed, changes)
        for mistake in changed.mistakes:
            if mistake in before:
                continue
            tell = report.error if mistake.severity == "error" else report.warn
            says_words = (mistake.fix or "").startswith("-")  # what to write; other fixes say what to do
            tell((*path, name), mistake.message, f"write {mistake.fix}" if says_words else mistake.fix)


def check_start(backend: Backend, keys: Collection[str], nodes: Mapping[str, Any], report: Report) -> None:
    """The commands that start and stop a backend; and keys of `run: on_request` where nothing starts it, or nothing
    stops it. `keys`: those that are written; `nodes`: the sections of the declared nodes."""
    path: Path = ("backends", backend.name)
    for key, line in (("start", backend.start), ("stop", backend.stop)):
        words, problem = split(line or "")
        if line is not None and (problem is not None or not words):
            hint = "write the program and its arguments, as for a shell"
            report.error((*path, key), problem or "has no word", hint)
        elif line is not None and backend.cloud:
            report.warn((*path, key), "a cloud backend is never started or stopped", f"remove '{key}'")
    if backend.run != "on_request":
        for key in ("stop_after", "min_run"):
            if key in keys and not report.was_dropped(*path, "run"):
                report.warn((*path, key), f"has no effect with run: {backend.run}", "write run: on_request")
        return
    here: Path = (*path, "run")
    if backend.cloud:
        report.warn(here, "a cloud backend is never started or stopped", "remove 'run'")
        return
    if backend.health.every is None:
        report.warn(here, "it is not probed, so nothing shows whether it has started", "remove health.every")
    launch = backend.launch
    reached = bool(backend.nodes) and all(name in nodes and nodes[name].ssh is not None for name in backend.nodes)
    by_unit = launch is not None and launch.starts and reached
    fix = "write the command, or a launch block and `ssh` under its nodes"
    if backend.start is None and not by_unit:
        report.warn(here, "no request can start it: it has no `start` command", fix)
    elif backend.stop is None and not by_unit:
        report.warn(here, "it is started and never stopped: it has no `stop` command", fix)
    is_known = launch is not None and (launch.parsed.is_vllm or launch.resident)
    if backend.nodes and not is_known and backend.engine != "ollama":
        hint = "measure it: launch: {resident: 12GiB}"
        report.warn(here, "what it holds is not known: it is started only where nothing else runs", hint)
