"""Aliases: every step names backends, no two aliases claim one name, and chat and audio are kept apart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gateway.config.modes import first_step
from gateway.config.problems import Path, Report
from gateway.config.schema import Section, built, was_tried
from gateway.config.snapshot import Alias, Backend, Failover
from gateway.config.suggest import did_you_mean, listed
from gateway.config.units import is_further_name

HERMES_WINDOW = 64_000  # tokens; Hermes refuses to start with a smaller window
# Request fields that `params` cannot set.
_RESERVED = ("model", "messages", "prompt", "input", "query", "documents", "stream")
_GLOB = "*?["


def resolve_aliases(file: Section, backends: Mapping[str, Backend], report: Report) -> Mapping[str, Alias]:
    """The aliases of the file, then one for each local chat backend whose name is still free."""
    aliases = {n: _AliasResolver(n, s, file, backends, report).alias() for n, s in file.aliases.items()}
    claimed = _claimed(aliases, report)
    for alias in aliases.values():
        _check_describer(alias, aliases, backends, report)
    for name, backend in backends.items():
        lost = report.was_dropped("aliases", name)
        if name not in claimed and not backend.cloud and backend.engine != "http" and not lost:
            aliases[name] = Alias(name, steps=((name,),), implicit=True)
    return aliases


def _check_describer(
    alias: Alias, aliases: Mapping[str, Alias], backends: Mapping[str, Backend], report: Report
) -> None:
    """`describe_images` names another alias, or a backend, that answers alone and describes pictures itself."""
    name = alias.describe_images
    if name is None:
        return
    path = ("aliases", alias.name, "describe_images")
    found = aliases.get(name)
    if found is None and name not in backends:
        report.error(path, f"unknown alias '{name}'", did_you_mean(name, {**aliases, **backends}) or listed(aliases))
    elif name == alias.name or (found is not None and (found.ask_all or found.describe_images)):
        report.error(path, f"'{name}' cannot describe pictures", "name an alias of models that see")


def _claimed(aliases: Mapping[str, Alias], report: Report) -> dict[str, str]:
    """Every name and further name with the alias that owns it; a second claim is an error."""
    claimed = {name: name for name in aliases}
    for alias in aliases.values():
        for i, name in enumerate(alias.also):
            owner = claimed.setdefault(name, alias.name)
            if owner != alias.name:
                kind = "the name of" if owner == name else "a further name of"
                path = ("aliases", alias.name, "also", i)
                report.error(path, f"'{name}' is already {kind} alias '{owner}'", "a name leads to one alias")
    return claimed


class _AliasResolver:
    def __init__(
        self, name: str, section: Section, file: Section, backends: Mapping[str, Backend], report: Report
    ) -> None:
        self.name, self.section, self.file, self.backends, self.report = name, section, file, backends, report
        self.path: Path = ("aliases", name)

    def alias(self) -> Alias:
        section = self.section
        self._check_shape()
        steps = self._steps()
        ask_all = tuple(n for i, n in enumerate(section.ask_all or ()) if self._known("ask_all", i, n))
        self._check_kinds([*(n for step in steps for n in step), *ask_all])
        self._check_window(steps)
        self._check_params(section.params or {})
        unique = tuple(dict.fromkeys(ask_all))
        if unique:
            steps = (unique,)
        failover = built(Failover, section.failover)
        return built(Alias, section, name=self.name, steps=steps, also=self._also(), ask_all=unique, failover=failover)

    def _error(self, key: str, message: str, hint: str | None = None) -> None:
        self.report.error((*self.path, key), message, hint)

    def _were_tried(self, *keys: str) -> bool:
        return any(was_tried(key, self.path, self.report) for key in keys)

    def _check_shape(self) -> None:
        use, ask_all = self.section.use, self.section.ask_all
        if use is not None and ask_all is not None:
            self._error("ask_all", "`use` and `ask_all` exclude each other")
        elif ask_all == ():
            self._error("ask_all", "asks nobody", "name at least one backend")
        elif not use and ask_all is None and not self._were_tried("use", "ask_all"):
            self.report.error(self.path, "has no steps", "write use: [BACKEND, FALLBACK]")

    def _steps(self) -> tuple[tuple[str, ...], ...]:
        """The known backends of each step; a backend that is named twice counts where it is named first."""
        seen: set[str] = set()
        steps = []
        for i, names in enumerate(self.section.use or ()):
            step = []
            for j, name in enumerate(names):
                if not self._known("use", i, name, j):
                    continue
                if name in seen:
                    message = f"backend '{name}' comes twice"
                    self.report.warn(self._member("use", i, j), message, "it is tried once, where it comes first")
                    continue
                seen.add(name)
                step.append(name)
            if step:
                steps.append(tuple(step))
        return tuple(steps)

    def _member(self, key: str, i: int, j: int = 0) -> Path:
        inner = (*self.path, key, i, j)
        return inner if inner in self.report.lines else inner[:-1]

    def _known(self, key: str, i: int, name: str, j: int = 0) -> bool:
        if name in self.backends:
            return True
        if not self.report.was_dropped("backends", name):
            hint = did_you_mean(name, self.backends)
            if name in self.file.aliases:
                hint = "that is an alias; steps name backends"
            self.report.error(self._member(key, i, j), f"unknown backend '{name}'", hint or listed(self.backends))
        return False

    def _check_kinds(self, names: list[str]) -> None:
        audio = [n for n in names if self.backends[n].engine == "http"]
        if not audio:
            self._check_served(names)
            if not self.section.ask_all:
                self._check_embeddings(names)
            return
        if len(audio) < len(names):
            self._error("use", f"'{audio[0]}' is an audio backend in a chat alias", "give audio an alias of its own")
            return
        if not set.intersection(*(set(self.backends[n].serves) for n in audio)) and not any(
            self.report.was_dropped("backends", n, "serves") or not self.backends[n].serves for n in audio
        ):
            self._error("use", "its backends serve different things", "transcriptions and speech are two aliases")

    def _check_served(self, names: list[str]) -> None:
        """Members with nothing in common stand for no one alias."""
        stated = {n: self.backends[n].serves for n in names if self.backends[n].serves}
        if not stated or any(self.report.was_dropped("backends", n, "serves") for n in names):
            return
        if not set.intersection(*map(set, stated.values())):
            what = "; ".join(f"{n}: {', '.join(serves)}" for n, serves in stated.items())
            self._error("use", f"its backends serve different things ({what})", "give each kind an alias of its own")
        elif len(stated) < len(names) and not any("chat" in serves for serves in stated.values()):
            silent = next(n for n in names if n not in stated)
            message = f"its backends serve {', '.join(next(iter(stated.values())))}, and '{silent}' does not say what"
            self.report.warn(self.path, message, f"write backends.{silent}.serves")

    def _check_embeddings(self, names: list[str]) -> None:
        """Vectors of different models cannot be compared, so no chain may go from one to the other."""
        embedding = [self.backends[n] for n in names if says_it_embeds(self.backends[n])]
        for other in embedding[1:]:
            first = embedding[0]
            mine, its = embedding_model(first), embedding_model(other)
            chats = "chat" in first.serves and "chat" in other.serves
            tell = self.report.warn if chats else self.report.error
            hint = "give each an alias of its own; if it is one model, give both the same embedding_model"
            if mine is not None and its is not None and mine != its:
                message = f"'{other.name}' embeds with {its}, '{first.name}' with {mine}: they cannot be compared"
                tell((*self.path, "use"), message, hint)
            elif None not in (first.dimensions, other.dimensions) and first.dimensions != other.dimensions:
                one, two = map(self._dimensions, (other, first))
                message = f"'{other.name}' gives vectors of {one} numbers, '{first.name}' of {two}"
                tell((*self.path, "use"), f"{message}: they cannot be compared", hint)
            elif mine is None or its is None:
                silent = first if mine is None else other
                message = f"whether '{first.name}' and '{other.name}' embed with the same model is not known"
                self.report.warn(self.path, message, f"write backends.{silent.name}.model")

    def _dimensions(self, backend: Backend) -> object:
        return self.report.written_as(("backends", backend.name, "dimensions"), backend.dimensions)

    def _check_window(self, steps: tuple[tuple[str, ...], ...]) -> None:
        window = first_window(steps, self.backends)
        if window is not None and window < HERMES_WINDOW:
            first = first_step(steps, self.backends)
            smallest = next(name for name in first if self.backends[name].context == window)
            source = self.report.outside.get(("backends", smallest, "context"))
            size = f"{window:,}" if source is None else f"'{source}'"
            message = f"a window of {size} tokens: Hermes will not start below {HERMES_WINDOW:,}"
            self.report.warn(self.path, message, "fine for other clients")

    def _check_params(self, params: dict[str, Any]) -> None:
        for key in params:
            if key in _RESERVED:
                self.report.error((*self.path, "params", key), f"'{key}' cannot be set here", "the client says it")
        if path := _not_finite(params, (*self.path, "params")):
            self.report.error(path, "not a number that JSON can hold")

    def _also(self) -> tuple[str, ...]:
        also = []
        for i, name in enumerate(self.section.also or ()):
            if not is_further_name(name):
                self.report.error((*self.path, "also", i), "a name that cannot be used", "no spaces or quotes")
            elif name != self.name:
                also.append(name)
        return tuple(dict.fromkeys(also))


def says_it_embeds(backend: Backend) -> bool:
    stated = backend.dimensions is not None or backend.embedding_model is not None
    return stated or "embeddings" in backend.serves


def embedding_model(backend: Backend) -> str | None:
    """The model whose embeddings it gives, as far as the file says."""
    launched = backend.launch.parsed.model if backend.launch is not None else None
    return backend.embedding_model or launched or backend.model


def first_window(steps: tuple[tuple[str, ...], ...], backends: Mapping[str, Backend]) -> int | None:
    """The smallest window of the first step; None when one is unknown, or is no window of chats."""
    first = first_step(steps, backends)
    if any(backends[name].serves and "chat" not in backends[name].serves for name in first):
        return None
    windows = [context for name in first if (context := backends[name].context) is not None]
    return min(windows) if windows and len(windows) == len(first) else None


def _not_finite(value: Any, path: Path) -> Path | None:
    if isinstance(value, float) and not math.isfinite(value):
        return path
    if isinstance(value, dict):
        found = (_not_finite(inner, (*path, str(key))) for key, inner in value.items())
    elif isinstance(value, list):
        found = (_not_finite(inner, path) for inner in value)
    else:
        return None
    return next((p for p in found if p), None)
