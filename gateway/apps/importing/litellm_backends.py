"""LiteLLM's `model_list`: deployments that are the same server and model become one backend."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.apps.cloud.engine import ADDRESSES
from gateway.apps.importing.draft import DraftEntry, Notes, backend_name, tail_of, unique
from gateway.apps.importing.source import (
    SourceFile,
    count_of,
    data_of,
    is_true,
    listed,
    mapping,
    note_unread,
    text_of,
)
from gateway.apps.importing.source_values import (
    Secrets,
    host_words,
    is_no_key,
    literal,
    mark_cloud,
    request_params,
    url_of,
    variable_name,
)
from gateway.config.backends import MODEL_ENDPOINTS, SERVED
from gateway.config.problems import Path
from gateway.config.units import number_of

Kind = Literal["vllm", "ollama", "openai", "litellm"]

OLLAMA = "http://localhost:11434"


@dataclass(frozen=True, slots=True)
class Provider:
    """`model`: the name for requests. `url`: the default; None if it must be given (engine `litellm`: or the SDK has
    one). `key`: the variable that usually holds the key. `needs_url`: there is no default."""

    name: str
    engine: Kind
    model: str
    url: str | None = None
    key: str | None = None
    needs_url: bool = False


def provider_of(model: str, declared: str | None, *, has_url: bool) -> Provider | None:
    """The provider of LiteLLM's `model` (`provider/name`, or a bare name), where `declared` is `custom_llm_provider`.

    None if it cannot be inferred, or LiteLLM has no such provider.
    """
    prefix, slash, rest = model.partition("/")
    name = declared or (prefix if slash else None)
    plain = rest if slash and prefix == name else model
    if name in ("hosted_vllm", "vllm"):
        return Provider("vllm", "vllm", plain, needs_url=True)
    if name in ("ollama", "ollama_chat"):
        return Provider("ollama", "ollama", plain, OLLAMA)
    if name is not None and (found := _cloud_or_sdk(name, plain, model, has_url=has_url)) is not None:
        return found
    if has_url:  # LiteLLM treats such a name as a model of an OpenAI-compatible server
        return Provider("openai", "openai", model)
    bare = next(
        (found for found, starts in data_of("litellm")["bare"].items() if model.startswith(tuple(starts))), None
    )
    return _cloud_or_sdk(bare, model, f"{bare}/{model}", has_url=False) if bare is not None else None


def _cloud_or_sdk(name: str, plain: str, model: str, *, has_url: bool) -> Provider | None:
    known = data_of("litellm")
    cloud = known["clouds"].get(name)
    if name in known["compatible"] and (has_url or cloud is None):
        return Provider(name, "openai", plain, needs_url=True)
    if cloud is not None:
        if name == "fireworks_ai" and "/" not in plain:
            plain = f"accounts/fireworks/models/{plain}"  # the short form that LiteLLM completes
        return Provider(name, "openai", plain, cloud["url"], cloud["key"])
    if name in known["sdk_keys"] or name in known["sdk_only"]:
        whole = model if model.startswith(f"{name}/") else f"{name}/{plain}"
        return Provider(name, "litellm", whole, None, known["sdk_keys"].get(name), needs_url=name not in ADDRESSES)
    return None


_AUDIO = {"audio_transcription": "transcriptions", "audio_speech": "speech"}
_NO_CHAT = {"embedding": "embeddings", "rerank": "rerank"}
_SERVED = ("chat", "completion", "responses", *_NO_CHAT, *_AUDIO)
_MOST_USD = 1e12
_PER = {"1d": "day", "24h": "day", "7d": "week", "1w": "week", "30d": "month", "1mo": "month"}


@dataclass(slots=True)
class Deployment:
    """One entry of `model_list`. `keys` are its backend's; two with the same `identity` are one backend. `order`: the
    smaller ones are tried first."""

    path: Path
    group: str
    keys: dict[str, Any]
    params: dict[str, Any]
    order: float
    backend: str = ""

    @property
    def identity(self) -> tuple[Any, ...]:
        return tuple(self.keys.get(key) for key in ("engine", "url", "model", "api_key"))


@dataclass(slots=True)
class DeploymentReader:
    """Reads the entries of `model_list`; settings that cannot be kept are noted."""

    source: SourceFile
    notes: Notes
    keys: Secrets
    credentials: dict[str, dict[str, Any]] = field(default_factory=dict)

    def deployments(self) -> list[Deployment]:
        for item in listed(self.source.data.get("credential_list")):
            values = mapping(mapping(item).get("credential_values"))
            self.credentials[str(mapping(item).get("credential_name"))] = values
        items = enumerate(listed(self.source.data.get("model_list")))
        found = (self._deployment(("model_list", i), mapping(item)) for i, item in items)
        return _named([one for one in found if one is not None])

    def _deployment(self, path: Path, item: dict[str, Any]) -> Deployment | None:
        group, written = text_of(item.get("model_name")), mapping(item.get("litellm_params"))
        info = mapping(item.get("model_info"))
        inside: Path = (*path, "litellm_params")
        name = text_of(written.get("litellm_credential_name"))
        params = {**self.credentials.get(name or "", {}), **written}
        model = text_of(params.get("model"))
        if group is None or model is None:
            self.notes.left_out(path, "has no model_name, or no litellm_params.model")
            return None
        if "*" in model:
            hint = "write one backend for each model that is used; globs of names go into aliases.*.also"
            self.notes.left_out((*inside, "model"), "a backend has one model, not a pattern of them", hint)
            return None
        mode = text_of(info.get("mode")) or "chat"
        if mode not in _SERVED:
            self.notes.left_out((*path, "model_info", "mode"), f"'{mode}' is not served")
            return None
        written_url = params.get("api_base", params.get("base_url"))
        has_url = text_of(written_url) is not None
        url = url_of(written_url, (*inside, "api_base" if "api_base" in params else "base_url"), self.notes)
        provider = provider_of(model, text_of(params.get("custom_llm_provider")), has_url=has_url)
        if (has_url and url is None) or not self._is_usable(provider, url, model, (*inside, "model")):
            return None
        assert provider is not None
        keys = self._backend(provider, url, params, info, path, group)
        if (serves := _AUDIO.get(mode)) is not None and not self._as_audio(keys, serves, path):
            return None
        if (serves := _NO_CHAT.get(mode)) is not None and not self._without_chat(keys, serves, path):
            return None
        if keys.get("engine") == "openai" and not keys.get("cloud"):
            message = "taken for a server that speaks OpenAI's API and is no vLLM"
            self.notes.changed((*inside, "model"), message, "if it is a vLLM, delete the line engine: openai")
        self._note_rest(item, params, info, path)
        order = number_of(params.get("order"))
        return Deployment(path, group, keys, self._params(params, inside), order or 0.0)

    def _is_usable(self, provider: Provider | None, url: str | None, model: str, path: Path) -> bool:
        if provider is None:
            hint = "write the backend by hand: engine, url, model"
            self.notes.left_out(path, f"the provider of '{model}' is not known", hint)
            return False
        if provider.needs_url and url is None and provider.engine != "litellm":
            self.notes.left_out(path, f"'{model}' has no api_base", 'write url: "http://HOST:PORT"')
            return False
        if provider.needs_url and url is None:
            message = f"the SDK has no default address for '{provider.name}'"
            self.notes.to_do(path, message, "write its address as url: under the backend")
        return True

    def _backend(
        self, provider: Provider, url: str | None, params: dict[str, Any], info: dict[str, Any], path: Path, group: str
    ) -> dict[str, Any]:
        inside: Path = (*path, "litellm_params")
        keys: dict[str, Any] = {} if provider.engine == "vllm" else {"engine": provider.engine}
        address = url or provider.url
        if address is not None:
            keys["url"] = address
        mark_cloud(keys, (*inside, "api_base"), self.notes, known=url is None or provider.engine == "openai")
        keys["model"] = literal(provider.model)
        context = count_of(params.get("num_ctx")) or count_of(info.get("max_input_tokens"))
        if context is not None:
            keys["context"] = context
        if (slots := count_of(params.get("max_parallel_requests"))) is not None:
            keys["slots"] = slots
        if isinstance(vision := info.get("supports_vision"), bool):
            keys["vision"] = vision
        if info.get("supports_function_calling") is False:
            keys["tool_parser"] = "none"
        if (key := self._key(params, inside, provider, group)) is not None:
            keys["api_key"] = key
        self._money(keys, params, info, inside)
        return keys

    def _key(self, params: dict[str, Any], path: Path, provider: Provider, group: str) -> str | None:
        written = text_of(params.get("api_key"))
        usual = provider.key or variable_name(f"{group}_API_KEY")
        if written is None:
            return f"${{{provider.key}}}" if provider.key and provider.engine == "openai" else None
        return None if is_no_key(written) else self.keys.key(written, (*path, "api_key"), usual)

    def _money(self, keys: dict[str, Any], params: dict[str, Any], info: dict[str, Any], path: Path) -> None:
        costs = [number_of(params.get(k, info.get(k))) for k in ("input_cost_per_token", "output_cost_per_token")]
        if any(cost is not None for cost in costs):
            per_million = [max(0.0, round((cost or 0.0) * 1_000_000, 6)) for cost in costs]
            keys["price"] = {"input": per_million[0], "output": per_million[1]}
        most = number_of(params.get("max_budget"))
        if most is None:
            return
        per = _PER.get(text_of(params.get("budget_duration")) or "")
        if per is None or not 0 <= most < _MOST_USD:
            self.notes.left_out((*path, "max_budget"), "a budget is per day, week or month", "write budget: 5 USD/day")
        else:
            keys["budget"] = f"{f'{most:.6f}'.rstrip('0').rstrip('.')} USD/{per}"

    def _as_audio(self, keys: dict[str, Any], serves: str, path: Path) -> bool:
        """Make the keys those of an audio server. False (noted) outside of the LAN, where audio is not served."""
        if keys.get("cloud") or "url" not in keys or keys.get("engine") == "litellm":
            hint = "write an audio server of your own as engine: http"
            self.notes.left_out(
                (*path, "model_info", "mode"), "audio is served by engine http inside the LAN only", hint
            )
            return False
        for key in ("context", "vision", "tool_parser", "price", "budget"):
            keys.pop(key, None)
        keys |= {"engine": "http", "serves": [serves]}
        return True

    def _without_chat(self, keys: dict[str, Any], serves: str, path: Path) -> bool:
        """Make the keys those of a backend that serves this alone. False (noted) where its engine cannot."""
        engine = keys.get("engine", "vllm")
        if serves not in SERVED.get(engine, MODEL_ENDPOINTS):
            hint = "write a server of your own as engine: openai, or as a vLLM"
            self.notes.left_out((*path, "model_info", "mode"), f"engine {engine} does not serve {serves}", hint)
            return False
        for key in ("vision", "tool_parser"):
            keys.pop(key, None)
        keys["serves"] = [serves]
        return True

    def _params(self, params: dict[str, Any], path: Path) -> dict[str, Any]:
        known = data_of("litellm")["params"]
        found = {key: value for key, value in params.items() if key in known and value is not None}
        found = request_params(found, path, self.notes)
        further = request_params(mapping(params.get("extra_body")), (*path, "extra_body"), self.notes)
        return {**further, **found}

    def _note_rest(self, item: dict[str, Any], params: dict[str, Any], info: dict[str, Any], path: Path) -> None:
        """A note for each key that is not read above."""
        known = data_of("litellm")
        note_unread(self.notes, (*path, "litellm_params"), params, "litellm", "deployment", known["params"])
        note_unread(self.notes, path, item, "litellm", "item", like="deployment")
        odd = [key for key in info if not key.startswith("supports_")]
        note_unread(self.notes, (*path, "model_info"), odd, "litellm", "model_info", known["info_only"])
        vision = info.get("supports_vision")
        if not isinstance(vision, bool) and is_true(vision):
            self.notes.left_out((*path, "model_info", "supports_vision"), "is not true or false")


# -- one backend for each identity ------------------------------------------------------------------------------------


def _named(deployments: list[Deployment]) -> list[Deployment]:
    """The same deployments with the names of their backends: the group's name for the only deployment of one group,
    else the model's."""
    groups: dict[tuple[Any, ...], set[str]] = {}
    members: dict[str, set[tuple[Any, ...]]] = {}
    for one in deployments:
        groups.setdefault(one.identity, set()).add(one.group)
        members.setdefault(one.group, set()).add(one.identity)
    names: dict[tuple[Any, ...], str] = {}
    for one in deployments:
        if one.identity not in names:
            alone = len(groups[one.identity]) == 1 and len(members[one.group]) == 1
            wanted = one.group if alone and not is_glob(one.group) else tail_of(one.keys["model"])
            names[one.identity] = unique(backend_name(wanted), names.values(), *host_words(one.keys.get("url")))
        one.backend = names[one.identity]
    return deployments


def is_glob(name: str) -> bool:
    return any(c in name for c in "*?[")


def entries_of(deployments: list[Deployment], source: SourceFile) -> dict[str, DraftEntry]:
    """Backends by name. Of several deployments of a backend, the first that has a key decides it; its endpoints are
    those of all deployments together, and one that chats adds none."""
    entries: dict[str, DraftEntry] = {}
    served: dict[str, list[list[str]]] = {}
    for one in deployments:
        entry = entries.setdefault(one.backend, DraftEntry({}))
        entry.keys |= {key: value for key, value in one.keys.items() if key not in entry.keys}
        served.setdefault(one.backend, []).append(one.keys.get("serves", []))
        entry.comment += source.place(one.path, f", {one.group}")
    for name, lists in served.items():
        if all(lists):
            entries[name].keys["serves"] = list(dict.fromkeys(one for served_by in lists for one in served_by))
        else:
            entries[name].keys.pop("serves", None)
    for entry in entries.values():
        if len(entry.comment) > 1:
            first, *more = entry.comment
            entry.comment = [", ".join([first, *(line.partition(", ")[2] for line in more)])[:160]]
    return entries
