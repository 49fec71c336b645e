"""Discovers servers for `gateway init`: a few GETs to each port, all ports at once, with short timeouts; and tells by
the answers what each is and serves."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args
from urllib.parse import urlsplit

import httpx

from gateway.apps.importing.source import count_of, listed, mapping, text_of
from gateway.config.snapshot import Engine
from gateway.domain.engine_traits import TRAITS, EngineTraits
from gateway.domain.recognition import owners_of, paths_to_look, recognise, value_at
from gateway.engines.base import reported_window
from gateway.engines.ollama.installed_models import INSTALLED, LOADED, model_entries, remote_models
from gateway.engines.openai.engine import model_cards
from gateway.transport.bounded import Oversized, async_client, fetch

Kind = Literal["vllm", "llamacpp", "mlx", "ollama", "openai", "gateway", "locked", "unknown"]

MODELS, OLLAMA_VERSION, SHOW = "/v1/models", "/api/version", "/api/show"
PATHS = (MODELS, OLLAMA_VERSION, INSTALLED, LOADED)
_BLOB = re.compile(r"(?m)^FROM \S{0,1000}\b(sha256[-:][0-9a-f]{64})\s*$")  # in the Modelfile that it shows
_SHOWN_MOST = 100_000  # characters of a Modelfile
OLLAMA_WINDOW = 32768  # asked for where the model allows more: its memory grows with it


@dataclass(frozen=True, slots=True)
class ServerReply:
    """`body`: the decoded JSON, None if it is none; `headers` with names in lower case."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


NO_REPLY = ServerReply(0)


@dataclass(frozen=True, slots=True)
class Model:
    """`context` in tokens; None if not reported, as with `slots`, `tools` and `vision`. `ready`: it need not be loaded
    first. `also`: further names of the same model there. `weights`: other models of an Ollama made of the same
    file, for which one runner answers. `label`: the name to call it by, where `name` is none: "" =
    requests carry no name, and go to the model that the server was started with."""

    name: str
    context: int | None = None
    chat: bool = True
    ready: bool = True
    tools: bool | None = None
    vision: bool | None = None
    also: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    slots: int | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class FoundServer:
    """`url` is its root. A `gateway`, and what is `locked` or `unknown`, serves nothing that can be routed to.
    `server`: the row of traits behind kind openai; None if it was not recognised. `unloaded`: models that it would have
    to load, or that only lie on its disk."""

    url: str
    kind: Kind
    models: tuple[Model, ...] = ()
    server: str | None = None
    unloaded: int = 0


def identify(url: str, replies: Mapping[str, ServerReply]) -> FoundServer:
    """The server at `url`, by the replies to PATHS and to `further_paths` (those that did not come are left out), and
    for Ollama to `SHOW:name` of its models."""
    models = replies.get(MODELS, NO_REPLY)
    if _is_ollama(replies):
        return FoundServer(url, "ollama", tuple(_ollama_models(replies)))
    if models.status in (401, 403):
        return FoundServer(url, "locked")
    cards = model_cards(models.body)
    name = _recognised(replies) if models.status == 200 else None
    if name is None and (models.status != 200 or not isinstance(mapping(models.body).get("data"), list)):
        return FoundServer(url, "unknown")
    if any("x_gateway" in card for card in cards):
        return FoundServer(url, "gateway")
    traits = TRAITS[name or "openai"]
    if name == "vllm":
        return FoundServer(url, "vllm", _vllm_models(cards, traits))
    found = _served(name, traits, cards, replies)
    unloaded = max(0, len(cards) - len(found))
    if name in get_args(Engine):
        return FoundServer(url, cast(Kind, name), found, unloaded=unloaded)
    return FoundServer(url, "openai", found, name, unloaded)


def further_paths(replies: Mapping[str, ServerReply]) -> list[str]:
    """The paths whose answers are needed, too, after these replies."""
    first = replies[MODELS]
    if first.status != 200:
        return []
    wanted = paths_to_look(owners_of(first.body), first.headers) if _recognised(replies) is None else []
    name = _recognised(replies)
    details = TRAITS[name].describes if name is not None else None
    wanted += [details.path] if details is not None else []
    return [path for path in wanted if path not in replies]


def _recognised(replies: Mapping[str, ServerReply]) -> str | None:
    first = replies[MODELS]
    answers = {path: reply.body for path, reply in replies.items() if reply.status == 200}
    return recognise(owners_of(first.body), first.headers, answers)


