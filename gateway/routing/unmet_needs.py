"""A backend's missing abilities, as text for the operator, with the launch flag that is missing."""

from __future__ import annotations

from gateway.domain.backend import BackendState
from gateway.domain.capabilities import PARSER_FREE, Capabilities
from gateway.launch.families import family_of
from gateway.routing.needs import Lack, Needs


def describe_lack(lack: Lack, needs: Needs, state: BackendState, able: Capabilities) -> str:
    """The lack as a phrase to follow the backend's name."""
    if lack == "tools":
        return _tools(state)
    if lack == "tool_choice":
        return _tool_choice(needs, state, able)
    if lack == "thinking":
        return _thinking(needs, state, able)
    if lack == "json_schema":
        if able.sources["json_schema"] == "engine":
            return f"cannot be made to keep to a JSON schema: {state.server} ignores response_format"
        return "did not keep to a JSON schema when it was checked"
    if lack == "logprobs":
        return f"has no logprobs to give: it is a {state.server}"
    if lack == "pdf":
        return "takes no PDF: send its text, or ask a backend that reads PDFs (pdf: true)"
    if lack == "continues":
        return f"does not continue a text that the client began: a {state.server} begins its answer anew"
    if lack == "hosted":
        return "runs no tools of its own and reads no files (a server that does: responses: hosted in routes.yaml)"
    flags = "--language-model-only or --limit-mm-per-prompt" if state.traits.launch_flags else ""
    started = f", or was started with {flags}" if flags else ""
    return f"takes no {lack} (it serves a text model{started})"


def parser_flags(state: BackendState) -> str:
    """The flags that a vLLM with this model needs to call tools."""
    backend = state.backend
    family = family_of(state.checkpoint)
    parser = backend.tool_parser if backend.tool_parser not in (None, "none") else None
    parser = parser or (family.tool_parser if family is not None else None) or "PARSER"
    return f"--enable-auto-tool-choice --tool-call-parser {parser}"


def _tools(state: BackendState) -> str:
    if not state.traits.launch_flags:
        return "cannot call tools: serve a model that can"
    return f"cannot call tools: start vLLM with {parser_flags(state)}"


def _tool_choice(needs: Needs, state: BackendState, able: Capabilities) -> str:
    source = able.sources["named" if needs.tools == "named" else "required"]
    if source == "engine":
        return f"cannot be made to call a tool: engine {state.server} ignores tool_choice"
    if source == "observed":
        return "did not make a required tool call when it was checked"
    if not state.traits.launch_flags:
        return "cannot be made to call a tool (tool_parser: none)"
    since = ".".join(map(str, PARSER_FREE))
    return f"cannot be made to call a tool: start vLLM (since {since}) with {parser_flags(state)}"


def _thinking(needs: Needs, state: BackendState, able: Capabilities) -> str:
    source = able.sources["thinking"]
    what = "cannot think" if needs.thinking == "on" else "cannot be kept from thinking"
    if source == "declared":
        return f"{what} (thinking: {state.backend.thinking} in routes.yaml)"
    if source == "family":
        family = family_of(state.checkpoint)
        return f"{what}: its model ({family.name if family else state.model}) has no switch for it"
    if source == "observed" and needs.thinking == "on" and state.traits.launch_flags:
        family = family_of(state.checkpoint)
        parser = (family.reasoning_parser if family else None) or "PARSER"
        return f"{what}: it did not when it was checked; start vLLM with --reasoning-parser {parser}"
    if source == "observed":
        return f"{what}: it did not obey when it was checked; is thinking_switch in routes.yaml right?"
    return f"{what}: its model refused to"
