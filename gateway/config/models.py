"""routes.yaml as pydantic models: which keys exist, what they take, what they mean.

`routes.schema.json` is generated from these, and a test holds `docs/routes.md` against them. Every key may be left out
as far as the models go; what must be there, and what fits together, is decided in `resolve.py`, where names are known.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.config import fields as f
from gateway.config.snapshot import Balance, CloudWhen, Engine, OnUnsupported


class Section(BaseModel):
    """Unknown keys are errors; nothing is converted silently."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True, protected_namespaces=())


class ServerSection(Section):
    """The process itself. Only this section needs a restart."""

    listen: f.Listen = Field(default=("0.0.0.0", 4000), description="Address and port to listen on.")
    shared: f.OptionalSecret = Field(
        default=None, description="redis://host:6379/0 when several gateways share one fleet; none = this one is alone."
    )
    data: f.Text = Field(default="./state", description="Directory of the usage ledger and the last observed windows.")
    env_file: f.Text = Field(
        default=".env", description="NAME=value lines for ${NAME}, read at every load; none = not read."
    )
    max_body: f.Size = Field(default=64 * 1024 * 1024, description="Largest request body; larger ones get 413.")
    memory: f.SizeOrNone = Field(
        default=1024**3, description="Bodies and answers held at a time, all together; beyond it 503. none = no bound."
    )
    shutdown: f.DurationFromZero = Field(
        default=120.0, description="How long running streams may finish after SIGTERM."
    )
    hosts: f.HostNames | None = Field(
        default=None,
        description="Names it is asked by, beside addresses and LAN names; omitted = not checked with clients.",
    )
    metrics: Literal["open", "key"] | None = Field(
        default=None, description="Who may read /metrics; key = an admin; default open without clients, else key."
    )
    log: Literal["auto", "json", "pretty", "none"] = Field(
        default="auto",
        description="Form of the log; auto = pretty on a terminal, else JSON; none = no lines of single requests.",
    )
    proxies: f.Networks = Field(
        default_factory=list,
        description="Addresses or networks of the proxies in front, whose connections are those of many callers.",
    )


class TimeoutsSection(Section):
    """How long to wait for what."""

    connect: f.Duration = Field(default=3.0, description="For a TCP (and TLS) connection to the backend.")
    first_byte: f.DurationOrAuto = Field(
        default=None,
        description="For the first content; auto = by the size of the prompt and the backend's prefill rate; "
        "none = no limit.",
    )
    idle: f.DurationOrNone = Field(default=120.0, description="Silence inside an answer that has begun.")
    total: f.DurationOrNone = Field(default=None, description="A whole attempt.")
    hold: f.Duration = Field(
        default=45.0, description="How long a stream's status is held back before it is sent early."
    )


class HealthSection(Section):
    """How a backend's state is found out."""

    every: f.DurationOrNone = Field(default=5.0, description="Between two liveness checks; none = never probed.")
    fail_after: f.Count = Field(default=3, description="Failures in a row until the backend is down.")
    recover_after: f.Count = Field(default=2, description="Good checks in a row until it is back.")
    canary: f.DurationOrNone = Field(
        default=900.0, description="Between two tiny real requests when idle; none = never."
    )
    start_grace: f.DurationFromZero = Field(default=900.0, description="How long a starting engine counts as warming.")
    path: f.Text = Field(default="/health", description="Path of the liveness check.")


class QueueSection(Section):
    """Who may wait for a busy backend."""

    length: f.CountFromZero = Field(default=32, description="Waiting requests at most.")
    max_wait: f.DurationFromZero = Field(default=300.0, description="How long each of them waits at most.")


class DefaultsSection(Section):
    """For every backend; a backend may override any single key."""

    timeouts: TimeoutsSection = Field(default_factory=TimeoutsSection, description="How long to wait for what.")
    health: HealthSection = Field(default_factory=HealthSection, description="How a backend's state is found out.")
    queue: QueueSection = Field(default_factory=QueueSection, description="Who may wait for a busy backend.")


