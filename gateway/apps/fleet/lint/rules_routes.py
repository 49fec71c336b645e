"""Rules about routes.yaml as a whole: what backends share, and what aliases ask of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from urllib.parse import urlsplit

from gateway.apps.control.memory.model_files import ModelFiles
from gateway.apps.control.memory.plan import mode_conflicts
from gateway.apps.fleet.lint.catalog import Catalog
from gateway.apps.fleet.lint.rules_container import is_loopback
from gateway.apps.fleet.lint.rust_front_end import BODY_VARIABLE, body_most
from gateway.apps.fleet.lint.subject import Finding, Subject
from gateway.config.aliases import HERMES_WINDOW, first_window
from gateway.config.snapshot import Alias, Backend, Snapshot
from gateway.domain.engine_traits import traits_of
from gateway.launch.docker import published_ports
from gateway.launch.families import family_of


@dataclass(frozen=True)
class DeclaredFleet:
    """The whole file in front of its rules. `subjects`: by backend, without profiles; `in_container`: the gateway
    itself runs in one; `files`: the models on this machine."""

    snapshot: Snapshot
    subjects: Mapping[str, Subject]
    catalog: Catalog
    in_container: bool = False
    files: Mapping[str, ModelFiles] = field(default_factory=dict)


PROMPT = 4096  # tokens that an answer's limit has to leave for the prompt


def same_url(fleet: DeclaredFleet) -> Iterator[Finding]:
    """Two models at one address: the second one is never reached."""
    found: dict[tuple[tuple[str, str, int], str], list[Backend]] = defaultdict(list)
    for backend in fleet.snapshot.engines.values():
        if backend.url is not None and traits_of(backend).launch_flags and not backend.cloud:
            found[backend.origin, backend.api_path].append(backend)
    taken = {backend.origin[1:] for backend in fleet.snapshot.backends.values() if backend.url is not None}
    for group in found.values():
        first = group[0]
        for second in group[1:]:
            if not _differ(first, second, fleet.subjects):
                continue
            message = (
                f"'{first.name}' has the same address and another model ({first.model}): one vLLM serves one model"
            )
            fix = f"a port of its own; `on: {first.name}` if it is an adapter or a further name there"
            where = ("backends", second.name) if _is_launched(second) else ("backends", second.name, "url")
            if not _run_together(first, second, fleet.snapshot):
                yield Finding("note", f"{message}, so only one of them may run", fix, "", where)
            elif _is_launched(first) and _is_launched(second):
                fix = _own_port(second, fleet.subjects.get(second.name), taken)
                yield Finding("error", f"{message}, and the second does not start", fix, "", where)
            else:
                yield Finding("warning", message, fix, "", where)


def _own_port(backend: Backend, subject: Subject | None, taken: set[tuple[str, int]]) -> str:
    """The flag that gives a backend a port that no other has, which is `taken` from then on."""
    _, host, port = backend.origin
    free = next(one for one in count(port + 1) if (host, one) not in taken)
    taken.add((host, free))
    pairs = map(published_ports, subject.docker.ports if subject is not None else ())
    inside = next((inner for outer, inner in pairs if outer == port and inner), None)
    return f"--port {free}" if inside is None else f"-p {free}:{inside} in launch.docker"


def _is_launched(backend: Backend) -> bool:
    """Whether its URL follows from a launch command."""
    return backend.launch is not None and backend.launch.starts


def _differ(first: Backend, second: Backend, subjects: Mapping[str, Subject]) -> bool:
    if first.model is None or second.model is None or first.model == second.model:
        return False
    names = [set(subjects[b.name].names) for b in (first, second) if b.name in subjects]
    return not (len(names) == 2 and {first.model, second.model} <= names[0] | names[1] and names[0] & names[1])


def _run_together(first: Backend, second: Backend, snapshot: Snapshot) -> bool:
    if snapshot.modes:
        return any({first.name, second.name} <= set(mode.backends) for mode in snapshot.modes.values())
    return first.run == second.run == "always"


def url_localhost(fleet: DeclaredFleet) -> Iterator[Finding]:
    """In a container, localhost is the container."""
    if not fleet.in_container:
        return
    for backend in fleet.snapshot.backends.values():
        host = urlsplit(backend.url or "").hostname
        if is_loopback(host):
            message = f"the gateway runs in a container, where {host} is the container itself"
            fix = "the machine's address in the LAN (hostname -I), or the container's name on a shared network"
            where = ("backends", backend.name) if _is_launched(backend) else ("backends", backend.name, "url")
            yield Finding("warning", message, fix, "guide to vLLM on a Spark, 11", where)


def agent_window(fleet: DeclaredFleet) -> Iterator[Finding]:
    """A window that agents refuse to start with."""
    for alias in fleet.snapshot.aliases.values():
        window = None if alias.implicit else first_window(alias.steps, fleet.snapshot.backends)
        if window is not None and window < HERMES_WINDOW:
            message = f"a window of {window:,} tokens: Hermes will not start below {HERMES_WINDOW:,}"
            fix = "65536 as --max-model-len (Ollama: as context), or another first step; fine for other clients"
            yield Finding("warning", message, fix, "Hermes Agent", ("aliases", alias.name))


def answer_window(fleet: DeclaredFleet) -> Iterator[Finding]:
    """An answer's limit that leaves no room for the prompt."""
    for alias in fleet.snapshot.aliases.values():
        asked = alias.params.get("max_tokens")
        wanted = max(alias.min_max_tokens or 0, asked if isinstance(asked, int) else 0)
        for backend in _members(alias, fleet.snapshot):
            if wanted and backend.context is not None and backend.context < wanted + PROMPT:
                message = (
                    f"answers of {wanted:,} tokens leave no room for a prompt in the {backend.context:,} of "
                    f"'{backend.name}'"
                )
                fix = "a larger window there, or a smaller limit"
                yield Finding("warning", message, fix, "", ("aliases", alias.name))


