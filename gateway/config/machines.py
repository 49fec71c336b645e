"""Backends and the machines that they run on, as routes.yaml defines them: nodes, launch commands, backends, modes."""

# ruff: noqa: RUF009  (`setting` gives a dataclass field, as `dataclasses.field` does)

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal
from urllib.parse import urlsplit

from gateway.config import kinds as k
from gateway.config import launch_kinds as lk
from gateway.config.secret import Secret as Secret
from gateway.config.setting import about, setting
from gateway.config.units import Budget as Budget
from gateway.launch.command import ServeCommand
from gateway.launch.docker import DockerRun
from gateway.launch.families import family_of

# The values of `engine` in routes.yaml; each has a row of traits (gateway/domain/servers.toml).
Engine = Literal["vllm", "openai", "llamacpp", "mlx", "ollama", "litellm", "http"]
# The values of `server`: servers with OpenAI's API, each with a row there too.
ModelServer = Literal[
    "vllm", "llamacpp", "mlx", "transformers", "lmstudio", "sglang", "tensorrt-llm", "tgi", "llama-cpp-python",
    "openai-cloud", "nvidia", "deepseek", "mistral", "moonshot", "zai", "minimax", "openrouter", "fireworks",
    "chatgpt", "opencode", "router",
]  # fmt: skip
Serves = Literal[
    "transcriptions", "translations", "speech", "images", "image_edits", "image_variations",
    "chat", "completions", "embeddings", "rerank", "score",
]  # fmt: skip
Identity = tuple[str, str, str | None]  # of a running server: name, engine, url
_KEPT_PATH = re.compile(r"/(v\d+\w*|openai)$")


@dataclass(frozen=True, slots=True)
class Node:
    """A machine."""

    name: str
    address: lk.Host | None = setting(None, "Its host name or address in the LAN, without port.")
    memory: k.Size | None = setting(None, "Memory that GPU and CPU share, e.g. 119.67GiB.")
    reserve: k.Size | None = setting(
        None, "Memory of it that is not free when it has booted, before any engine; default 3.6GiB."
    )
    link: lk.Host | None = setting(None, "Its address on the fast link between nodes; default its address.")
    exporter: k.Text | None = setting(None, "URL of its Prometheus exporter (temperatures, memory).")
    ssh: lk.SshTarget | None = setting(
        None, "Where `gateway fleet` reaches it by ssh: USER@HOST, or a Host of ssh_config."
    )


Entrypoint = Literal["vllm serve", "vllm", "none"]


@dataclass(frozen=True, slots=True)
class Launch:
    """The command that starts an engine, as it works by hand. What the gateway knows of the backend follows from it.

    `parsed` is the command read as vLLM's own parser reads it, `container` the flags of `docker`. `resident` in
    bytes."""

    image: k.Text | None = setting(None, "Container image; omitted = the command runs on the host itself.")
    command: lk.CommandLine | None = setting(None, "The whole line: vllm serve MODEL --port 8001 ...")
    env: lk.Environment = setting({}, "Environment variables of the engine; a ${NAME} stays a reference when rendered.")
    volumes: k.Names = setting((), "Mounts of the container, HOST:CONTAINER, as for `docker run -v`.")
    docker: lk.CommandLine | None = setting(None, "Further flags of `docker run`, e.g. --ipc=host --shm-size=16g.")
    resident: k.Size | None = setting(None, "Memory it holds once it runs, as measured; wins over the estimate.")
    parsed: ServeCommand = ServeCommand()
    container: DockerRun = DockerRun()
    entrypoint: Entrypoint | None = setting(
        None,
        "What the image itself runs in front of `command`; omitted = known for named images, else nothing is added.",
    )

    @property
    def starts(self) -> bool:
        """Whether it says what is started. A block with `resident` alone tells what was measured of an engine that
        something else starts: it has no unit, and nothing is known of a command."""
        return bool(self.command or self.image)

    def host_port(self, port: int) -> int:
        """The port of the node that leads to `port` of the engine."""
        return self.container.host_port(port) if self.image else port

    @property
    def variables(self) -> dict[str, str]:
        """The engine's environment variables, wherever they are written: those of `docker`, `env`, and in front of the
        program. What `docker` takes from its caller's environment (`-e NAME`) is left out."""
        given = {name: value for name, value in self.container.env.items() if value is not None}
        return {**given, **self.env, **self.parsed.env}

    @property
    def mounts(self) -> tuple[str, ...]:
        """Everything that is mounted, as for `docker run -v`."""
        return (*self.volumes, *self.container.volumes)