def _served(
    name: str | None, traits: EngineTraits, cards: list[dict[str, Any]], replies: Mapping[str, ServerReply]
) -> tuple[Model, ...]:
    """The models that need not be loaded first. A server that lists the files on its disk serves one model, the one it
    was started with, unless it tells which are loaded."""
    stated = replies.get(traits.describes.path, NO_REPLY).body if traits.describes is not None else None
    own = mapping(stated).get("data")
    described = {card.get("id"): card for card in map(mapping, own)} if isinstance(own, list) else {}
    if traits.loaded is not None:
        path, value = traits.loaded
        states = [(card, value_at(described.get(card["id"], card), path)) for card in cards]
        cards = [card for card, state in states if state == value or (state is None and not traits.lists_cache)]
    elif traits.lists_cache:
        only = cards[0] if len(cards) == 1 else {}
        return (Model(traits.default_model or "", label=str(only.get("id") or name)),)
    return tuple(_openai_model(card, traits, described.get(card["id"], stated)) for card in cards)


def tagged(replies: Mapping[str, ServerReply]) -> list[str]:
    """The names of the models that an Ollama runs itself, in its order."""
    installed = replies.get(INSTALLED, NO_REPLY).body
    remote = remote_models(installed)
    return [name for name, _ in model_entries(installed) if name not in remote]


def _is_ollama(replies: Mapping[str, ServerReply]) -> bool:
    version = replies.get(OLLAMA_VERSION, NO_REPLY)
    return (
        version.status == 200 and "version" in mapping(version.body) and replies.get(INSTALLED, NO_REPLY).status == 200
    )


def _vllm_models(cards: list[dict[str, Any]], traits: EngineTraits) -> tuple[Model, ...]:
    """One model with all its names; an adapter (its `parent` is another card) is a model of its own."""
    base = [card for card in cards if card.get("parent") is None]
    adapters = [card for card in cards if card.get("parent") is not None]
    found = [_openai_model(card, traits) for card in (*base[:1], *adapters)]
    if base:
        first = found[0]
        found[0] = Model(first.name, first.context, first.chat, also=tuple(str(card["id"]) for card in base[1:]))
    return tuple(found)


def _openai_model(card: dict[str, Any], traits: EngineTraits, described: Any = None) -> Model:
    """`described`: the model's entries in other answers of the server."""
    name, details = str(card["id"]), traits.describes
    windows = [value_at(card, path) for path in traits.window]
    windows += [value_at(described, details.window)] if details is not None and details.window is not None else []
    slots = value_at(described, details.slots) if details is not None and details.slots is not None else None
    return Model(name, reported_window(*windows), not looks_like_embedder(name), slots=reported_window(slots))


def looks_like_embedder(name: str) -> bool:
    """Does the name look like an embedding model's? Also true for other models that do not chat (reranking, speech)."""
    words = ("embed", "rerank", "bge-", "e5-", "minilm", "whisper", "-tts", "-asr", "colbert")
    return any(word in name.lower() for word in words)


def _ollama_models(replies: Mapping[str, ServerReply]) -> list[Model]:
    loaded = model_entries(replies.get(LOADED, NO_REPLY).body)
    running = {name: reported_window(entry.get("context_length")) for name, entry in loaded}
    found = []
    for names in _runners(replies, running).values():
        first, *others = names
        name = first[0]
        shown = mapping(replies.get(f"{SHOW}:{name}", NO_REPLY).body)
        able = [text_of(word) for word in listed(shown.get("capabilities"))]
        chat = (not able or "completion" in able) and not looks_like_embedder(name)
        most = next(
            (count_of(v) for k, v in mapping(shown.get("model_info")).items() if k.endswith(".context_length")), None
        )
        context = running.get(name) or min(most or OLLAMA_WINDOW, OLLAMA_WINDOW)
        tools, vision = ("tools" in able, "vision" in able) if able else (None, None)
        weights = tuple(same[0] for same in others)
        found.append(Model(name, context, chat, name in running, tools, vision, tuple(first[1:]), weights))
    return found


def _runners(replies: Mapping[str, ServerReply], running: Mapping[str, Any]) -> dict[str, list[list[str]]]:
    """The models of an Ollama by the file of weights that they were made of; of each model all its names. A loaded one
    comes first."""
    ours, models = set(tagged(replies)), dict[str, list[str]]()
    for name, entry in model_entries(replies.get(INSTALLED, NO_REPLY).body):
        if name in ours:
            models.setdefault(text_of(entry.get("digest")) or name, []).append(name)
    runners: dict[str, list[list[str]]] = {}
    for names in models.values():
        names.sort(key=lambda name: name not in running)
        shown = [mapping(replies.get(f"{SHOW}:{name}", NO_REPLY).body).get("modelfile") for name in names]
        found = (_BLOB.search((text_of(text) or "")[:_SHOWN_MOST]) for text in shown)
        runners.setdefault(next((match[1] for match in found if match), names[0]), []).append(names)
    for group in runners.values():
        group.sort(key=lambda names: names[0] not in running)
    return runners