class NodeSection(Section):
    """A machine."""

    memory: f.Size | None = Field(default=None, description="Memory that GPU and CPU share, e.g. 119.67GiB.")
    exporter: f.Text | None = Field(default=None, description="URL of its Prometheus exporter (temperatures, memory).")


class PriceSection(Section):
    """USD per million tokens."""

    input: f.Usd | None = Field(default=None, description="Per million prompt tokens.")
    output: f.Usd | None = Field(default=None, description="Per million answer tokens.")


class BackendSection(Section):
    """One serving endpoint."""

    engine: Engine = Field(default="vllm", description="What kind of server it is.")
    url: f.Text | None = Field(
        default=None, description="With or without /v1; another path that ends in /vN or /openai is kept."
    )
    cloud: f.Yes | None = Field(
        default=None, description="Outside the LAN. Must be said for a host that is not private."
    )
    node: f.OneOrMany | None = Field(
        default=None, description="The node it runs on, or a list: it falls with any of them."
    )
    model: f.Text | None = Field(default=None, description="The model's name there; omitted = its first served name.")
    context: f.Count | None = Field(default=None, description="Window in tokens (--max-model-len); omitted = read.")
    slots: f.CountOrNone = Field(default=None, description="Sequences at a time (--max-num-seqs); none = unlimited.")
    tool_parser: f.Text | None = Field(default=None, description="--tool-call-parser, or none; omitted = learned.")
    auto_tools: f.Yes | None = Field(default=None, description="--enable-auto-tool-choice; default true with a parser.")
    reasoning_parser: f.Text | None = Field(default=None, description="--reasoning-parser, or none; omitted = learned.")
    thinking: Literal["optional", "always", "never"] | None = Field(
        default=None, description="Whether the model thinks; default by model family."
    )
    thinking_switch: f.Text | None = Field(
        default=None, description="The chat_template_kwargs key that switches thinking; default by model family."
    )
    vision: f.Yes | None = Field(default=None, description="Takes images; omitted = tried and learned.")
    audio: f.Yes | None = Field(default=None, description="Takes audio in chat messages; omitted = tried and learned.")
    serves: list[Literal["transcriptions", "translations", "speech"]] | None = Field(
        default=None, description="What an `engine: http` backend does."
    )
    run: Literal["always", "on_demand"] = Field(
        default="always", description="on_demand: when it is not there it is parked, which is no failure."
    )
    api_key: f.HeaderSecret = Field(default=None, description="Sent to the backend as its bearer token.")
    price: PriceSection | None = Field(default=None, description="USD per million tokens.")
    budget: f.BudgetText = Field(default=None, description="Spending limit, e.g. 5 USD/day.")
    timeouts: TimeoutsSection | None = Field(default=None, description="Overrides of defaults.timeouts.")
    health: HealthSection | None = Field(default=None, description="Overrides of defaults.health.")
    queue: QueueSection | None = Field(default=None, description="Overrides of defaults.queue.")
    launch: f.Free = Field(default=None, description="How the fleet tools start it.")


class AliasSection(Section):
    """A name that clients ask for. The short form `name: [a, b]` stands for `{use: [a, b]}`."""

    use: f.Steps | None = Field(
        default=None, description="Steps in order; a list inside the list is one step of several backends side by side."
    )
    ask_all: f.Names | None = Field(
        default=None, description="Instead of `use`: ask each of these, one choice from each."
    )
    also: f.Names | None = Field(default=None, description="Further names for it; globs such as claude-* are allowed.")
    balance: Balance = Field(default="affinity", description="How a request is placed inside a step.")
    on_busy: Literal["wait", "next"] = Field(
        default="wait", description="next = spill to the next local step when busy."
    )
    cloud_when: list[CloudWhen] | None = Field(
        default=None, description="When a cloud step may be entered; default [down]."
    )
    on_unsupported: OnUnsupported = Field(
        default="refuse", description="What to do when no step can serve the request."
    )
    params: f.Params | None = Field(default=None, description="Request fields filled in where the client said nothing.")
    thinking: Literal["on", "off"] | None = Field(default=None, description="Forced; omitted = as the client asks.")
    min_max_tokens: f.Count | None = Field(default=None, description="Raises a smaller max_tokens that a client sent.")
    reasoning_field: Literal["as_is", "both", "reasoning", "reasoning_content", "none"] = Field(
        default="as_is", description="Under which name clients get the reasoning."
    )
    priority: Literal["interactive", "batch"] = Field(
        default="interactive", description="Batch waits behind interactive."
    )
    listed: f.Yes | None = Field(
        default=None, description="In /v1/models; default: chat aliases are, audio ones are not."
    )


