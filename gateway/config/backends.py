"""Backends: whether the endpoint is usable and inside the LAN, and what is assumed where the file is silent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, TypeVar
from urllib.parse import urlsplit

from gateway.config.fleet import check_profiles, check_start, check_stated, has_config, keys_from_launch
from gateway.config.kinds import AUTO
from gateway.config.problems import Path, Report
from gateway.config.schema import Section, built, has_all, was_tried, written
from gateway.config.secret import ExpandedText
from gateway.config.snapshot import (
    Backend,
    HealthSettings,
    ImageSettings,
    Launch,
    Node,
    Observed,
    Price,
    QueueSettings,
    Recover,
    Serves,
    Timeouts,
)
from gateway.config.suggest import REASONING_PARSERS, TOOL_PARSERS, closest, did_you_mean, listed
from gateway.config.urls import check_url, is_private_host
from gateway.launch.command import parse
from gateway.launch.docker import is_docker_run, read_docker_flags

INSTALL_CLOUD = "pip install --require-hashes -r requirements-cloud.lock (with make: make run CLOUD=1)"
CLOUD_MISSING = "engine litellm needs the extra 'cloud' (the litellm SDK), which is not installed"


def lacks_cloud(engines: Iterable[str]) -> bool:
    """Whether one of these engines needs the extra `cloud`, and it is not installed. Imports nothing of it."""
    return "litellm" in engines and find_spec("litellm") is None


# By server: how many sequences it runs at once.
ASSUMED_SLOTS = defaultdict(lambda: 8, ollama=1, llamacpp=4, transformers=1)


def names_cloud_model(model: str | None) -> bool:
    """Does Ollama pass a model of this name on to ollama.com? By the tag alone: `cloud`, or `...-cloud`."""
    _, found, tag = (model or "").rpartition(":")
    tag = tag.strip().lower()
    return bool(found) and (tag == "cloud" or (tag.endswith("-cloud") and "/" not in tag))


# Every request to Ollama has to name a window; without one, Ollama cuts silently at 4,096 tokens.
ASSUMED_OLLAMA_CONTEXT = 32768
IMAGES: tuple[Serves, ...] = ("images", "image_edits", "image_variations")  # what `serves: [images]` stands for
OWN_PATHS = ("transcriptions", "translations", "speech", "voices", *IMAGES)

# Servers that compute on beyond their model's window and tell no window: only `context` bounds what they are asked.
UNBOUNDED = frozenset({"mlx", "transformers"})

MODEL_ENDPOINTS = ("chat", "completions", "embeddings", "rerank", "score")
# By engine, where it is less or other than that.
SERVED = {
    "http": ("transcriptions", "translations", "speech", *IMAGES),
    "ollama": ("chat", "completions", "embeddings"),
    "litellm": ("chat", "embeddings"),
}

T = TypeVar("T", Timeouts, HealthSettings, QueueSettings, ImageSettings)


def resolve_backends(file: Section, report: Report) -> Mapping[str, Backend]:
    engines = {
        name: _BackendResolver(name, section, file, report).backend()
        for name, section in file.backends.items()
        if section.on is None
    }
    found = {n: engines.get(n) or _adapter(n, section, file, engines, report) for n, section in file.backends.items()}
    return {name: backend for name, backend in found.items() if backend is not None}


# What may differ between the models of one engine; the rest is its own.
_OF_MODELS = frozenset(
    {"on", "model", "context", "tool_parser", "auto_tools", "reasoning_parser", "thinking", "thinking_switch"}
    | {"vision", "audio", "pdf", "serves", "dimensions", "embedding_model", "max_batch", "price", "budget"}
)
_OF_SEVERAL = ("vllm", "openai", "llamacpp")  # engines that run several models beside each other in one memory


def _adapter(
    name: str, section: Section, file: Section, engines: Mapping[str, Backend], report: Report
) -> Backend | None:
    """Another model of the engine of one of `engines`, which has the rest of its keys; None: it is not known."""
    path: Path = ("backends", name)
    host = engines.get(section.on)
    if host is None:
        if not report.was_dropped("backends", section.on):
            known = [one for one, found in engines.items() if found.engine in _OF_SEVERAL]
            what = "is itself on another one" if section.on in file.backends else "does not exist"
            report.error((*path, "on"), f"'{section.on}' {what}", did_you_mean(section.on, known) or listed(known))
        report.dropped.add(path)
        return None
    if host.engine not in _OF_SEVERAL:
        report.error((*path, "on"), f"engine {host.engine} has no further models in one server", "remove the key")
    for key in sorted(section.model_fields_set - _OF_MODELS):
        report.error((*path, key), f"belongs to the engine of '{host.name}'", f"write it there: backends.{host.name}")
    has_all(section, ("model",), path, report, "write its name at the engine, as --lora-modules has it")
    own = {key: value for key, value in written(Backend, section).items() if key in _OF_MODELS}
    return replace(
        host, **{**own, "name": name, "launch": None, "profiles": {}, "start": None, "stop": None, "nodes": ()}
    )


class _BackendResolver:
    """`section` holds the keys that are written, `given` the same as a backend, with defaults for the other keys."""

    def __init__(self, name: str, section: Section, file: Section, report: Report) -> None:
        self.section, self.file, self.report = section, file, report
        self.path: Path = ("backends", name)
        self.launch = self._launch()
        named = {"name": name, "engine": "openai"} if section.engine == "auto" else {"name": name}
        self.given = self._with_launch(built(Backend, section, **named))

    def backend(self) -> Backend:
        section = self.section
        url = self._url()
        cloud = self._cloud(url)
        self._check_engine()
        self._check_parsers()
        defaults = self.file.defaults
        declares_tools = self.given.auto_tools is not None or self.given.tool_parser is None
        found = replace(
            self.given,
            url=url,
            cloud=cloud,
            nodes=self._nodes(),
            serves=self._serves(),
            context=self._context(),
            auto_tools=self.given.auto_tools if declares_tools else self.given.tool_parser != "none",
            price=self._price(),
            timeouts=_merged(Timeouts, defaults.timeouts, section.timeouts),
            health=self._health(cloud),
            queue=_merged(QueueSettings, defaults.queue, section.queue),
            images=_merged(ImageSettings, defaults.images, section.images),
            recover=self._recover(),
            launch=self.launch,
            observed=None if section.observed is None else built(Observed, section.observed),
        )
        check_profiles(found, self.report)
        check_start(found, section.model_fields_set, self.file.nodes, self.report)
        auto = section.slots == AUTO
        if self.followed.get("slots") is not None:
            return replace(found, slots_assumed=auto)
        if "slots" in section.model_fields_set and not auto:
            return found
        assumed = None if cloud else ASSUMED_SLOTS[found.server or found.engine]
        return replace(found, slots=assumed, slots_assumed=True)

    def _recover(self) -> Recover | None:
        section = self.section
        if section.recover is None:
            return None
        if self.launch is None or not self.launch.starts:
            self.report.warn((*self.path, "recover"), "only an engine with a launch block is restarted", "remove it")
        return built(Recover, section.recover)

    def _error(self, key: str, message: str, hint: str | None = None) -> None:
        self.report.error((*self.path, key), message, hint)

    def _dropped(self, key: str) -> bool:
        return self.report.was_dropped(*self.path, key)

    def _was_tried(self, key: str) -> bool:
        return was_tried(key, self.path, self.report)

    def _url(self) -> str | None:
        if self.given.url is not None:
            return check_url(self.given.url, self._url_path(), self.report)
        if self.given.engine != "litellm" and not (self._was_tried("on") or self._lost_what_tells_the_url()):
            has_all(self.section, ("url",), self.path, self.report, self._how_to_give_the_url())
        return None

    def _url_path(self) -> Path:
        """Where the URL comes from: the backend as a whole where it follows from its launch command."""
        return (*self.path, "url") if self.section.url is not None else self.path

    def _lost_what_tells_the_url(self) -> bool:
        """Whether the URL would follow from something that has been reported."""
        if any(was_tried(key, (*self.path, "launch"), self.report) for key in ("command", "image", "docker")):
            return True
        if self.launch is None:
            return False
        lost = any(was_tried("address", ("nodes", name), self.report) for name in self.given.nodes)
        return lost or self._was_tried("node") or "url" in self.contradicted

    def _how_to_give_the_url(self) -> str:
        write, nodes = 'write url: "http://HOST:PORT"', self.given.nodes
        if self.launch is None or self.launch.command is None:
            return write
        command = self.launch.parsed
        if is_docker_run(command.words):
            return f"launch.command is a container's command line, of which no port is read: {write}"
        if not command.is_vllm:
            other = ", or begin the command with `vllm serve`" if "vllm" in command.words else ""
            return f"launch.command is not recognised as vLLM: {write}{other}"
        if has_config(command) and "port" not in command.flags:
            return f"the file of --config may say the port: {write}, or --port in launch.command"
        if command.port is None:
            return f"the port in launch.command is a variable: {write}"
        return f'write nodes.{nodes[0]}.address, or url: "http://HOST:PORT"' if nodes else write

    def _cloud(self, url: str | None) -> bool:
        """Whether prompts leave the LAN. That is never guessed for a public host: the file has to say it."""
        written: bool | None = self.section.cloud
        if self.given.engine == "litellm":
            if written is False:
                self._error("cloud", "engine litellm always leaves the LAN", "remove the key, or use engine openai")
            return True
        if self.given.engine in ("ollama", "openai") and names_cloud_model(self.given.model):
            self._check_cloud_model(written)
            return written is not False or self.given.engine == "ollama"
        if written is not None or url is None or self._dropped("cloud"):
            return written or False
        host = urlsplit(url).hostname or ""
        if not is_private_host(host):
            given = self.given.url
            shown = f"'{given}'" if isinstance(given, ExpandedText) else f"'{host}'"
            message = f"{shown} is not a private address: does a prompt leave the LAN?"
            self.report.error(self._url_path(), message, "say cloud: true, or cloud: false if it stays inside")
        return False

    def _check_cloud_model(self, written: bool | None) -> None:
        if written is False and self.given.engine == "ollama":
            message = f"Ollama sends what is asked of '{self.given.model}' to ollama.com"
            self._error("cloud", message, "remove the key, or name a model that runs there")
        elif written is None:
            message = f"'{self.given.model}' is a cloud model of Ollama: its prompts leave the LAN"
            self.report.warn((*self.path, "model"), message, "say cloud: true, or name a model that runs there")

    def _check_engine(self) -> None:
        given = self.given
        if given.engine == "http" and not given.serves and not self._was_tried("serves"):
            hint = "write serves: [transcriptions], [translations], [speech] or [images]"
            self.report.error(self.path, "engine http needs 'serves'", hint)
        if lacks_cloud([given.engine]):
            self.report.warn((*self.path, "engine"), CLOUD_MISSING, INSTALL_CLOUD)
        self._check_serves()
        if given.engine != "http":
            for key in ("paths", "fields", "fixed"):
                if getattr(given, key):
                    self._error(key, "only for engine http", "did you mean engine: http?")
        if given.responses in ("own", "hosted") and given.engine in ("ollama", "litellm", "http"):
            self._error("responses", f"engine {given.engine} is never asked at /v1/responses", "remove the key")
        self._check_speech()
        if given.server is not None and given.engine != "openai" and not self._dropped("engine"):
            self._error("server", "only for engine openai", f"engine {given.engine} says it already: remove the key")
        if given.model is None and not self._was_tried("model"):
            self._check_missing_model()

    def _check_serves(self) -> None:
        """What a server does not serve because nobody asks such a server for it."""
        given = self.given
        able = SERVED.get(given.engine, MODEL_ENDPOINTS)
        for name in given.serves:
            if name not in able:
                self._error("serves", f"engine {given.engine} does not serve {name}", f"it can: {', '.join(able)}")
        embeds = given.engine != "http" and (not given.serves or "embeddings" in given.serves)
        for key in ("dimensions", "embedding_model"):
            if getattr(given, key) is not None and not embeds:
                self._error(key, "of a backend that embeds nothing", "add embeddings to serves, or remove the key")

    def _serves(self) -> tuple[Serves, ...]:
        serves = self.given.serves
        return tuple(dict.fromkeys((*serves, *IMAGES))) if "images" in serves else serves

    def _check_speech(self) -> None:
        """What a speech server does in its own way."""
        for name, path in self.given.paths.items():
            if name not in OWN_PATHS:
                self._error("paths", f"unknown path '{name}'", f"one of {', '.join(OWN_PATHS)}")
            elif not isinstance(path, str) or not path.startswith("/") or len(path.split()) != 1:
                self._error("paths", f"'{name}' is no path", "write it below the server's root: /transcribe")
        for name, own in self.given.fields.items():
            if not isinstance(own, str) or not own:
                self._error("fields", f"'{name}' has no name", "write the server's own name for it, or none")

    def _check_missing_model(self) -> None:
        if self.given.engine == "litellm":
            hint = "write model: PROVIDER/MODEL, e.g. anthropic/claude-sonnet-5"
            self.report.error(self.path, "engine litellm needs 'model'", hint)
        elif self.given.engine == "ollama" or (self.given.engine == "openai" and self.given.cloud):
            self.report.warn(self.path, "no 'model': the first one that it lists is used", "name the one you mean")

    def _check_parsers(self) -> None:
        given = self.given
        self._check_parser("tool_parser", given.tool_parser, TOOL_PARSERS, REASONING_PARSERS)
        self._check_parser("reasoning_parser", given.reasoning_parser, REASONING_PARSERS, TOOL_PARSERS)
        if given.auto_tools and given.tool_parser == "none":
            message = "auto_tools without a tool_parser: vLLM answers 400 to tools"
            self.report.warn((*self.path, "auto_tools"), message, "name the --tool-call-parser")

    def _check_parser(self, key: str, name: str | None, known: frozenset[str], other: frozenset[str]) -> None:
        if name is None or name == "none" or name in known:
            return
        near = closest(name, known)
        kind = "tool_parser" if key == "reasoning_parser" else "reasoning_parser"
        hint = f"that is a {kind}" if name in other else f"did you mean '{near}'?" if near else "fine for a plugin"
        self.report.warn((*self.path, key), f"'{name}' is no parser that vLLM ships", hint)

    def _context(self) -> int | None:
        given = self.given
        if given.context is not None or self._dropped("context"):
            return given.context
        if (server := given.server or given.engine) in UNBOUNDED:
            message = f"no 'context': {server} computes on beyond its model's window, and nothing bounds a prompt"
            self.report.warn(self.path, message, "declare the window that the model was trained for")
        if given.engine != "ollama":
            return None
        message = f"no 'context': {ASSUMED_OLLAMA_CONTEXT} tokens are asked of Ollama (num_ctx)"
        self.report.warn(self.path, message, "declare the window that you want it to have")
        return ASSUMED_OLLAMA_CONTEXT

    def _nodes(self) -> tuple[str, ...]:
        nodes = tuple(dict.fromkeys(self.given.nodes))
        declared = self.file.nodes
        for name in nodes if declared else ():
            if name not in declared and not self.report.was_dropped("nodes", name):
                self._error("node", f"unknown node '{name}'", did_you_mean(name, declared) or listed(declared))
        return nodes

    def _launch(self) -> Launch | None:
        section: Section | None = self.section.launch
        if section is None:
            return None
        only_measured = section.model_fields_set == {"resident"}
        here: Path = (*self.path, "launch")
        hint = "write command: vllm serve MODEL --port 8001 ..."
        if not only_measured and not has_all(section, ("command",), here, self.report, hint):
            self.report.dropped.add((*here, "command"))
        container = read_docker_flags(section.docker)
        parsed = parse(
            section.command or "", image=section.image, entrypoint=container.entrypoint, own=section.entrypoint
        )
        return built(Launch, section, parsed=parsed, container=container)

    def _with_launch(self, given: Backend) -> Backend:
        """`given` with the keys that follow from the launch command; what is stated beside it must agree."""
        self.followed: dict[str, Any] = {}
        self.contradicted: dict[str, Any] = {}  # what would follow if the engine were vLLM
        if self.launch is None or not self.launch.parsed.is_vllm:
            return given
        node = self.file.nodes.get(given.nodes[0]) if given.nodes else None
        follows = keys_from_launch(self.launch, node and built(Node, node, name=given.nodes[0]))
        if given.engine != "vllm" and not self._dropped("engine"):
            message = f"{given.engine} here, but launch.command starts vLLM"
            self._error("engine", message, "remove 'engine', or the launch block")
            self.contradicted = follows
            return given
        self.followed = follows
        stated = {key: getattr(self.section, key) for key in self.section.model_fields_set}
        if stated.get("slots") == AUTO:
            del stated["slots"]
        check_stated(given.name, stated, self.followed, self.launch, self.report)
        return replace(given, **{key: value for key, value in self.followed.items() if key not in stated})

    def _price(self) -> Price | None:
        price: Section | None = self.section.price
        if price is None:
            return None
        of_tokens, path, hint = ("input", "output"), (*self.path, "price"), "write {input: 0.50, output: 1.50}"
        if price.image is not None and price.model_fields_set.isdisjoint(of_tokens):
            return built(Price, price, **dict.fromkeys(of_tokens, 0.0))
        return built(Price, price) if has_all(price, of_tokens, path, self.report, hint) else None

    def _health(self, cloud: bool) -> HealthSettings:
        """Cloud backends are probed only when their own section asks for it, because a probe costs money there."""
        own: Section = self.section.health
        health = _merged(HealthSettings, self.file.defaults.health, own)
        if cloud:
            health = replace(
                health,
                every=health.every if "every" in own.model_fields_set else None,
                canary=health.canary if "canary" in own.model_fields_set else None,
            )
        path = health.path
        if not path.startswith("/") or not path.isascii() or not path.isprintable() or " " in path:
            where: Path = (*self.path, "health") if "path" in own.model_fields_set else ("defaults", "health")
            hint = "a path has no space and no character outside ASCII" if path.startswith("/") else f"write /{path}"
            self.report.error((*where, "path"), f"'{path}' is not a path", hint)
        return health


def _merged(made: type[T], defaults: Section, own: Section) -> T:
    """The keys of a backend win over those of `defaults`, one by one."""
    return made(**{**written(made, defaults), **written(made, own)})