@dataclass(frozen=True, slots=True)
class Observed:
    """What an engine said of its memory when it started; `gateway fleet learn` writes it.

    In bytes, of one node; None: it did not say so."""

    engine: k.Text | None = setting(None, "Its version.")
    memory: k.Size | None = setting(None, "Memory of the node, as the engine counts it.")
    free: k.Size | None = setting(None, "Memory that was free when it started.")
    utilization: k.Share | None = setting(None, "The --gpu-memory-utilization that it ran with.")
    window: k.Count | None = setting(None, "The --max-model-len that it ran with.")
    cache_dtype: k.Text | None = setting(None, "The --kv-cache-dtype that it ran with.")
    weights: k.Size | None = setting(None, "Memory that its model took, a drafter's included.")
    kv: k.Size | None = setting(None, "Memory of its KV cache.")
    tokens: k.Count | None = setting(None, "Tokens that its KV cache holds.")
    concurrency: k.Number | None = setting(None, "Sequences of the whole window that its KV cache holds.")
    graphs: k.Size | None = setting(None, "Memory of its CUDA graphs.")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait for what.

    Seconds; None = no limit. `first_byte`: None = auto, by the size of the prompt, and infinite = no limit."""

    connect: k.Duration = setting(3.0, "For a TCP (and TLS) connection to the backend.")
    first_byte: k.DurationOrAuto = setting(
        None,
        "For the first content; auto = by the size of the prompt and the backend's prefill rate; none = no limit.",
    )
    idle: k.DurationOrNone = setting(120.0, "Silence inside an answer that has begun.")
    total: k.DurationOrNone = setting(None, "A whole attempt.")
    hold: k.Duration = setting(45.0, "How long a stream's status is held back before it is sent early.")
    load: k.Duration = setting(600.0, "A model that its server loads with the first request for it.")


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """How a backend's state is found out.

    Seconds, except the two counts. `every` None = this backend is never probed."""

    every: k.DurationOrNone = setting(5.0, "Between two liveness checks; none = never probed.")
    fail_after: k.Count = setting(3, "Failures in a row until the backend is down.")
    recover_after: k.Count = setting(2, "Good checks in a row until it is back.")
    canary: k.DurationOrNone = setting(900.0, "Between two tiny real requests when idle; none = never.")
    start_grace: k.DurationFromZero = setting(900.0, "How long a starting engine counts as warming.")
    path: k.Text = setting("/health", "Path of the liveness check.")


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Who may wait for a busy backend.

    `length` waiting requests at most, each for `max_wait` seconds at most, and for `pauses` pauses that all backends
    ask for."""

    length: k.CountFromZero = setting(32, "Waiting requests at most.")
    max_wait: k.DurationFromZero = setting(300.0, "How long each of them waits at most.")
    pauses: k.CountFromZero = setting(2, "Pauses (429) that a request waits through before its client gets the 429.")


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """Pictures that a client names by their address, for a server that fetches none itself (Ollama)."""

    fetch: k.PictureSources = setting(
        (), "Beginnings of the public addresses that the gateway fetches pictures from; https:// = any host."
    )