def text_only_step(fleet: DeclaredFleet) -> Iterator[Finding]:
    """An image that would be tried on a model that takes text only."""
    stated: set[str] = set()
    seeing = {name for name, one in fleet.subjects.items() if "image" in (one.facts.media or ())}
    for alias in fleet.snapshot.aliases.values():
        members = _members(alias, fleet.snapshot)
        sees = [one for one in members if (one.name in seeing if one.vision is None else one.vision)]
        for backend in members if sees else ():
            facts = fleet.subjects[backend.name].facts if backend.name in fleet.subjects else None
            if facts is None or facts.media != () or backend.vision is not None or backend.name in stated:
                continue
            stated.add(backend.name)
            family = family_of(backend.model)
            named = family.name if family is not None else f"'{backend.model}'"
            message = f"an image for alias '{alias.name}' is tried here, and {named} takes text only"
            yield Finding("note", message, "vision: false", facts.source_of("media"), ("backends", backend.name))


def _members(alias: Alias, snapshot: Snapshot) -> list[Backend]:
    return [snapshot.backends[name] for step in alias.steps for name in step]


def ollama_beside(fleet: DeclaredFleet) -> Iterator[Finding]:
    """Ollama loads models as it is asked, into memory that a vLLM beside it counts on."""
    engines = [backend for backend in fleet.snapshot.backends.values() if traits_of(backend).launch_flags]
    busy = {node for backend in engines for node in backend.nodes}
    stated: set[tuple[str, str, int]] = set()
    for backend in fleet.snapshot.backends.values():
        shared = [node for node in backend.nodes if node in busy]
        if not traits_of(backend).loads_on_demand or not shared or backend.origin in stated:
            continue
        stated.add(backend.origin)
        message = f"Ollama beside vLLM on {shared[0]}: each further model it loads is taken from the same memory"
        source = "what broke on two Sparks"
        yield Finding("note", message, "OLLAMA_MAX_LOADED_MODELS=1 for Ollama", source, ("backends", backend.name))


def audio_beside(fleet: DeclaredFleet) -> Iterator[Finding]:
    """Speech on a machine whose GPU is a part of an engine over two machines."""
    engines = [backend for backend in fleet.snapshot.backends.values() if traits_of(backend).launch_flags]
    spread = {node for backend in engines if len(backend.nodes) > 1 for node in backend.nodes}
    for backend in fleet.snapshot.backends.values():
        shared = [node for node in backend.nodes if node in spread]
        if not traits_of(backend).endpoints and shared:
            message = (
                f"speech beside an engine over two machines ({shared[0]}): when one crashes, its GPU memory may "
                "stay taken until the machine is rebooted"
            )
            fix = "run it elsewhere, on the CPU, or while that engine is down"
            yield Finding("note", message, fix, "what broke on two Sparks", ("backends", backend.name))


def rust_body(fleet: DeclaredFleet) -> Iterator[Finding]:
    """Requests that the gateway takes and the Rust front end does not."""
    most = fleet.snapshot.server.max_body
    for name, one in fleet.subjects.items():
        if not one.rust_front_end or (takes := body_most(one.env)) is None or takes >= most:
            continue
        message = f"takes requests up to {takes:,} bytes (its Rust front end's limit), the gateway up to {most:,}"
        message += " (server.max_body): a larger one goes to the next backend, or is refused"
        fix = f"{BODY_VARIABLE}={most} in launch.env"
        yield Finding("note", message, fix, "vLLM's list of variables", ("backends", name, *one.place))


def mode_conflict(fleet: DeclaredFleet) -> Iterator[Finding]:
    """A mode that cannot run: its backends do not fit into the memory of one node together."""
    for mode, node in mode_conflicts(fleet.snapshot, fleet.catalog.memory, fleet.files):
        beside = " and ".join(name for name in node.order if name not in node.failed)
        message = f"{', '.join(node.order)} cannot run together on {node.name}: {node.reason}"
        fix = f"take {' and '.join(node.refused)} out of modes.{mode}"
        fix += f", or {beside}" if beside else ""
        yield Finding("error", message, fix, "gateway fleet plan", ("modes", mode))
