"""Everything read from one version of routes.yaml, resolved and immutable.

The rest of the program sees only these classes: names are checked, defaults are merged in, units are seconds, bytes and
tokens, secrets are wrapped. A request keeps the snapshot it started with.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal
from urllib.parse import urlsplit

# The values of `engine` in routes.yaml; each has a row of traits (gateway/domain/engine_traits.py).
Engine = Literal["vllm", "openai", "ollama", "litellm", "http"]
Balance = Literal["affinity", "least_busy", "round_robin"]
CloudWhen = Literal["down", "too_long", "incapable", "busy"]
OnUnsupported = Literal["refuse", "mend", "strip"]
LogForm = Literal["auto", "json", "pretty", "none"]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_KEPT_PATH = re.compile(r"/(v\d+\w*|openai)$")


class Secret:
    """A value that never shows itself: `repr`, `str` and formatting print `***`; `reveal()` gives it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds; None = no limit. `first_byte`: None = auto, by the size of the prompt (routing/context.py), and infinite
    = no limit."""

    connect: float = 3.0
    first_byte: float | None = None
    idle: float | None = 120.0
    total: float | None = None
    hold: float = 45.0


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """Seconds, except the two counts. `every` None = this backend is never probed."""

    every: float | None = 5.0
    fail_after: int = 3
    recover_after: int = 2
    canary: float | None = 900.0
    start_grace: float = 900.0
    path: str = "/health"


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """`length` waiting requests at most, each for `max_wait` seconds at most."""

    length: int = 32
    max_wait: float = 300.0


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens."""

    input: float
    output: float


@dataclass(frozen=True, slots=True)
class Budget:
    """`usd` per `per` (UTC day, week or month)."""

    usd: float
    per: Literal["day", "week", "month"]


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    memory: int | None = None  # bytes
    exporter: str | None = None


@dataclass(frozen=True)
class Backend:
    """One serving endpoint. `url` has no trailing slash; None only for `litellm` without an explicit `url`."""

    name: str
    engine: Engine = "vllm"
    url: str | None = None
    cloud: bool = False
    nodes: tuple[str, ...] = ()
    model: str | None = None  # None = read from the backend's /v1/models
    context: int | None = None  # tokens; None = read
    slots: int | None = None  # None = unlimited (cloud)
    slots_assumed: bool = False
    tool_parser: str | None = None  # None = not declared; "none" = declared to have none
    auto_tools: bool | None = None
    reasoning_parser: str | None = None
    thinking: Literal["optional", "always", "never"] | None = None
    thinking_switch: str | None = None
    vision: bool | None = None
    audio: bool | None = None
    serves: tuple[str, ...] = ()  # http engine: transcriptions, translations, speech
    run: Literal["always", "on_demand"] = "always"
    api_key: Secret | None = None
    price: Price | None = None
    budget: Budget | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)
    health: HealthSettings = field(default_factory=HealthSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)

    @property
    def identity(self) -> tuple[str, str, str | None]:
        """Equal in two snapshots = the same running thing: its health, slots and connections carry over."""
        return (self.name, self.engine, self.url)

    @cached_property
    def origin(self) -> tuple[str, str, int]:
        """(scheme, host, port) of `url`."""
        parts = urlsplit(self.url or "")
        return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)

    @cached_property
    def api_path(self) -> str:
        """The path under which `/chat/completions` lives: /v1 is added unless the URL ends in /vN or /openai."""
        path = urlsplit(self.url or "").path.rstrip("/")
        return path if _KEPT_PATH.search(path) else path + "/v1"

    @cached_property
    def root_path(self) -> str:
        """The path under which `/health`, `/version`, `/metrics` and `/tokenize` live: `api_path` without its /v1."""
        return self.api_path.removesuffix("/v1")


def is_private_host(host: str) -> bool:
    """True for addresses and names that cannot be outside the LAN: private, loopback and link-local addresses,
    `localhost`, names without a dot, and `.local`, `.lan`, `.home.arpa`, `.internal`."""
    host = host.strip("[]").lower()
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith((".localhost", ".local", ".lan", ".home.arpa", ".internal"))
    return address.is_private or address.is_loopback or address.is_link_local


