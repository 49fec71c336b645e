"""What a server is and what it serves, by its answers to a few GETs. Pure; gateway/cli/discovery.py sends them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gateway.engines.base import reported_window
from gateway.engines.ollama.models import INSTALLED, LOADED, model_entries, remote_models
from gateway.engines.openai.engine import card_window, model_cards
from gateway.importing.source import count_of, listed, mapping, text_of

Kind = Literal["vllm", "ollama", "openai", "gateway", "locked", "unknown"]

MODELS, OLLAMA_VERSION, SHOW = "/v1/models", "/api/version", "/api/show"
PATHS = (MODELS, OLLAMA_VERSION, INSTALLED, LOADED)
OLLAMA_WINDOW = 32768  # asked for where the model allows more: its memory grows with it


@dataclass(frozen=True, slots=True)
class Reply:
    """`body` is what its JSON says, None when it is none."""

    status: int
    body: Any = None


@dataclass(frozen=True, slots=True)
class Model:
    """`context` in tokens; None = not reported, as with `tools` and `vision`. `ready`: it need not be loaded first.
    `also`: further names of the same model there."""

    name: str
    context: int | None = None
    chat: bool = True
    ready: bool = True
    tools: bool | None = None
    vision: bool | None = None
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Server:
    """`url` is its root. Only vllm, ollama and openai serve something that can be routed to."""

    url: str
    kind: Kind
    models: tuple[Model, ...] = ()


def identify(url: str, replies: Mapping[str, Reply]) -> Server:
    """What answers at `url`, by the replies to PATHS (those that did not come are left out), and for Ollama to
    `SHOW:name` of its models."""
    models = replies.get(MODELS, Reply(0))
    if _is_ollama(replies):
        return Server(url, "ollama", tuple(_ollama_models(replies)))
    if models.status in (401, 403):
        return Server(url, "locked")
    cards = model_cards(models.body)
    if models.status != 200 or not isinstance(mapping(models.body).get("data"), list):
        return Server(url, "unknown")
    if any("x_gateway" in card for card in cards):
        return Server(url, "gateway")
    if any(card.get("owned_by") == "vllm" for card in cards):
        return Server(url, "vllm", _vllm_models(cards))
    return Server(url, "openai", tuple(_openai_model(card) for card in cards))


def tagged(replies: Mapping[str, Reply]) -> list[str]:
    """The names of the models that an Ollama runs itself, in its order."""
    installed = replies.get(INSTALLED, Reply(0)).body
    remote = remote_models(installed)
    return [name for name, _ in model_entries(installed) if name not in remote]


def _is_ollama(replies: Mapping[str, Reply]) -> bool:
    version = replies.get(OLLAMA_VERSION, Reply(0))
    return (
        version.status == 200 and "version" in mapping(version.body) and replies.get(INSTALLED, Reply(0)).status == 200
    )


def _vllm_models(cards: list[dict[str, Any]]) -> tuple[Model, ...]:
    """One model with all its names; an adapter (its `parent` is another card) is a model of its own."""
    base = [card for card in cards if card.get("parent") is None]
    adapters = [card for card in cards if card.get("parent") is not None]
    found = [_openai_model(card) for card in (*base[:1], *adapters)]
    if base:
        first = found[0]
        found[0] = Model(first.name, first.context, first.chat, also=tuple(str(card["id"]) for card in base[1:]))
    return tuple(found)


def _openai_model(card: dict[str, Any]) -> Model:
    name = str(card["id"])
    return Model(name, card_window(card), chat=not looks_like_embedder(name))


def looks_like_embedder(name: str) -> bool:
    """Does the name look like an embedding model's? Also true for other models that do not chat (reranking, speech)."""
    words = ("embed", "rerank", "bge-", "e5-", "minilm", "whisper", "-tts", "-asr", "colbert")
    return any(word in name.lower() for word in words)


def _ollama_models(replies: Mapping[str, Reply]) -> list[Model]:
    loaded = model_entries(replies.get(LOADED, Reply(0)).body)
    running = {name: reported_window(entry.get("context_length")) for name, entry in loaded}
    found = []
    for name in tagged(replies):
        shown = mapping(replies.get(f"{SHOW}:{name}", Reply(0)).body)
        able = [text_of(word) for word in listed(shown.get("capabilities"))]
        chat = (not able or "completion" in able) and not looks_like_embedder(name)
        most = next(
            (count_of(v) for k, v in mapping(shown.get("model_info")).items() if k.endswith(".context_length")), None
        )
        context = running.get(name) or min(most or OLLAMA_WINDOW, OLLAMA_WINDOW)
        tools, vision = ("tools" in able, "vision" in able) if able else (None, None)
        found.append(Model(name, context, chat, name in running, tools, vision))
    return found
