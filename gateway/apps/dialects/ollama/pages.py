"""What Ollama's API tells of models: the aliases, as models that are there; and what it does to them, refused."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from gateway.api.answering import BODY_MOST, Question, Style, answer
from gateway.api.models import first_window, is_listed
from gateway.apps.dialects.fields import expected, value_in
from gateway.apps.dialects.ollama.answer import error_of, time_text
from gateway.apps.dialects.ollama.exchange import TAG, asked_alias
from gateway.config.snapshot import Alias
from gateway.domain.body import read_fields
from gateway.domain.engine_traits import traits_of
from gateway.errors import GatewayError
from gateway.launch.families import family_of
from gateway.routing.alias_status import load_of
from gateway.runtime.gateway import Gateway

VERSION = "0.33.0"  # of the API that is spoken; editors ask for one that is new enough
NEVER = 4102444800.0  # 2100: when a model that stays is said to be unloaded
_REFUSED = ("pull", "push", "create", "copy", "delete")
_STYLE = Style(error=lambda error, _: (error_of(error.envelope()), []))


def router(gateway: Gateway) -> APIRouter:
    routes = APIRouter()

    def add(path: str, method: str, doc: str, work: Callable[[Question], Awaitable[Any]]) -> None:
        async def made(asked: Question) -> bytes:
            return msgspec.json.encode(await work(asked))

        async def page(request: Request) -> Response:
            return await answer(gateway, request, "ollama_" + path, made, _STYLE)

        page.__doc__ = doc
        routes.add_api_route(f"/api/{path}", page, methods=[method])

    async def version(_: Question) -> Any:
        return {"version": VERSION}

    async def tags(asked: Question) -> Any:
        return {"models": [_entry(gateway, alias) for alias in _aliases(gateway, asked)]}

    async def running(asked: Question) -> Any:
        loaded = [a for a in _aliases(gateway, asked) if load_of(a, gateway.fleet.states) == "loaded"]
        held = {"size_vram": 0, "expires_at": time_text(NEVER)}
        return {"models": [{**_entry(gateway, alias), **held} for alias in loaded]}

    async def show(asked: Question) -> Any:
        return _shown(gateway, await _named(gateway, asked))

    async def refuse(_: Question) -> Any:
        what = "The models are the aliases of the gateway's routes.yaml: its operator adds and removes them there."
        raise GatewayError("input_unsupported", what)

    add("version", "GET", "The version of Ollama's API.", version)
    add("tags", "GET", "The aliases that the client may use, as Ollama's models.", tags)
    add("ps", "GET", "The aliases that have a loaded model.", running)
    add("show", "POST", "What one alias can do.", show)
    for name in _REFUSED:
        add(name, "DELETE" if name == "delete" else "POST", "Refused: routes.yaml says which models there are.", refuse)
    return routes


def _aliases(gateway: Gateway, asked: Question) -> list[Alias]:
    client = asked.exchange.caller.identify(gateway.snapshot)
    return [a for a in gateway.snapshot.aliases.values() if client.may_use(a) and is_listed(gateway, a)]


async def _named(gateway: Gateway, asked: Question) -> Alias:
    fields = read_fields(await asked.exchange.read_body(BODY_MOST))
    model = value_in(fields.get("model", fields.get("name")), "model")
    if not isinstance(model, str):
        raise expected("model", "the name of an alias", model)
    return asked_alias(gateway.snapshot, asked.exchange.caller, model)[1]


def _entry(gateway: Gateway, alias: Alias) -> dict[str, Any]:
    name = alias.name if ":" in alias.name else alias.name + TAG  # clients look for the name with its tag
    told: dict[str, Any] = {"name": name, "model": name, "modified_at": time_text(gateway.started), "size": 0}
    told |= {"digest": sha256(name.encode()).hexdigest(), "details": _details(gateway, alias)}
    return {**told, "capabilities": _capabilities(gateway, alias), "context_length": first_window(gateway, alias) or 0}


def _shown(gateway: Gateway, alias: Alias) -> dict[str, Any]:
    family = _details(gateway, alias)["family"]
    facts: dict[str, Any] = {"general.architecture": family, "general.basename": alias.name}
    if window := first_window(gateway, alias):
        facts[f"{family}.context_length"] = window
    shown = {"license": "", "modelfile": "", "parameters": "", "template": "", "details": _details(gateway, alias)}
    listed = {"model_info": facts, "capabilities": _capabilities(gateway, alias)}
    return {**shown, **listed, "modified_at": time_text(gateway.started)}


def _details(gateway: Gateway, alias: Alias) -> dict[str, Any]:
    state = gateway.fleet.states[alias.steps[0][0]]
    known = family_of(state.checkpoint)
    family = re.sub(r"[^a-z0-9]", "", known.name.lower()) if known is not None else state.backend.engine
    sizes = {"parameter_size": "", "quantization_level": ""}
    return {"parent_model": "", "format": "", "family": family, "families": [family], **sizes}


def _capabilities(gateway: Gateway, alias: Alias) -> list[str]:
    """What the first step can do, in Ollama's words. A tool call that may work is not hidden."""
    states, now = [gateway.fleet.states[name] for name in alias.steps[0]], time.monotonic()
    if not any(traits_of(state.backend).chats for state in states):
        return ["embedding"]
    known = [state.capabilities(now) for state in states]
    has = {
        "tools": any(one.tools is not False for one in known),
        "vision": any(one.images for one in known),
        "thinking": any(one.thinking in ("optional", "always") for one in known),
    }
    return ["completion", *(name for name, there in has.items() if there)]
