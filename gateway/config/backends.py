"""Backends: is the endpoint usable, is it inside the LAN, and what is assumed where the file says nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

from gateway.config import models as m
from gateway.config.keys import keys_of
from gateway.config.parsers import REASONING_PARSERS, TOOL_PARSERS
from gateway.config.problems import Path, Report
from gateway.config.snapshot import Backend, HealthSettings, Price, QueueSettings, Timeouts, is_private_host
from gateway.config.suggest import closest, did_you_mean, for_unknown_key
from gateway.config.urls import check_url

ASSUMED_SLOTS = defaultdict(lambda: 8, ollama=1)  # by engine: how many sequences it runs at once
# Ollama has to be told a window with every request, and cuts silently at 4,096 tokens when it is not.
ASSUMED_OLLAMA_CONTEXT = 32768

T = TypeVar("T", Timeouts, HealthSettings, QueueSettings)


def resolve_backends(file: m.RoutesFile, report: Report) -> Mapping[str, Backend]:
    return {name: _Resolver(name, section, file, report).backend() for name, section in file.backends.items()}


class _Resolver:
    def __init__(self, name: str, section: m.BackendSection, file: m.RoutesFile, report: Report) -> None:
        self.name, self.section, self.file, self.report = name, section, file, report
        self.path: Path = ("backends", name)

    def backend(self) -> Backend:
        section = self.section
        url = self._url()
        cloud = self._cloud(url)
        self._check_engine()
        self._check_parsers()
        slots_written = "slots" in section.model_fields_set
        return Backend(
            name=self.name,
            engine=section.engine,
            url=url,
            cloud=cloud,
            nodes=self._nodes(),
            model=section.model,
            context=self._context(),
            slots=section.slots if slots_written else None if cloud else ASSUMED_SLOTS[section.engine],
            slots_assumed=not slots_written,
            tool_parser=section.tool_parser,
            auto_tools=self._auto_tools(),
            reasoning_parser=section.reasoning_parser,
            thinking=section.thinking,
            thinking_switch=section.thinking_switch,
            vision=section.vision,
            audio=section.audio,
            serves=tuple(dict.fromkeys(section.serves or ())),
            run=section.run,
            api_key=section.api_key,
            price=self._price(),
            budget=section.budget,
            timeouts=_merged(Timeouts(), self.file.defaults.timeouts, section.timeouts),
            health=self._health(cloud),
            queue=_merged(QueueSettings(), self.file.defaults.queue, section.queue),
        )

    def _error(self, key: str, message: str, hint: str | None = None) -> None:
        self.report.error((*self.path, key), message, hint)

    def _dropped(self, key: str) -> bool:
        return self.report.was_dropped(*self.path, key)

    def _url(self) -> str | None:
        if self.section.url is not None:
            return check_url(self.section.url, (*self.path, "url"), self.report)
        said_otherwise = any(p[:2] == self.path and _means_url(p) for p in self.report.dropped)
        if self.section.engine != "litellm" and not self._dropped("url") and not said_otherwise:
            self.report.error(self.path, "'url' is missing", 'write url: "http://HOST:PORT"')
        return None

    def _cloud(self, url: str | None) -> bool:
        """Whether prompts leave the LAN. Never guessed for a public host: it has to be said."""
        said = self.section.cloud
        if self.section.engine == "litellm":
            if said is False:
                self._error("cloud", "engine litellm always leaves the LAN", "remove the key, or use engine openai")
            return True
        if said is not None or url is None or self._dropped("cloud"):
            return said or False
        host = urlsplit(url).hostname or ""
        if not is_private_host(host):
            message = f"'{host}' is not a private address: does a prompt leave the LAN?"
            self._error("url", message, "say cloud: true, or cloud: false if it stays inside")
        return False

    def _check_engine(self) -> None:
        section = self.section
        if section.engine == "http" and not section.serves and not self._dropped("serves"):
            hint = "write serves: [transcriptions], [translations] or [speech]"
            self.report.error(self.path, "engine http needs 'serves'", hint)
        if section.engine != "http" and section.serves:
            self._error("serves", "only for engine http", "did you mean engine: http?")
        if section.model is None and not self._dropped("model"):
            self._check_missing_model()

    def _check_missing_model(self) -> None:
        if self.section.engine == "litellm":
            hint = "write model: PROVIDER/MODEL, e.g. anthropic/claude-sonnet-5"
            self.report.error(self.path, "engine litellm needs 'model'", hint)
        elif self.section.engine == "ollama" or (self.section.engine == "openai" and self.section.cloud):
            self.report.warn(self.path, "no 'model': the first one that it lists is used", "name the one you mean")

    def _check_parsers(self) -> None:
        section = self.section
        self._check_parser("tool_parser", section.tool_parser, TOOL_PARSERS, REASONING_PARSERS)
        self._check_parser("reasoning_parser", section.reasoning_parser, REASONING_PARSERS, TOOL_PARSERS)
        if section.auto_tools and section.tool_parser == "none":
            message = "auto_tools without a tool_parser: vLLM answers 400 to tools"
            self.report.warn((*self.path, "auto_tools"), message, "name the --tool-call-parser")

    def _check_parser(self, key: str, given: str | None, known: frozenset[str], other: frozenset[str]) -> None:
        if given is None or given == "none" or given in known:
            return
        near = closest(given, known)
        kind = "tool_parser" if key == "reasoning_parser" else "reasoning_parser"
        hint = f"that is a {kind}" if given in other else f"did you mean '{near}'?" if near else "fine for a plugin"
        self.report.warn((*self.path, key), f"'{given}' is no parser that vLLM ships", hint)

    def _auto_tools(self) -> bool | None:
        section = self.section
        if section.auto_tools is not None or section.tool_parser is None:
            return section.auto_tools
        return section.tool_parser != "none"

    def _context(self) -> int | None:
        section = self.section
        if section.context is not None or section.engine != "ollama" or self._dropped("context"):
            return section.context
        message = f"no 'context': {ASSUMED_OLLAMA_CONTEXT} tokens are asked of Ollama (num_ctx)"
        self.report.warn(self.path, message, "declare the window that you want it to have")
        return ASSUMED_OLLAMA_CONTEXT

    def _nodes(self) -> tuple[str, ...]:
        nodes = tuple(dict.fromkeys(self.section.node or ()))
        declared = self.file.nodes
        for name in nodes if declared else ():
            if name not in declared and not self.report.was_dropped("nodes", name):
                self._error("node", f"unknown node '{name}'", did_you_mean(name, declared) or _listed(declared))
        return nodes

    def _price(self) -> Price | None:
        price = self.section.price
        if price is None:
            return None
        for key in ("input", "output"):
            if getattr(price, key) is None and not self.report.was_dropped(*self.path, "price", key):
                self._error("price", f"'{key}' is missing", "write {input: 0.50, output: 1.50}")
        return Price(price.input or 0.0, price.output or 0.0)

    def _health(self, cloud: bool) -> HealthSettings:
        """Cloud backends are probed only when they themselves say so: a probe costs money there."""
        base = HealthSettings()
        own = self.section.health
        health = _merged(base, self.file.defaults.health, own)
        if cloud:
            written = own.model_fields_set if own else set()
            health = replace(
                health,
                every=health.every if "every" in written else None,
                canary=health.canary if "canary" in written else None,
            )
        path = health.path
        if not path.startswith("/") or not path.isascii() or not path.isprintable() or " " in path:
            key = "health" if own and "path" in own.model_fields_set else None
            where: Path = (*self.path, "health", "path") if key else ("defaults", "health", "path")
            hint = "a path has no space and no character outside ASCII" if path.startswith("/") else f"write /{path}"
            self.report.error(where, f"'{path}' is not a path", hint)
        return health


def _merged(base: T, defaults: m.Section, own: m.Section | None) -> T:
    """`base` with the keys that `defaults` says, then those that the backend itself says."""
    written: dict[str, Any] = {key: getattr(defaults, key) for key in defaults.model_fields_set}
    written |= {key: getattr(own, key) for key in own.model_fields_set} if own else {}
    return replace(base, **{field.name: written[field.name] for field in fields(base) if field.name in written})


def _means_url(path: Path) -> bool:
    """True for a misspelt `url`, which has been reported: that it is missing need not be said too."""
    hint = for_unknown_key(str(path[-1]), "backends.*", keys_of("backends.*"), ())
    return len(path) == 3 and hint == "did you mean 'url'?"


def _listed(names: Mapping[str, object]) -> str:
    return "there are " + ", ".join(names)
