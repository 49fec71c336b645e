"""Everything read from one version of routes.yaml, resolved and immutable; and the definition of every key of it.

The rest of the program sees only these classes: names are checked, defaults are merged in, units are seconds, bytes and
tokens, secrets are wrapped. A request keeps the snapshot it started with. The first sentence of a class and the help of
its keys go into the JSON schema; `setting.py` says how a key is defined.
"""

# ruff: noqa: RUF009  (`setting` gives a dataclass field, as `dataclasses.field` does)

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, ClassVar, Literal

from gateway.config import kinds as k
from gateway.config import launch_kinds as lk
from gateway.config.kinds import Network as Network
from gateway.config.machines import Backend as Backend
from gateway.config.machines import Defaults as Defaults
from gateway.config.machines import Engine as Engine
from gateway.config.machines import HealthSettings as HealthSettings
from gateway.config.machines import ImageSettings as ImageSettings
from gateway.config.machines import Launch as Launch
from gateway.config.machines import Mode as Mode
from gateway.config.machines import ModelServer as ModelServer
from gateway.config.machines import Node as Node
from gateway.config.machines import Observed as Observed
from gateway.config.machines import Price as Price
from gateway.config.machines import QueueSettings as QueueSettings
from gateway.config.machines import Recover as Recover
from gateway.config.machines import Serves as Serves
from gateway.config.machines import Timeouts as Timeouts
from gateway.config.secret import Secret as Secret
from gateway.config.setting import about, in_file, setting
from gateway.config.units import Budget as Budget

OPEN = "open"  # whose things are those of callers without `clients`
_OWNER = "client:"  # before the name of a client that would be taken for these, or for one of this form
Balance = Literal["affinity", "least_busy", "round_robin"]
CloudWhen = Literal["down", "too_long", "incapable", "busy"]
OnUnsupported = Literal["refuse", "mend", "strip"]
Priority = Literal["interactive", "batch"]
LogForm = Literal["auto", "json", "pretty", "none"]

LISTEN = ("0.0.0.0", 4000)  # host and port where `server.listen` is not written


@dataclass(frozen=True, slots=True)
class Failover:
    """When a request goes on to the next candidate."""

    when_loading: Literal["auto", "wait", "next"] = setting(
        "auto",
        "While a backend loads its model: wait, or go to a candidate that has its own loaded; auto = wait where the "
        "last load took at most half a minute, or none was seen.",
    )


@dataclass(frozen=True, slots=True)
class Alias:
    """A name that clients ask for. The short form `name: [a, b]` stands for `{use: [a, b]}`.

    `steps` are tried in order; the members of one step stand side by side. With `ask_all` one request goes to each of
    these, which then are the one step. `listed` None = chat aliases are, audio and embedding aliases are not."""

    name: str
    steps: tuple[tuple[str, ...], ...] = field(
        metadata=about(
            "Steps in order; a list inside the list is one step of several backends side by side.",
            key="use",
            kind=k.Steps,
        )
    )
    ask_all: k.Names = setting((), "Instead of `use`: ask each of these, one choice from each.", names=True)
    also: k.Names = setting((), "Further names for it; globs such as claude-* are allowed.")
    balance: Balance = setting("affinity", "How a request is placed inside a step.")
    on_busy: Literal["wait", "next"] = setting("wait", "next = spill to the next local step when busy.")
    cloud_when: tuple[CloudWhen, ...] = setting(("down",), "When a cloud step may be entered; default [down].")
    on_unsupported: OnUnsupported = setting("refuse", "What to do when no step can serve the request.")
    params: k.Params = setting({}, "Request fields filled in where the client said nothing.")
    thinking: Literal["on", "off"] | None = setting(None, "Forced; omitted = as the client asks.")
    min_max_tokens: k.Count | None = setting(None, "Raises a smaller max_tokens that a client sent.")
    reasoning_field: Literal["as_is", "both", "reasoning", "reasoning_content", "none"] = setting(
        "as_is", "Under which name clients get the reasoning."
    )
    priority: Priority = setting("interactive", "Batch waits behind interactive.")
    describe_images: k.Text | None = setting(
        None, "The alias that describes pictures in words, where none of the first step is known to see.", names=True
    )
    notice: k.Yes = setting(
        False, "A chat answer says in one line that another model or a cloud gave it, and what it waits for."
    )
    resume: k.Yes = setting(False, "A plain-text stream whose backend dies goes on at another one with the same model.")
    while_starting: Literal["wait", "next"] = setting(
        "next",
        "What a request does while a backend with `run: on_request` starts for it; where nothing else can serve it "
        "waits.",
    )
    failover: Failover = setting(Failover())
    listed: k.Yes | None = setting(None, "In /v1/models; default: chat aliases are, audio ones are not.")
    implicit: bool = False  # a backend offered under its own name


@dataclass(frozen=True, slots=True)
class Tasks:
    """Where Open WebUI's `### Task:` calls go."""

    alias: k.Text = field(metadata=about("The alias that answers them.", names=True))
    thinking: Literal["on", "off"] | None = setting(None, "Forced for them.")