@dataclass(frozen=True, slots=True)
class Defaults:
    """For every backend; a backend may override any single key."""

    timeouts: Timeouts = setting(Timeouts())
    health: HealthSettings = setting(HealthSettings())
    queue: QueueSettings = setting(QueueSettings())
    images: ImageSettings = setting(ImageSettings())


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens, and per picture."""

    input: k.Usd = field(metadata=about("Per million prompt tokens."))
    output: k.Usd = field(metadata=about("Per million answer tokens."))
    cached: k.Usd | None = setting(None, "Per million prompt tokens that were cached; omitted = as `input`.")
    image: k.Usd = setting(0.0, "Per picture that is made (USD, not per million); with it, tokens may have no price.")


@dataclass(frozen=True, slots=True)
class Recover:
    """When the gateway restarts an engine that hangs. Seconds, and restarts within an hour."""

    after: k.Duration = setting(120.0, "How long its heartbeat and checks must say that it hangs.")
    max: k.PerHour = setting(3, "Restarts within an hour at most.")
    backoff: k.Duration = setting(300.0, "After a restart until the next one; doubled with each within the hour.")


@dataclass(frozen=True)
class Backend:
    """One serving endpoint.

    `url` has no trailing slash; None only for `litellm` without an explicit `url`. `context` in tokens; None = read.
    `slots` None = unlimited (cloud)."""

    name: str
    engine: Engine = setting(
        "vllm", "What kind of server it is; auto = openai, and told from what it shows.", kind=Literal[Engine, "auto"]
    )
    url: k.Text | None = setting(None, "With or without /v1; another path that ends in /vN or /openai is kept.")
    on: k.Text | None = setting(
        None, "The backend whose engine it is another model of (--lora-modules, a further served name).", names=True
    )
    cloud: k.Yes = setting(False, "Outside the LAN. Must be said for a host that is not private.", decided=True)
    nodes: tuple[str, ...] = setting(
        (), "The node it runs on, or a list: it falls with any of them.", key="node", kind=k.OneOrMany
    )
    model: k.Text | None = setting(None, "The model's name there; omitted = its first served name.")
    context: k.Count | None = setting(None, "Window in tokens (--max-model-len); omitted = read.")
    slots: k.SlotCount = setting(
        None, "Sequences at a time (--max-num-seqs); auto = learned, where its engine shows its work; none = unlimited."
    )
    slots_assumed: bool = False
    kv_pool: k.CountFromZero | None = setting(
        None,
        "Tokens of the KV cache that all slots share (llama-server: -c); 0 = each slot has its own window;"
        " omitted = as the server shows it.",
    )
    # None = not declared; "none" = declared to have none
    tool_parser: k.Text | None = setting(None, "--tool-call-parser, or none; omitted = learned.")
    auto_tools: k.Yes | None = setting(None, "--enable-auto-tool-choice; default true with a parser.")
    reasoning_parser: k.Text | None = setting(None, "--reasoning-parser, or none; omitted = learned.")
    thinking: Literal["optional", "always", "never"] | None = setting(
        None, "Whether the model thinks; default by model family."
    )
    thinking_switch: k.Text | None = setting(
        None, "The chat_template_kwargs key that switches thinking; default by model family."
    )
    vision: k.Yes | None = setting(None, "Takes images; omitted = tried and learned.")
    audio: k.Yes | None = setting(None, "Takes audio in chat messages; omitted = tried and learned.")
    exclusive: k.Yes = setting(
        False,
        "engine ollama: nobody else uses it. Else checks leave what it has loaded as it is, and as long as it is.",
    )
    pdf: k.Yes | None = setting(None, "Takes PDFs (`file` parts); omitted = as its server does, else learned.")
    serves: tuple[Serves, ...] = setting((), "What it serves; omitted = all that its engine can; engine http needs it.")
    dimensions: k.Count | None = setting(None, "Numbers in one of its embeddings; omitted = learned.")
    embedding_model: k.Text | None = setting(None, "The model that embeds, where servers call one model differently.")
    max_batch: k.Count | None = setting(None, "Texts, documents or pairs in one request at most; omitted = learned.")
    server: ModelServer | None = setting(None, "With engine openai: which server it is; omitted = recognised.")
    responses: Literal["own", "hosted", "chat"] | None = setting(None, "How it is asked for /v1/responses.")
    paths: k.Params = setting(
        {},
        "engine http: paths that differ from OpenAI's: {speech: /path}, of what it serves, and of voices.",
    )
    fields: k.Params = setting({}, "engine http: its names for OpenAI's fields: {file: audio}; none = leave it out.")
    fixed: k.Params = setting({}, "engine http: fields with values of their own, whatever the client sent.")
    run: Literal["always", "on_demand", "on_request"] = setting(
        "always",
        "on_demand: when it is not there it is parked, which is no failure; on_request: a request brings it up.",
    )
    stop_after: k.DurationOrNone = setting(None, "on_request only: idle for so long = stopped; none = stays.")
    min_run: k.DurationFromZero = setting(
        300.0, "on_request only: how long it runs before another may take its memory."
    )
    api_key: k.HeaderSecret = setting(None, "Sent to the backend as its bearer token.")
    price: Price | None = setting(None)
    budget: k.BudgetText = setting(None, "Spending limit, e.g. 5 USD/day.")
    timeouts: Timeouts = setting(Timeouts(), "Overrides of defaults.timeouts.")
    health: HealthSettings = setting(HealthSettings(), "Overrides of defaults.health.")
    queue: QueueSettings = setting(QueueSettings(), "Overrides of defaults.queue.")
    images: ImageSettings = setting(ImageSettings(), "Overrides of defaults.images.")
    recover: Recover | None = setting(None)
    launch: Launch | None = setting(None)
    observed: Observed | None = setting(None)
    profiles: Mapping[str, Mapping[str, Any]] = setting(
        {}, "Named changes of the command: {NAME: {max-model-len: 200000}}; none leaves a flag out.", kind=lk.Profiles
    )
    start: lk.CommandLine | None = setting(
        None, "Starts it; default with a launch block: the rendered unit, over the node's ssh.", decided=True
    )
    stop: lk.CommandLine | None = setting(
        None, "Stops it, and ends when it is stopped; default as start.", decided=True
    )

    parked: str | None = None  # why the mode in force parks it (config/modes.py)
    in_mode: bool = False  # the mode in force contains it

    def __hash__(self) -> int:  # the mappings of a launch block have no hash of their own
        return hash((self.name, self.engine, self.url))

    @property
    def generic(self) -> bool:
        """Is it any server with OpenAI's API? What kind it is, is recognised by what it shows."""
        return self.engine == "openai"

    @property
    def identity(self) -> Identity:
        """Equal in two snapshots: the same running server, whose health, slots and connections carry over."""
        return (self.name, self.engine if self.on is None else f"{self.engine} of {self.on}", self.url)

    @cached_property
    def checkpoint(self) -> str | None:
        """The model that the launch command loads, where its name says more than the served one: the family."""
        loaded = self.launch.parsed.model if self.launch is not None else None
        return loaded if family_of(loaded) is not None else None

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

    def without_key(self, answer: bytes) -> bytes:
        """An error body with the backend's key masked: a server may repeat the key that it received."""
        key = self.api_key
        return answer if key is None or not key.reveal() else answer.replace(key.reveal().encode(), b"***")


@dataclass(frozen=True, slots=True)
class Mode:
    """Backends that run together. `profiles`: backend -> the profile it is launched with."""

    name: str
    backends: tuple[str, ...]
    profiles: Mapping[str, str] = field(default_factory=dict)