@dataclass(frozen=True, slots=True)
class Alias:
    """A name that clients may ask for. `steps` are tried in order; the members of one step stand side by side."""

    name: str
    steps: tuple[tuple[str, ...], ...]
    also: tuple[str, ...] = ()
    balance: Balance = "affinity"
    on_busy: Literal["wait", "next"] = "wait"
    cloud_when: tuple[CloudWhen, ...] = ("down",)
    on_unsupported: OnUnsupported = "refuse"
    params: Mapping[str, Any] = field(default_factory=dict)
    thinking: Literal["on", "off"] | None = None
    min_max_tokens: int | None = None
    reasoning_field: Literal["as_is", "both", "reasoning", "reasoning_content", "none"] = "as_is"
    priority: Literal["interactive", "batch"] = "interactive"
    listed: bool | None = None  # None = chat aliases are, audio and embedding aliases are not
    ask_all: tuple[str, ...] = ()  # non-empty: one request to each of these; `steps` is empty then
    implicit: bool = False  # a backend offered under its own name


@dataclass(frozen=True, slots=True)
class Tasks:
    """Where Open WebUI's `### Task:` calls go."""

    alias: str
    thinking: Literal["on", "off"] | None = None


@dataclass(frozen=True)
class Client:
    """One caller. `key_sha256` is the hex digest of its key, whichever way it was written."""

    name: str
    key_sha256: str | None = None
    aliases: tuple[str, ...] = ("*",)
    rpm: int | None = None
    tpm: int | None = None
    max_inflight: int | None = None
    priority: Literal["interactive", "batch"] | None = None
    local_only: bool = False
    admin: bool = False
    budget: Budget | None = None
    on_unsupported: OnUnsupported | None = None
    tasks: Tasks | None = None

    @cached_property
    def _answers(self) -> dict[str, bool]:
        return {}

    def may_use(self, alias: str) -> bool:
        """`alias` is an alias' own name."""
        allowed = self._answers.get(alias)
        if allowed is None:
            allowed = self._answers[alias] = any(fnmatchcase(alias, pattern) for pattern in self.aliases)
        return allowed


@dataclass(frozen=True, slots=True)
class Server:
    host: str = "0.0.0.0"
    port: int = 4000
    shared: Secret | None = None  # redis URL (may hold a password)
    data: str = "./state"
    max_body: int = 64 * 1024 * 1024  # bytes
    memory: int | None = 1024**3  # bytes of bodies and answers that are held at a time
    shutdown: float = 120.0  # seconds
    log: LogForm = "auto"
    hosts: tuple[str, ...] | None = None  # lower case; None = not written
    metrics: Literal["open", "key"] | None = None  # None = by whether there are clients
    proxies: tuple[Network, ...] = ()  # behind which there are many callers


@dataclass(frozen=True, slots=True)
class Alerts:
    telegram_token: Secret | None = None
    telegram_chat: str | None = None
    webhook: Secret | None = None
    deadman: Secret | None = None


@dataclass(frozen=True, slots=True)
class Traces:
    """`sample`: share of the requests that are traced where no caller has decided, 0 to 1."""

    endpoint: Secret
    sample: float = 1.0
    prompts: bool = False


@dataclass(frozen=True)
class Snapshot:
    """One valid routes.yaml. `backends`, `aliases` (explicit and implicit) and `clients` keep the file's order."""

    backends: Mapping[str, Backend]
    aliases: Mapping[str, Alias]
    clients: Mapping[str, Client] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    server: Server = field(default_factory=Server)
    alerts: Alerts = field(default_factory=Alerts)
    traces: Traces | None = None
    source: str = "routes.yaml"

    @cached_property
    def _globs(self) -> tuple[tuple[str, Alias], ...]:
        return tuple((n, a) for a in self.aliases.values() for n in a.also if any(c in n for c in "*?["))

    @cached_property
    def _names(self) -> dict[str, Alias]:
        further = {n: a for a in self.aliases.values() for n in a.also}
        return {**further, **self.aliases}

    @cached_property
    def clients_by_key(self) -> dict[str, Client]:
        """Clients by the SHA-256 of their key, in hex."""
        return {c.key_sha256: c for c in self.clients.values() if c.key_sha256 is not None}

    @property
    def metrics_are_open(self) -> bool:
        """May anybody read `/metrics`? (Else an admin.)"""
        said = self.server.metrics
        return not self.clients if said is None else said == "open"

    def resolve(self, model: str) -> Alias | None:
        """The alias a client means by `model`: its own name, then a further name (`also`), then the first glob."""
        found = self._names.get(model)
        if found is None and self._globs:
            return next((alias for pattern, alias in self._globs if fnmatchcase(model, pattern)), None)
        return found

    def leaves_lan(self, alias: Alias) -> tuple[str, ...]:
        """The cloud backends that this alias names, in order; empty = its prompts can never leave the LAN."""
        names = [n for step in alias.steps for n in step] + list(alias.ask_all)
        return tuple(dict.fromkeys(n for n in names if self.backends[n].cloud))