@dataclass(frozen=True, slots=True)
class Users:
    """The people behind one key (a chat page's): each has a turn, limits and rows in the usage of their own."""

    read_from: Literal["header", "field"] = setting(
        "field",
        "field = `safety_identifier` or `user` of the body; header = X-OpenWebUI-User-Id or -Email before these.",
        key="from",
    )
    rpm: k.CountOrNone = setting(None, "Requests per minute of each.")
    max_inflight: k.CountOrNone = setting(None, "Requests at a time of each.")
    budget: k.BudgetText = setting(None, "Spending limit of each, e.g. 1 USD/day.")


USERS_MOST = 1000  # of one client; the others share one turn and one limit
OTHER_USERS = "others"


@dataclass(frozen=True)
class Client:
    """One caller.

    `key_sha256` is the hex digest of its key, whichever way the key was written. `parent`: of a user, the client whose
    user it is, and whose limits count for all its users together."""

    name: str
    key_sha256: str | None = setting(None, "Its key, or sha256:<64 hex digits> of it.", key="key", kind=k.SecretText)
    old_key_sha256: str | None = setting(
        None, "Another key that is valid too, while `key` is rotated.", key="old_key", kind=k.SecretText
    )
    aliases: k.Names = setting(("*",), "Aliases it may use, globs allowed; default all.")
    rpm: k.CountOrNone = setting(None, "Requests per minute.")
    tpm: k.CountOrNone = setting(None, "Tokens per minute.")
    max_inflight: k.CountOrNone = setting(None, "Requests at a time.")
    priority: Priority | None = setting(None, "Wins over the alias' priority.")
    local_only: k.Yes = setting(False, "Its prompts never leave the LAN.")
    may_start: k.Yes = setting(False, "Its requests may start a backend with `run: on_request`.")
    admin: k.Yes = setting(False, "May drain, resume, probe and reload, and read /metrics.")
    budget: k.BudgetText = setting(None, "Spending limit, e.g. 1 USD/day.")
    on_unsupported: OnUnsupported | None = setting(None, "Wins over the alias' on_unsupported.")
    tasks: Tasks | None = setting(None)
    users: Users | None = setting(None)
    parent: Client | None = None

    @cached_property
    def _known_users(self) -> dict[str, Client]:
        return {}

    def user(self, name: str) -> Client:
        """One of its `users`, as a client with their limits, and what else this client may."""
        users, known = self.users, self._known_users
        assert users is not None
        if name not in known:
            if len(known) >= USERS_MOST:
                name = OTHER_USERS
            limits: dict[str, Any] = {
                "tpm": None,
                "rpm": users.rpm,
                "max_inflight": users.max_inflight,
                "budget": users.budget,
            }
            known[name] = replace(self, name=f"{self.name}/{name}", parent=self, **limits)
        return known[name]

    @property
    def owner(self) -> str:
        """The name under which things are kept and counted for it: its own, but never the one for callers without
        `clients`, whose things a client of that name would get."""
        return f"{_OWNER}{self.name}" if self.name == OPEN or self.name.startswith(_OWNER) else self.name

    @cached_property
    def _answers(self) -> dict[str, bool]:
        return {}

    def may_use(self, alias: str) -> bool:
        """Whether the client may use an alias, given by its own name."""
        allowed = self._answers.get(alias)
        if allowed is None:
            allowed = self._answers[alias] = any(fnmatchcase(alias, pattern) for pattern in self.aliases)
        return allowed


@dataclass(frozen=True)
class PastRequests:
    """What is kept of past requests, without their bodies, in server.data."""

    keep: k.CountToMillion = setting(10_000, "The last so many; 0 = none.")
    days: k.Count = setting(7, "For so many days.")


@dataclass(frozen=True, slots=True)
class Tls:
    """HTTPS at `listen`: files in PEM, read again when they change."""

    cert: k.Text = field(metadata=about("The certificate, with those between it and its authority."))
    key: k.Text = field(metadata=about("Its private key, without a passphrase."))


