"""llama-swap's config: each model becomes a backend at the address that llama-swap would start it on.

Commands are not converted: every model comes with a note to run it as a service, to write commands with which the
gateway starts and stops it (`run: on_request`), or to keep llama-swap underneath. Facts about the format: its
`config.example.yaml`.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

from gateway.apps.importing.draft import (
    Draft,
    DraftEntry,
    Notes,
    alias_name,
    backend_name,
    check_further_names,
    tail_of,
    unique,
)
from gateway.apps.importing.source import (
    SourceFile,
    count_of,
    counterparts,
    is_true,
    listed,
    mapping,
    note_unread,
    text_of,
)
from gateway.apps.importing.source_values import (
    Secrets,
    host_words,
    literal,
    mark_cloud,
    request_params,
    url_of,
    variable_name,
)
from gateway.config.problems import Path
from gateway.launch.command import parse
from gateway.launch.docker import DockerRun, is_docker_run, read_docker_run
from gateway.launch.words import split

START_PORT = 5800  # llama-swap's default of the first ${PORT}
_MACRO = re.compile(r"\$\{([A-Za-z0-9_-]+)\}")
_ROUNDS = 8  # nested macros are expanded so many times

_STRIPS = ("stripParams", "strip_params")  # the second is its name in older files


def convert(source: SourceFile) -> Draft:
    notes = source.notes()
    keys = Secrets(notes)
    converter = _Converter(source, notes, keys)
    converter.models()
    converter.peers()
    converter.clients()
    note_unread(notes, (), source.data, "llama-swap", "top")
    check_further_names(converter.draft, notes)
    converter.draft.notes = notes.in_order()
    return converter.draft


class _Converter:
    def __init__(self, source: SourceFile, notes: Notes, keys: Secrets) -> None:
        self.source, self.notes, self.keys = source, notes, keys
        self.draft = Draft()
        self.macros = {name: text for name, value in source.section("macros").items() if (text := text_of(value))}

    # -- models ---------------------------------------------------------------------------------------------------

    def models(self) -> None:
        models = self.source.section("models")
        ports = self._ports(models)
        for name, value in models.items():
            self._model(name, mapping(value), ports.get(name))

    def _ports(self, models: dict[str, Any]) -> dict[str, int]:
        """Model -> its automatic port: ascending in the order of names, for models that use `${PORT}`."""
        port = count_of(self.source.data.get("startPort")) or START_PORT
        found = {}
        for name in sorted(models):
            model = mapping(models[name])
            used = self._expanded(f"{model.get('cmd', '')} {model.get('proxy', '')}", name, model, None)
            if "${PORT}" in used:
                found[name] = port
                port += 1
        return found

    def _expanded(self, text: str, name: str, model: dict[str, Any], port: int | None) -> str:
        """`text` with its macros expanded; `${env.X}` and unknown macros stay."""
        known = {**self.macros, **{k: t for k, v in mapping(model.get("macros")).items() if (t := text_of(v))}}
        known |= {"MODEL_ID": name} | ({"PORT": str(port)} if port is not None else {})
        for _ in range(_ROUNDS):
            expanded = _MACRO.sub(lambda match: known.get(match[1], match[0]), text)
            if expanded == text:
                break
            text = expanded
        return text

    def _model(self, name: str, model: dict[str, Any], port: int | None) -> None:
        path: Path = ("models", name)
        command = self._expanded(text_of(model.get("cmd")) or "", name, model, port)
        proxy = self._expanded(text_of(model.get("proxy")) or "http://localhost:${PORT}", name, model, port)
        if "${PORT}" in proxy:
            self.notes.left_out(path, "neither cmd nor proxy says where it listens", "write url under the backend")
            return
        if (url := url_of(proxy, (*path, "proxy"), self.notes)) is None:
            return
        keys = backend_keys(command)
        engine = {"engine": keys.pop("engine")} if "engine" in keys else {}
        entry = DraftEntry({**engine, "url": url, **keys, "run": "on_demand"})
        if (upstream := text_of(model.get("useModelName"))) is not None:
            entry.keys["model"] = literal(upstream)
        if (slots := count_of(model.get("concurrencyLimit"))) is not None:
            entry.keys["slots"] = slots
        check = text_of(model.get("checkEndpoint"))
        if check is not None and not engine and check.startswith("/") and check != "/health":
            entry.keys["health"] = {"path": check}
        mark_cloud(entry.keys, (*path, "proxy"), self.notes, known=False)
        backend = unique(backend_name(name), self.draft.backends, *host_words(url))
        entry.comment = self.source.place(path)
        self.draft.backends[backend] = entry
        self._note_start(path, url, port)
        if listed(model.get("env")):
            self.notes.to_do((*path, "env"), "the variables are not taken over", "set them where cmd is run")
        if count_of(model.get("ttl")):
            kind, message, hint = counterparts("llama-swap", "top")["globalTTL"]
            self.notes.add(kind, (*path, "ttl"), message, hint)
        self._aliases(name, model, backend)
        note_unread(self.notes, path, model, "llama-swap", "model")

    def _note_start(self, path: Path, url: str, port: int | None) -> None:
        automatic = " (an automatic port)" if port is not None and f":{port}" in url else ""
        message = f"so far the gateway neither starts nor stops it; it is expected at {url}{automatic}"
        hint = (
            "run its cmd as a service there; or give the backend run: on_request with start and stop; "
            "or keep llama-swap and give the backend llama-swap's URL"
        )
        self.notes.to_do((*path, "cmd"), message, hint)

    def _aliases(self, name: str, model: dict[str, Any], backend: str) -> None:
        origins: dict[str, Path] = {}
        for i, value in enumerate(listed(model.get("aliases"))):
            if (text := text_of(value) or text_of(mapping(value).get("id"))) is not None:
                origins.setdefault(text, ("models", name, "aliases", i))
        also = list(origins)
        filters = mapping(model.get("filters"))
        path: Path = ("models", name, "filters")
        forced = request_params(mapping(filters.get("setParams")), (*path, "setParams"), self.notes)
        for key in filters:
            if key in _STRIPS:
                self.notes.left_out((*path, key), "what a client says is not taken away")
            elif key not in ("setParams", "setParamsByID"):
                self.notes.left_out((*path, key))
        if forced:
            self.notes.changed(
                (*path, "setParams"), "these hold only where the client says nothing: see aliases.*.params"
            )
        entry = DraftEntry(
            {"use": [backend], **({"also": also} if also else {}), **({"params": forced} if forced else {})}
        )
        entry.origins = origins
        if is_true(model.get("unlisted")):
            entry.keys["listed"] = False
        self.draft.aliases[self._alias(name, path[:2])] = entry
        for variant, params in mapping(filters.get("setParamsByID")).items():
            asked = self._expanded(variant, name, model, None)
            further = request_params(mapping(params), (*path, "setParamsByID", variant), self.notes)
            merged = {**forced, **further}
            if asked == name:
                entry.keys["params"] = merged
            else:
                self.draft.aliases[self._alias(asked, path[:2])] = DraftEntry({"use": [backend], "params": merged})

    def _alias(self, name: str, path: Path) -> str:
        made = unique(alias_name(name), self.draft.aliases)
        if made != name:
            self.notes.changed(path, f"an alias cannot be called '{name}'", f"it is {made}")
        return made

    # -- peers, keys ----------------------------------------------------------------------------------------------

    def peers(self) -> None:
        for name, value in self.source.section("peers").items():
            path: Path = ("peers", name)
            peer = mapping(value)
            proxy = self._expanded(text_of(peer.get("proxy")) or "", name, peer, None)
            if (url := url_of(proxy, path, self.notes)) is None:
                continue
            written, variable = text_of(peer.get("apiKey")), variable_name(f"{name}_API_KEY")
            key = self.keys.key(written, (*path, "apiKey"), variable) if written else None
            for model in listed(peer.get("models")):
                if (asked := text_of(model)) is not None:
                    self._peer_model(name, url, asked, key, path)
            note_unread(self.notes, path, peer, "llama-swap", "peer")

    def _peer_model(self, peer: str, url: str, model: str, key: str | None, path: Path) -> None:
        keys: dict[str, Any] = {"engine": "openai", "url": url, "model": literal(model)}
        mark_cloud(keys, (*path, "proxy"), self.notes, known=False)
        keys |= {"api_key": key} if key else {}
        backend = unique(backend_name(tail_of(model)), self.draft.backends, backend_name(peer))
        self.draft.backends[backend] = DraftEntry(keys, self.source.place(path, f", peer {peer}"))
        self.draft.aliases[self._alias(model, path)] = DraftEntry({"use": [backend]})

    def clients(self) -> None:
        for i, value in enumerate(listed(self.source.data.get("apiKeys")), 1):
            if (written := text_of(value)) is not None:
                key = self.keys.key(written, ("apiKeys", i - 1), f"CLIENT_{i}_KEY")
                if not any(entry.keys["key"] == key for entry in self.draft.clients.values()):
                    self.draft.clients[f"client{i}"] = DraftEntry({"key": key})


# -- a backend's keys from the command line of its server: flags of vLLM and llama.cpp --------------------------------


# flag -> the backend's key
_VLLM = {
    "max-model-len": "context",
    "max-num-seqs": "slots",
    "tool-call-parser": "tool_parser",
    "reasoning-parser": "reasoning_parser",
}
_LLAMA = {"--ctx-size": "context", "--parallel": "slots"}
_SHORT = {"-c": "--ctx-size", "-np": "--parallel"}


def backend_keys(command: str) -> dict[str, Any]:
    """The backend's keys. vLLM is the default engine and not named; any other command gets `engine: openai`."""
    words = list(split(command).words)
    if any(re.search(r"(^|/)vllm($|[/:-])|vllm\.entrypoints", word) for word in words):
        return _of_vllm(words)
    flags = _flags([_SHORT.get(word, word) for word in words])
    found = {key: count_of(flags[flag]) for flag, key in _LLAMA.items() if flag in flags}
    context, slots = found.get("context"), found.get("slots")
    if context and slots and "--kv-unified" not in flags and "-kvu" not in flags:
        found["context"] = context // slots  # llama.cpp divides its window among its slots
    return {"engine": "openai", **{key: value for key, value in found.items() if value}}


def _of_vllm(words: list[str]) -> dict[str, Any]:
    run = read_docker_run(words) if is_docker_run(words) else DockerRun(command=tuple(words))
    command = parse(shlex.join(run.command), image=run.image, entrypoint=run.entrypoint)
    flags = command.flags
    keys = {key: flags[flag] for flag, key in _VLLM.items() if flag in flags}
    keys = {k: v for k, v in keys.items() if (isinstance(v, int) and v > 0 if k in ("context", "slots") else v)}
    if "tool_parser" in keys and not flags.get("enable-auto-tool-choice"):
        keys["auto_tools"] = False
    model = next(iter(command.served_names), "")
    return {**keys, **({"model": model} if model and "$" not in model else {})}


def _flags(words: list[str]) -> dict[str, str]:
    """`--flag value`, `--flag=value` and `--flag` (empty). The last of a repeated flag counts, as in the servers: a
    model overrides its macro."""
    found: dict[str, str] = {}
    for i, word in enumerate(words):
        if not word.startswith("-"):
            continue
        flag, equals, value = word.partition("=")
        if not equals and i + 1 < len(words) and not words[i + 1].startswith("-"):
            value = words[i + 1]
        found[flag] = value
    return found