class TasksSection(Section):
    """Where Open WebUI's `### Task:` calls go."""

    alias: f.Text | None = Field(default=None, description="The alias that answers them.")
    thinking: Literal["on", "off"] | None = Field(default=None, description="Forced for them.")


class ClientSection(Section):
    """One caller."""

    key: f.SecretText | None = Field(default=None, description="Its key, or sha256:<64 hex digits> of it.")
    aliases: f.Names | None = Field(default=None, description="Aliases it may use, globs allowed; default all.")
    rpm: f.CountOrNone = Field(default=None, description="Requests per minute.")
    tpm: f.CountOrNone = Field(default=None, description="Tokens per minute.")
    max_inflight: f.CountOrNone = Field(default=None, description="Requests at a time.")
    priority: Literal["interactive", "batch"] | None = Field(default=None, description="Wins over the alias' priority.")
    local_only: f.Yes = Field(default=False, description="Its prompts never leave the LAN.")
    admin: f.Yes = Field(default=False, description="May drain, resume, probe and reload, and read /metrics.")
    budget: f.BudgetText = Field(default=None, description="Spending limit, e.g. 1 USD/day.")
    on_unsupported: OnUnsupported | None = Field(default=None, description="Wins over the alias' on_unsupported.")
    tasks: TasksSection | None = Field(default=None, description="Where Open WebUI's `### Task:` calls go.")


class TelegramSection(Section):
    """A Telegram bot."""

    token: f.SecretText | None = Field(default=None, description="The bot's token.")
    chat: f.Text | None = Field(default=None, description="The chat's id, in quotes.")


class AlertsSection(Section):
    """Whom to tell when a backend's state changes."""

    telegram: TelegramSection | None = Field(default=None, description="A Telegram bot.")
    webhook: f.OptionalSecret = Field(default=None, description="URL that gets every alert as JSON.")
    deadman: f.OptionalSecret = Field(default=None, description="URL asked every minute while the gateway lives.")


class TracesSection(Section):
    """OpenTelemetry traces, sent by OTLP over HTTP."""

    endpoint: f.OptionalSecret = Field(
        default=None, description="URL of an OTLP/HTTP receiver, with or without /v1/traces; none = no traces."
    )
    sample: f.Share = Field(
        default=1.0, description="Share of the requests that are traced, where no caller has decided; 0 to 1."
    )
    prompts: f.Yes = Field(default=False, description="Prompts go with the traces, except those of `local_only`.")


class RoutesFile(Section):
    """Every key of routes.yaml."""

    model_config = ConfigDict(title="routes.yaml of spark-gateway")

    server: ServerSection = Field(default_factory=ServerSection, description="The process itself.")
    defaults: DefaultsSection = Field(default_factory=DefaultsSection, description="For every backend.")
    nodes: dict[str, NodeSection] = Field(default_factory=dict, description="The machines, by name.")
    backends: dict[str, BackendSection] = Field(default_factory=dict, description="What exists, by name.")
    aliases: dict[str, AliasSection] = Field(default_factory=dict, description="What clients may ask for, by name.")
    clients: dict[str, ClientSection] = Field(
        default_factory=dict, description="Who may ask, by name; omitted = anybody."
    )
    alerts: AlertsSection = Field(default_factory=AlertsSection, description="Whom to tell.")
    traces: TracesSection = Field(default_factory=TracesSection, description="Where traces of requests go.")
    launch: f.Free = Field(default=None, description="Shared settings of the fleet tools.")
    profiles: f.Free = Field(default=None, description="Launch profiles of the fleet tools.")
    modes: f.Free = Field(default=None, description="Which backends run together.")