@dataclass(frozen=True, slots=True)
class Server:
    """The process itself. Only this section needs a restart.

    `max_body` and `memory` in bytes, `shutdown` in seconds, `hosts` in lower case (None = not written)."""

    listen: ClassVar[k.Listen] = in_file(LISTEN, "Address and port to listen on.")
    host: str = LISTEN[0]
    port: int = LISTEN[1]
    also_listen: k.Listens = setting((), "Further addresses: 127.0.0.1:11434 for programs that speak Ollama's API.")
    tls: Tls | None = setting(None)
    shared: k.OptionalSecret = setting(
        None, "redis://host:6379/0 when several gateways share one fleet; none = this one is alone."
    )
    data: k.Text = setting("./state", "Directory of the ledger, files, batches, kept responses and observed windows.")
    keep_responses: k.DurationOrNone = setting(None, "How long /v1/responses keeps what was last used; none = not.")
    max_kept: k.Size = setting(1024**3, "Bytes of kept responses together; one client may have a quarter.")
    env_file: ClassVar[k.Text] = in_file(".env", "NAME=value lines for ${NAME}, read at every load; none = not read.")
    max_body: k.Size = setting(64 * 1024 * 1024, "Largest request body; larger ones get 413.")
    max_file: k.Size = setting(512 * 1024 * 1024, "Largest file of /v1/files; larger ones get 413.")
    memory: k.SizeOrNone = setting(
        1024**3, "Bodies and answers held at a time, all together; beyond it 503. none = no bound."
    )
    shutdown: k.DurationFromZero = setting(120.0, "How long running streams may finish after SIGTERM.")
    hosts: k.HostNames | None = setting(
        None, "Names it is asked by, beside addresses and LAN names; omitted = not checked with clients."
    )
    metrics: Literal["open", "key"] | None = setting(
        None, "Who may read /metrics; key = an admin; default open without clients, else key."
    )
    log: LogForm = setting(
        "auto", "Form of the log; auto = pretty on a terminal, else JSON; none = no lines of single requests."
    )
    requests: PastRequests = setting(PastRequests())
    proxies: k.Networks = setting(
        (), "Addresses or networks of the proxies in front, whose connections are those of many callers."
    )


@dataclass(frozen=True, slots=True)
class Telegram:
    """A Telegram bot."""

    token: k.SecretText = field(metadata=about("The bot's token."))
    chat: k.Text = field(metadata=about("The chat's id, in quotes."))


@dataclass(frozen=True, slots=True)
class Alerts:
    """Whom to tell when a backend's state changes."""

    telegram: ClassVar[Telegram | None] = in_file(None)
    telegram_token: Secret | None = None
    telegram_chat: str | None = None
    webhook: k.OptionalSecret = setting(None, "URL that gets every alert as JSON.")
    notify: k.Secrets = setting((), "apprise URLs of services that get every alert as text.")
    deadman: k.OptionalSecret = setting(None, "URL asked every minute while the gateway lives.")
    draft_acceptance: k.Share = setting(
        0.15, "Share of drafted tokens below which a backend's speculative decoding is alerted; 0 = never."
    )


@dataclass(frozen=True, slots=True)
class Traces:
    """OpenTelemetry traces, sent by OTLP over HTTP."""

    endpoint: Secret = field(
        metadata=about(
            "URL of an OTLP/HTTP receiver, with or without /v1/traces; none = no traces.",
            kind=k.OptionalSecret,
        )
    )
    sample: k.Share = setting(1.0, "Share of the requests that are traced, where no caller has decided; 0 to 1.")
    prompts: k.Yes = setting(False, "Prompts go with the traces, except those of `local_only`.")


@dataclass(frozen=True)
class RoutesFile:
    """Every key of routes.yaml."""

    server: Server = setting(Server(), "The process itself.")
    defaults: Defaults = setting(Defaults(), "For every backend.")
    nodes: Mapping[str, Node] = setting({}, "The machines, by name.")
    backends: Mapping[str, Backend] = setting({}, "What exists, by name.")
    aliases: Mapping[str, Alias] = setting({}, "What clients may ask for, by name.")
    clients: Mapping[str, Client] = setting({}, "Who may ask, by name; omitted = anybody.")
    alerts: Alerts = setting(Alerts(), "Whom to tell.")
    traces: Traces | None = setting(None, "Where traces of requests go.")
    modes: lk.Modes = setting({}, "Which backends run together, by name of the mode; the first is the default.")
    catalog: k.Text | None = setting(
        None, "Your own rows of the fleet's catalogue: families, images, models, rules (docs/fleet.md)."
    )


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
    modes: Mapping[str, Mode] = field(default_factory=dict)
    mode: str | None = None  # the mode that `backends` are described in; None = as the file describes them
    own_catalog: str | None = None  # path of the operator's rows of the fleet's catalogue
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
        clients = self.clients.values()
        return {key: c for c in clients for key in (c.old_key_sha256, c.key_sha256) if key is not None}

    @cached_property
    def clients_by_owner(self) -> dict[str, Client]:
        """Clients by the name under which things are kept for them."""
        return {client.owner: client for client in self.clients.values()}

    @cached_property
    def engines(self) -> dict[str, Backend]:
        """The backends that are servers; the others are further models of one of them (`on`)."""
        return {name: backend for name, backend in self.backends.items() if backend.on is None}

    @property
    def metrics_are_open(self) -> bool:
        """Whether anybody may read `/metrics`, and not only an admin."""
        written = self.server.metrics
        return not self.clients if written is None else written == "open"

    def resolve(self, model: str) -> Alias | None:
        """The alias a client means by `model`: its own name, then a further name (`also`), then the first glob."""
        found = self._names.get(model)
        if found is None and self._globs:
            return next((alias for pattern, alias in self._globs if fnmatchcase(model, pattern)), None)
        return found

    def leaves_lan(self, alias: Alias) -> tuple[str, ...]:
        """The cloud backends that this alias names, in order; empty = its prompts can never leave the LAN."""
        names = [n for step in alias.steps for n in step]
        return tuple(dict.fromkeys(n for n in names if self.backends[n].cloud))
