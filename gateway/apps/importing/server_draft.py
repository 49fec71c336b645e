"""A draft for discovered servers: a backend for each model, and suggested aliases with fallbacks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.apps.importing.discovery import FoundServer, Model
from gateway.apps.importing.draft import (
    Draft,
    DraftEntry,
    Notes,
    alias_name,
    backend_name,
    short_steps,
    tail_of,
    unique,
)
from gateway.apps.importing.source import data_of
from gateway.apps.importing.source_values import host_words, mark_cloud, variable_name
from gateway.config.document import read_document
from gateway.config.problems import Report
from gateway.launch.command import ServeCommand, parse
from gateway.launch.docker import read_docker_flags
from gateway.launch.families import family_of

Findings = Mapping[str, Any]  # as `probe_report` of gateway/apps/probing/report.py makes them

_QUANTISED = re.compile(r"[-_.](nvfp4|mxfp4|fp8|fp4|bf16|awq|gptq|gguf|mlx|int[48]|w\da\d+|[48]bit|q\d(_\w+)*)$", re.I)
_RANK = {"vllm": 0, "llamacpp": 1, "mlx": 1, "openai": 1, "ollama": 2}
_MODELS_MOST = 500  # of one server
_NAME_MOST, _ODD_SHOWN = 500, 60  # characters of a model's name: that can be used, that are shown of another one
_FALLBACKS = 2  # steps after the first that a suggested alias gets
_MISSING_PARSER = "--tool-call-parser"


def draft_of(servers: Iterable[FoundServer], exporters: Mapping[str, str] | None = None) -> Draft:
    """Backends, suggested aliases and commented blocks. `exporters`: host -> URL of its metrics exporter."""
    servers = list(servers)
    exporters = exporters or {}
    comments = data_of("init")
    draft = Draft(head=list(comments["head"]), server={"listen": "0.0.0.0:4000"})
    hosts = list(dict.fromkeys(_host(server.url) for server in servers if server.models))
    remote = [host for host in hosts if host not in ("localhost", "127.0.0.1", "::1")]
    names: dict[str, list[str]] = {}  # a model -> its backends
    for server in servers:
        for model in _usable(server):
            name = unique(backend_name(_model_key(model)), draft.backends, *host_words(server.url))
            draft.backends[name] = _backend(server, model, _host(server.url) if remote else None)
            if model.chat:
                names.setdefault(_model_key(model), []).append(name)
    if exporters and remote:
        draft.nodes = {
            backend_name(host): DraftEntry({"exporter": exporters[host]} if host in exporters else {}) for host in hosts
        }
    _suggest_aliases(draft, names, _further_names(servers))
    draft.after["backends"] = [
        "",
        *comments["backends"].splitlines(),
        *(line for server in servers for line in _left_out(server)),
    ]
    draft.tail = comments["tail"].splitlines()
    return draft


def short(model: str) -> str:
    """`RedHatAI/Qwen3.6-35B-A3B-NVFP4` -> `qwen3.6-35b-a3b`, `qwen3:8b` and `llama3:latest` -> `qwen3:8b`, `llama3`."""
    name = tail_of(model).lower().removesuffix(":latest")
    while (cut := _QUANTISED.sub("", name)) != name:
        name = cut
    return name


def _usable(server: FoundServer) -> list[Model]:
    """Its models that get a backend."""
    usable = [model for model in server.models if _can_be_written(model.name or model.label)]
    return usable[:_MODELS_MOST] if server.kind in _RANK else []


def _can_be_written(model: str) -> bool:
    """May the name stand in routes.yaml? `${NAME}` there is a variable of the gateway, which no server is to read."""
    return len(model) <= _NAME_MOST and model.isprintable() and bool(model.strip()) and "${" not in model


def _model_key(model: Model) -> str:
    return short(model.label or model.name)


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


def _backend(server: FoundServer, model: Model, host: str | None) -> DraftEntry:
    keys: dict[str, Any] = {} if server.kind == "vllm" else {"engine": server.kind}
    if server.server is not None:
        keys["server"] = server.server
    keys["url"] = server.url
    mark_cloud(keys, (), Notes("", lambda _: None), known=True)
    if host is not None:
        keys["node"] = backend_name(host)
    if model.name:
        keys["model"] = model.name
    entry = DraftEntry(keys)
    if not model.name:
        entry.comment.append("It lists what lies on its disk, not what it serves: name the one you mean as `model`.")
    if model.context is not None:
        keys["context"] = model.context
        entry.remarks["context"] = "asked of it with every request" if server.kind == "ollama" else "as it says"
    if model.slots is not None:
        keys["slots"] = model.slots
        entry.remarks["slots"] = "as it says"
    if server.kind == "vllm" and (recipe := recipe_for(model.name)) is not None:
        entry.comment.append(f"A launch block that works for this model: gateway init --recipe {recipe} -o -")
    if model.tools is False:
        keys["tool_parser"] = "none"
        entry.remarks["tool_parser"] = "Ollama says that its template has no tools"
    if model.vision is not None:
        keys["vision"] = model.vision
    return entry


def _left_out(server: FoundServer) -> list[str]:
    """Commented lines for a server that requires a key, or has models that get no backend: not loaded, or too many."""
    if server.kind == "locked":
        name = backend_name(f"locked-{'-'.join(host_words(server.url)[-1:])}")
        entry = f'#  {name}: {{url: "{server.url}", api_key: "${{{variable_name(name)}_KEY}}"}}'
        return [f"  # {server.url} wants a key.", entry]
    lines = [
        f"  # {server.url}: {other!r} has the weights of {model.name!r} and shares its runner and its slots. A backend "
        "of its own gives it its own prompt and parameters."
        for model in server.models
        for other in model.weights
        if _can_be_written(other)
    ]
    if server.unloaded and server.kind in _RANK:
        more = f"has {server.unloaded} more on its disk: what is not loaded gets no backend."
        lines.append(f"  # {server.url} {more}")
    left = len(server.models) - len(_usable(server))
    if left and server.kind in _RANK:
        odd = next((one.name for one in server.models if not _can_be_written(one.name or one.label)), "")
        why = f"a name like {odd[:_ODD_SHOWN]!r} cannot be written here" if odd else f"the first {_MODELS_MOST} do"
        lines.append(f"  # {server.url}: {left} of its {len(server.models)} models get no backend: {why}.")
    return lines


# -- aliases ----------------------------------------------------------------------------------------------------------


def _further_names(servers: list[FoundServer]) -> dict[str, tuple[str, ...]]:
    """Model -> its further names, except names of other models."""
    found: dict[str, tuple[str, ...]] = {}
    taken = {short(model.name) for server in servers for model in server.models}
    for server in servers:
        for model in server.models:
            fresh = tuple(name for name in model.also if short(name) not in taken and alias_name(name) == name)
            taken.update(short(name) for name in fresh)
            if fresh:
                found[_model_key(model)] = fresh
    return found


def _suggest_aliases(draft: Draft, groups: Mapping[str, list[str]], further: dict[str, tuple[str, ...]]) -> None:
    """An alias for each model: its servers are one step, the next best models are the later steps."""
    ranked = sorted(groups.values(), key=lambda group: _rank(draft, group))
    called = {group[0]: model for model, group in groups.items()}
    if not ranked:
        return
    for position, group in enumerate(ranked):
        behind = _fallbacks(draft, group, ranked[position + 1 :])
        name = alias_name(called[group[0]])
        keys: dict[str, Any] = {"use": short_steps([group, *behind])}
        if (also := further.get(name)) is not None:
            keys["also"] = list(also)
        draft.aliases[name] = DraftEntry(keys)
    if len(ranked) > 1 and "default" not in draft.aliases:
        chain = DraftEntry({"use": short_steps([ranked[0], *_fallbacks(draft, ranked[0], ranked[1:])])})
        chain.comment = ["One name for clients that want only one: the first that can serve."]
        draft.aliases = {"default": chain, **draft.aliases}


def _fallbacks(draft: Draft, group: list[str], later: Iterable[list[str]]) -> list[list[str]]:
    """The next best models, but of each Ollama only one: a slow load of a second one would push out the first."""
    used, found = _ollamas(draft, group), list[list[str]]()
    for one in later:
        if not (servers := _ollamas(draft, one)) & used:
            used |= servers
            found.append(one)
    return found[:_FALLBACKS]


def _ollamas(draft: Draft, group: list[str]) -> set[Any]:
    """The addresses of those of the backends that are models of an Ollama."""
    keys = (draft.backends[name].keys for name in group)
    return {one.get("url") for one in keys if one.get("engine") == "ollama"}


def _rank(draft: Draft, group: list[str]) -> tuple[int, int]:
    """Sort key: vLLM, then OpenAI-compatible servers, then Ollama; larger windows first."""
    keys = draft.backends[group[0]].keys
    return _RANK[keys.get("engine", "vllm")], -int(keys.get("context") or 0)


# -- findings of a probe ----------------------------------------------------------------------------------------------


def apply_findings(draft: Draft, found: Iterable[Findings]) -> None:
    """Declare the abilities that a probe has observed: tools, reasoning, thinking. The others are not declared."""
    for findings in found:
        entry = draft.backends[findings["backend"]]
        checks = findings["checks"]
        plain = checks.get("plain", {})
        if plain.get("result") != "yes":
            entry.comment.append(f"Asked for a short answer: {plain.get('seen', 'nothing came')}"[:150])
            continue
        _tools(entry, checks)
        _thinking(entry, checks)


def _tools(entry: DraftEntry, checks: Mapping[str, Mapping[str, Any]]) -> None:
    result, seen = _seen(checks, "tool_auto")
    family = family_of(entry.keys.get("model"))
    parser = family.tool_parser if family is not None else None
    is_vllm = entry.keys.get("engine", "vllm") == "vllm"
    if result == "yes" and is_vllm and parser is not None:
        entry.keys["tool_parser"] = parser
        entry.remarks["tool_parser"] = "by its family; a call came back as a call"
    elif result == "yes" and is_vllm:
        entry.keys["auto_tools"] = True
        entry.remarks["auto_tools"] = "a call came back as a call"
    elif result == "no" and is_vllm and _MISSING_PARSER in seen:
        entry.keys["tool_parser"] = "none"
        flag = parser or "PARSER"
        entry.remarks["tool_parser"] = f"start vLLM with --enable-auto-tool-choice --tool-call-parser {flag}"
    elif result in ("no", "mended"):
        entry.comment.append(f"Tools: {seen}"[:150])


def _thinking(entry: DraftEntry, checks: Mapping[str, Mapping[str, Any]]) -> None:
    result, seen = _seen(checks, "reasoning")
    family = family_of(entry.keys.get("model"))
    if result == "mended":
        entry.comment.append(f"Thoughts: {seen}"[:150])
    if result not in ("yes", "mended"):
        return
    if (
        result == "yes"
        and family is not None
        and family.reasoning_parser
        and entry.keys.get("engine", "vllm") == "vllm"
    ):
        entry.keys["reasoning_parser"] = family.reasoning_parser
        entry.remarks["reasoning_parser"] = "by its family; thoughts came in their own field"
    off = _seen(checks, "thinking_off")[0]
    if off in ("yes", "no"):
        entry.keys["thinking"] = "optional" if off == "yes" else "always"
        entry.remarks["thinking"] = (
            "it can be switched off" if off == "yes" else "it thought although it was asked not to"
        )


def _seen(checks: Mapping[str, Mapping[str, Any]], name: str) -> tuple[str, str]:
    check = checks.get(name, {})
    return str(check.get("result", "untested")), str(check.get("seen", ""))


# -- the recipes that come with the gateway (deploy/recipes) ----------------------------------------------------------


_ADDRESS = re.compile(r"(?m)^(  \w+: \{address: )([^,}]+)([^}\n]*)")
_SSH = re.compile(r", ssh: [^,}\n]+")  # the recipe's own: at another address it would be another machine's


def recipe_files() -> dict[str, Path]:
    """Name -> file: those at the root of a checkout, or the copies in a wheel."""
    packed = Path(__file__).parents[2] / "recipes"
    folder = packed if packed.is_dir() else packed.parents[1] / "deploy" / "recipes"
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def recipe_nodes(name: str) -> int:
    """The number of nodes of a recipe, each of which takes one address. Raises KeyError."""
    return len(_ADDRESS.findall(recipe_files()[name].read_text("utf-8")))


def recipe_text(name: str, hosts: Sequence[str] = ()) -> str:
    """A recipe as a routes.yaml. `hosts` replace the addresses of its nodes, in order; where ssh reaches those is not
    known, so their `ssh` is left out. Raises KeyError."""
    text = recipe_files()[name].read_text("utf-8")
    addresses = iter(hosts)

    def node(match: re.Match[str]) -> str:
        host = next(addresses, None)
        return match[0] if host is None else f"{match[1]}{host}{_SSH.sub('', match[3])}"

    return _ADDRESS.sub(node, text)


def recipe_for(model: str) -> str | None:
    """The name of the first recipe that launches this model, by the checkpoint's name; None if no recipe does."""
    return next((name for name, file in recipe_files().items() if model in _models(file)), None)


def _models(file: Path) -> set[str]:
    data = read_document(file.read_text("utf-8"), Report(file.name)) or {}
    launches = [backend.get("launch") or {} for backend in (data.get("backends") or {}).values()]
    commands = [_command(launch) for launch in launches]
    return {name for command in commands for name in (command.model, *command.served_names) if name}


def _command(launch: Mapping[str, Any]) -> ServeCommand:
    entrypoint = read_docker_flags(launch.get("docker")).entrypoint
    return parse(str(launch.get("command", "")), image=launch.get("image"), entrypoint=entrypoint)