# Where vLLM, Ollama, LM Studio (1234), text-generation-inference (3000), SGLang (30000) and other servers listen by
# default or by habit; the gateway's own 4000 is not among them.
PORTS = (1234, 3000, 8000, 8001, 8002, 8003, 8009, 8015, 8080, 8888, 11434, 30000)
EXPORTER = 9835  # the port of a Spark's exporter
CONNECT, READ = 1.0, 4.0  # seconds
AT_ONCE = 32  # ports at a time
ANSWER_MOST = 4 * 1024 * 1024  # bytes of an answer
SHOWING = 20.0  # seconds for the details of one server's models
_ROUNDS = 3  # of questions to one server: what it is, what only that server shows, what it tells of itself
_MOST_SHOWN = 40  # models of one Ollama whose details are read

OnSeen = Callable[[FoundServer], None]


def targets(hosts: Iterable[str], ports: Iterable[int]) -> list[str]:
    """Root URLs to look at: each host with all ports, one that names a port (or is a URL) alone. Raises ValueError
    for what is none of these."""
    ports = list(ports)
    found: list[str] = []
    for host in hosts:
        wrong = ValueError(f"'{host}' is no host: write HOST, HOST:PORT or http://HOST:PORT")
        try:
            parts = urlsplit(host if "://" in host else f"//{host}")
            name, port = parts.hostname, parts.port
        except ValueError:
            raise wrong from None
        scheme = parts.scheme or "http"
        if not name or scheme not in ("http", "https") or parts.path.rstrip("/") not in ("", "/v1") or " " in host:
            raise wrong
        shown = f"[{name}]" if ":" in name else name
        given = [port] if port is not None else [443] if scheme == "https" else ports
        found += [f"{scheme}://{shown}:{one}" for one in given]
    return list(dict.fromkeys(found))


async def scan(urls: list[str], on_seen: OnSeen) -> tuple[list[FoundServer], dict[str, str]]:
    """(the servers that answered, in the order of the URLs; host -> URL of its metrics exporter, where it has one).
    `on_seen` is called for each server when it has answered."""
    limits = asyncio.Semaphore(AT_ONCE)
    timeout = httpx.Timeout(READ, connect=CONNECT)
    async with async_client(timeout) as client:

        async def identified(url: str) -> FoundServer | None:
            async with limits:
                server = await _identify(client, url)
            if server is not None:
                on_seen(server)
            return server

        seen = await asyncio.gather(*(identified(url) for url in urls))
        servers = [server for server in seen if server is not None]
        hosts = list(dict.fromkeys(urlsplit(server.url).hostname or "" for server in servers))
        found = await asyncio.gather(*(_exporter(client, host) for host in hosts))
    return servers, {host: url for host, url in zip(hosts, found, strict=True) if url is not None}


async def _identify(client: httpx.AsyncClient, url: str) -> FoundServer | None:
    """The server at `url`; None if nothing answers."""
    first = await _ask(client, "GET", url + MODELS)
    if first is None:
        return None
    replies = {MODELS: first}
    paths = [path for path in PATHS if path != MODELS]
    for _ in range(_ROUNDS):
        asked = await asyncio.gather(*(_ask(client, "GET", url + path) for path in paths))
        for path, reply in zip(paths, asked, strict=True):
            replies[path] = reply or NO_REPLY
        paths = further_paths(replies)
    until = asyncio.get_running_loop().time() + SHOWING
    for name in tagged(replies)[:_MOST_SHOWN]:
        if asyncio.get_running_loop().time() > until:
            break
        shown = await _ask(client, "POST", url + SHOW, json={"model": name})
        if shown is not None:
            replies[f"{SHOW}:{name}"] = shown
    return identify(url, replies)


async def _ask(client: httpx.AsyncClient, method: str, url: str, **options: Any) -> ServerReply | None:
    try:
        response = await fetch(client, method, url, most=ANSWER_MOST, seconds=CONNECT + READ, **options)
    except Oversized as error:
        return ServerReply(error.status)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError):
        return None
    try:
        return ServerReply(response.status_code, response.json(), response.headers)
    except (ValueError, RecursionError):
        return ServerReply(response.status_code)


async def _exporter(client: httpx.AsyncClient, host: str) -> str | None:
    """The URL of the host's metrics exporter, where one answers at its usual port; else None."""
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{EXPORTER}/metrics"
    reply = await _ask(client, "GET", url)
    return url if reply is not None and reply.status == 200 else None
