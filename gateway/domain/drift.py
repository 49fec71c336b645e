"""Where a backend differs from what routes.yaml declares of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.config.snapshot import Backend
from gateway.domain.backend import BackendState
from gateway.domain.capabilities import result_of
from gateway.domain.engine_traits import declared_server
from gateway.domain.facts import Observation
from gateway.domain.reason import quoting
from gateway.launch.command import with_changes


def drift(state: BackendState, now: float) -> list[str]:
    """The differences, one sentence each; empty = none, or nothing was observed yet. `now`: monotonic seconds."""
    backend, facts = state.backend, state.facts
    found = [
        *server_drift(backend, state.reported.server),
        *_row_drift(state),
        *_window_drift(state, now),
        *state.flag_drift,
        *_tool_drift(backend, facts.observed, facts.lacks),
    ]
    found += _thinking_drift(backend, facts.observed)
    media = {"images": ("vision", backend.vision), "audio": ("audio", backend.audio), "pdf": ("pdf", backend.pdf)}
    for what, (key, declared) in media.items():
        if declared and what in facts.lacks:
            found.append(f"{key}: true is declared, but it refused {'a PDF' if what == 'pdf' else what}")
    return found


def server_drift(backend: Backend, shown: str | None) -> list[str]:
    """`shown`: the server that the backend shows itself to be; None = it is not recognised."""
    if shown is None or shown == declared_server(backend):
        return []
    if backend.generic and backend.server is None and shown != "ollama":  # whose window is a key of the engine
        return []
    key, declared = ("engine", backend.engine) if backend.server is None else ("server", backend.server)
    return [f"{key}: {declared} is declared, it shows itself to be {shown}"]


def _row_drift(state: BackendState) -> list[str]:
    """What checks have seen against what its row of traits promises. vLLM's row depends on its flags, and the row of an
    unknown server promises nothing."""
    traits, observed = state.traits, state.facts.observed
    if traits.signs is None or traits.launch_flags:
        return []
    promised = {"json_schema": traits.enforces_schema is True, "tool_required": traits.calls_on_demand}
    return [
        quoting(f"{state.server} is known to pass {check}, this one does not", observed[check].seen)
        for check, holds in promised.items()
        if holds and result_of(observed, check) == "no"
    ]


def _window_drift(state: BackendState, now: float) -> list[str]:
    key, declared = _declared_window(state.backend)
    serves = state.reported.context
    if not declared:
        return []
    window = state.window(now) or 0
    if window < min(declared, serves or declared):
        serves = window  # the window that its refusals name
    if state.traits.takes_window and serves and serves > declared:
        return []
    if serves and serves in _windows_of_profiles(state.backend):
        return []
    return [f"{key}: {declared} is declared, it serves {serves}"] if serves and serves != declared else []


def _windows_of_profiles(backend: Backend) -> set[object]:
    """The windows, as vLLM reads them (128K), that its profiles give it: with which it was launched is not known."""
    if backend.launch is None:
        return set()
    command = backend.launch.parsed
    return {with_changes(command, changes).flags.get("max-model-len") for changes in backend.profiles.values()}


def _declared_window(backend: Backend) -> tuple[str, int | None]:
    """(where it is written, tokens): the flag of the launch block where there is one."""
    written = backend.launch.parsed.flags.get("max-model-len") if backend.launch is not None else None
    if type(written) is int and written > 0 and backend.context in (None, written):
        return "max-model-len", written
    return "context", backend.context


def _tool_drift(backend: Backend, observed: Mapping[str, Observation], lacks: Mapping[str, float]) -> list[str]:
    parser, found = backend.tool_parser, []
    if parser == "none":
        for check in ("tool_auto", "tool_required", "tool_named"):
            if result_of(observed, check) == "yes":
                return [f"tool_parser: none is declared, but it calls tools ({check})"]
    elif parser is not None:
        for check in ("tool_auto", "tool_required", "tool_named"):
            if (check != "tool_auto" or backend.auto_tools is not False) and result_of(observed, check) == "no":
                found.append(quoting(f"tool_parser: {parser} is declared, but {check}", observed[check].seen))
        if lacks.keys() & {"tools", "tool_parser"}:
            found.append(f"tool_parser: {parser} is declared, but it refused a request with tools")
    return found


def _thinking_drift(backend: Backend, observed: Mapping[str, Observation]) -> list[str]:
    declared = backend.thinking
    if declared is None:
        return []
    found = []
    for check, contradicted in (("thinking_on", ("optional", "always")), ("thinking_off", ("optional", "never"))):
        if declared in contradicted and result_of(observed, check) == "no":
            found.append(quoting(f"thinking: {declared} is declared, but {check}", observed[check].seen))
    if declared == "never" and result_of(observed, "thinking_on") == "yes":
        found.append("thinking: never is declared, but it thinks when a request asks for it")
    if declared == "always" and result_of(observed, "thinking_off") == "yes":
        found.append("thinking: always is declared, but a request can turn it off")
    return found
