"""What each kind of server does and does not do, as data: one row per server.

Code outside gateway/engines reads these rows instead of asking which server a backend is, so it does not depend on how
requests are sent to one. The row in force for a backend is `BackendState.traits`: that of its `engine:`, and for
`engine: openai` that of its `server:`, else that of the server that it shows itself to be (`Signs`), else the row
`openai`. Where only routes.yaml is known it is `traits_of(backend)`.

To add a server that speaks OpenAI's API: its name in `ModelServer` (gateway/config/snapshot.py) and a row here. To add
an engine: its name in `Engine` there, a row here, and its line of the registry in gateway/engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from gateway.config.snapshot import Backend
from gateway.domain import clouds, exact_counts, own_responses
from gateway.domain.exact_counts import NO_COUNTS, Counts
from gateway.domain.forms import USUAL_FORMS, Forms

ThinkingField = Literal["chat_template_kwargs", "think", "reasoning_effort"]


@dataclass(frozen=True, slots=True)
class Probe:
    """The paths that the prober requests, below the server's root (`/health`) or its API (`models`). A server without
    `models` has no model list; any status below 500 then counts as healthy. `metrics`: vLLM's page of counters, which
    show whether the engine makes progress; None = there is none. `slots`: a list of the slots with `is_processing`,
    answered by the engine's own loop, so that it also shows a hung one. `asleep`: says whether the engine was put to
    sleep, where it exists. `held`: the models that it has in memory."""

    liveness: str | None  # None = `health.path` of routes.yaml
    models: str | None
    version: str | None
    metrics: str | None = None
    asleep: str | None = None
    slots: str | None = None
    held: str | None = None


@dataclass(frozen=True, slots=True)
class Description:
    """Where a server tells more of itself than its model list does. `path` is below its root. The others are paths in
    the decoded answer ("a.b" = `b` inside `a`); where the answer has a list `data`, inside the entry of the model.
    `slots`: how many sequences it runs at once; `window`: tokens of one sequence."""

    path: str
    window: str | None = None
    slots: str | None = None


@dataclass(frozen=True, slots=True)
class Signs:
    """How a server is recognised. All that is set has to hold. `owned_by`: of an entry of its model list, one of these.
    `header`: (name, beginning of the value) of the answer with the model list. `path`: a path below its root that
    answers 200 with a JSON object that has all the `keys` ("a.b" = `b` inside `a`)."""

    owned_by: tuple[str, ...] = ()
    header: tuple[str, str] | None = None
    path: str | None = None
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ErrorTexts:
    """Regular expressions for whole error messages, by what they mean whatever the status is. `dead`: the engine behind
    the server has died."""

    dead: tuple[str, ...] = ()


NO_TEXTS = ErrorTexts()


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """What one kind of server does. A default is what OpenAI's API promises, or None = not known.

    Which model, and when:
    `endpoints`: the names of the endpoints it serves; `serves` of routes.yaml names fewer. Empty = a speech server,
    whose endpoints are in routes.yaml alone.
    `model_optional`: a request without `model` goes to the first model it serves.
    `loads_on_demand`: it loads a model with the first request for it, or when its API is asked to (Ollama's).
    `loaded`: (path in an entry of the model list, or of the list that `describes` names, value): the models that are
    loaded; None = all that are listed.
    `default_model`: the name in a request that means the model the server was started with.
    `lists_cache`: its model list names what lies on the disk, not what it serves.

    The window:
    `window`: paths in an entry of the model list where the window is ("a.b" = `b` inside `a`), the first that is there
    counts. `describes`: where it tells more of itself.
    `takes_window`: a request says which window the model is to have; the reported one is the most that it can have.
    `cuts_silently`: a prompt beyond the window is cut with a 200, so it must be known to fit before it is sent.
    `refuses_unread`: a prompt beyond the window is refused before all of it is computed, so a check may ask.
    `computes_beyond`: a prompt beyond the model's window is computed on, so that only `context` bounds it.
    `clamps_since`: from this version (major, minor) on it shortens the answer to what the window leaves; None = never.
    `counts`: how it counts prompts exactly.
    `short_answers`: without `max_tokens` it ends an answer after a few tokens, so that a limit is filled in.

    Calls:
    `calls_on_demand`: it honours `tool_choice: required`.
    `named_calls`: how a call of a named tool is had: "native"; "only_tool" = by sending that tool alone with
    `required`; "never".
    `withholds_tools`: it honours `tool_choice: none`; else the tools are dropped from the request.
    `assumes_no_calls`: without `tool_choice` it assumes none, so that `auto` is written.
    `emulates_calls`: its server lacks such a `tool_choice`, but the engine's client builds a call from structured
    output.
    `enforces_schema`: it enforces `response_format: json_schema`, whatever the model; None = not known.

    Fields of a request:
    `enforces_stop`: it ends the answer before a word of `stop`; else the gateway does.
    `stops_thoughts`: a word of `stop` ends the thoughts too; so for a model that thinks the gateway ends the answer.
    `many_choices`, `logprobs`: it honours `n` > 1, and `logprobs`.
    `list_prompts`: a list of prompts is one request; else it is split. `token_prompts`: then a prompt may be token ids.
    `integer_bias`: it takes whole numbers in `logit_bias`; else they are sent as floats.
    `checks_limits`: it answers a limit below 1 with a 400, if it wants none; else the gateway does.
    `continues_text`: it continues the last message of a chat where its text ends (`continue_final_message`), and does
    not repeat that text in its answer; None = not known.
    `takes_pdf`: it takes PDFs in chats, as parts of type `file`; None = not known.
    `thinking_field`: the field of a request that switches thinking; None = only what routes.yaml declares.
    `forms`: roles, names and ids that it reads (domain/forms.py).

    Answers:
    `thoughts`: the field of thoughts in a message; "content" = they stay in the text.
    `streams_usage`: usage comes at the end of a stream "asked" for, "always", or "never".
    `ends_without_done`: its streams end without `[DONE]`.
    `stops_unstreamed`: it stops computing a whole answer when the connection closes; else it is asked for a stream.
    `leaves_calls_unread`: its parser takes the opening tag of a call that it cannot read, leaves the rest in the text,
    and passes on arguments that are no JSON.
    `silent_parsers`: its parsers of calls that see no special tokens, though calls are marked with such, unless the
    request asks for them.
    `errors`: what its messages mean beyond what their status says.
    `always_answers`: its health check is answered however busy it is, so silence there means that it answers nothing
    new (it drains). `answers_late`: it answers nothing while it computes a prompt, its health check neither.

    Others:
    `launch_flags`: vLLM's launch flags decide what it can do (parsers of calls and thoughts, media). Without a parser
    of calls it still renders the tools into the prompt.
    `library`: requests go through a library for many clouds (litellm). Its model names begin with the provider, it
    knows prices, and it words its own error messages.
    `responses`: how it serves `/v1/responses` itself; None = it is always asked as a chat.
    `embeds_or_ranks`: a server does one of the two; one that ranks answers requests for vectors with numbers that mean
    nothing.
    `probe`: None = never probed. `signs`: None = it has to be named."""

    endpoints: frozenset[str]
    model_optional: bool = False
    loads_on_demand: bool = False
    loaded: tuple[str, str] | None = None
    default_model: str | None = None
    lists_cache: bool = False
    window: tuple[str, ...] = ("max_model_len", "context_length")
    describes: Description | None = None
    takes_window: bool = False
    cuts_silently: bool = False
    refuses_unread: bool = False
    computes_beyond: bool = False
    clamps_since: tuple[int, int] | None = None
    counts: Counts = NO_COUNTS
    short_answers: bool = False
    calls_on_demand: bool = False
    named_calls: Literal["native", "only_tool", "never"] = "native"
    withholds_tools: bool = True
    assumes_no_calls: bool = False
    emulates_calls: bool = False
    enforces_schema: bool | None = None
    enforces_stop: bool = True
    stops_thoughts: bool = False
    many_choices: bool = True
    logprobs: bool = True
    list_prompts: bool = True
    token_prompts: bool = False
    integer_bias: bool = True
    checks_limits: bool = True
    continues_text: bool | None = False
    takes_pdf: bool | None = False
    thinking_field: ThinkingField | None = None
    forms: Forms = USUAL_FORMS
    thoughts: Literal["reasoning", "reasoning_content", "content"] | None = None
    streams_usage: Literal["asked", "always", "never"] = "asked"
    ends_without_done: bool = False
    stops_unstreamed: bool = True
    leaves_calls_unread: bool = False
    silent_parsers: frozenset[str] = frozenset()
    errors: ErrorTexts = NO_TEXTS
    always_answers: bool = False
    answers_late: bool = False
    launch_flags: bool = False
    library: bool = False
    responses: own_responses.OwnResponses | None = None
    embeds_or_ranks: bool = False
    probe: Probe | None = None
    signs: Signs | None = None

    @property
    def chats(self) -> bool:
        """Does it serve chat completions? Canaries, checks and benchmarks are for such servers only."""
        return "chat" in self.endpoints

    @property
    def asked_otherwise(self) -> bool:
        """Is it asked in another way than the client asked, because it lacks something?"""
        whole = self.enforces_stop and self.stops_unstreamed and self.withholds_tools
        return not (whole and self.many_choices and self.list_prompts and self.integer_bias)


_OPENAI = frozenset({"chat", "completions", "embeddings"})
_RANKS = _OPENAI | {"rerank"}
_SCORES = _RANKS | {"score"}
_TEXT = frozenset({"chat", "completions"})


def _cloud(forms: Forms) -> EngineTraits:
    """A cloud with OpenAI's API, as its public reference describes it."""
    return EngineTraits(
        _SCORES,
        calls_on_demand=True,
        continues_text=None,
        takes_pdf=None,
        forms=forms,
        streams_usage="always" if "stream_options" in forms.refused else "asked",
        responses=own_responses.OPENAI,
        probe=Probe(liveness="models", models="models", version=None),
    )


# What the servers of Apple's and Hugging Face's libraries have in common: they generate text, and enforce nothing.
_TRANSFORMER = EngineTraits(
    _TEXT,
    model_optional=True,
    lists_cache=True,
    computes_beyond=True,
    short_answers=True,
    named_calls="never",
    withholds_tools=False,
    enforces_schema=False,
    enforces_stop=False,
    many_choices=False,
    logprobs=False,
    list_prompts=False,
    thinking_field="chat_template_kwargs",
    answers_late=True,
    stops_unstreamed=False,
    probe=Probe(liveness=None, models="models", version=None),
)

TRAITS: Mapping[str, EngineTraits] = MappingProxyType(
    {
        # vLLM 0.32.0, seen running.
        "vllm": EngineTraits(
            _SCORES,
            stops_thoughts=True,
            model_optional=True,
            refuses_unread=True,
            clamps_since=(0, 32),
            counts=exact_counts.VLLM,
            calls_on_demand=True,
            enforces_schema=True,
            continues_text=True,
            thinking_field="chat_template_kwargs",
            thoughts="reasoning",
            launch_flags=True,
            responses=own_responses.VLLM,
            probe=Probe(liveness=None, models="models", version="/version", metrics="/metrics", asleep="/is_sleeping"),
            signs=Signs(owned_by=("vllm", "vllm-frontend-rs")),
        ),
        # Any server that is not recognised: what OpenAI's API promises is tried.
        "openai": EngineTraits(
            _SCORES,
            calls_on_demand=True,
            continues_text=None,
            takes_pdf=None,
            forms=Forms(limit="both"),
            responses=own_responses.OPENAI,
            probe=Probe(liveness="models", models="models", version=None),
        ),
        # llama-server of 2026-10-01 (llama.cpp 0c1e57098), seen running.
        "llamacpp": EngineTraits(
            _RANKS,
            stops_thoughts=True,
            embeds_or_ranks=True,
            loaded=("status.value", "loaded"),
            window=("meta.n_ctx",),
            describes=Description("/props", window="default_generation_settings.n_ctx", slots="total_slots"),
            refuses_unread=True,
            counts=exact_counts.LLAMACPP,
            calls_on_demand=True,
            named_calls="only_tool",
            enforces_schema=True,
            thinking_field="chat_template_kwargs",
            forms=Forms(limit="both"),
            thoughts="reasoning_content",
            stops_unstreamed=False,
            probe=Probe(liveness=None, models="models", version=None, metrics="/metrics", slots="/slots"),
            signs=Signs(owned_by=("llamacpp",)),
        ),
        # mlx_lm.server 0.32.2, seen running.
        "mlx": replace(
            _TRANSFORMER,
            default_model="default_model",
            thoughts="reasoning",
            errors=ErrorTexts(dead=("generation thread died",)),
            signs=Signs(header=("server", "BaseHTTP/"), path="/health", keys=("status",)),
        ),
        # transformers serve 5.23.0, seen running.
        "transformers": replace(
            _TRANSFORMER,
            integer_bias=False,
            checks_limits=False,
            thoughts="reasoning_content",
            streams_usage="always",
            ends_without_done=True,
            signs=Signs(path="/openapi.json", keys=("paths./load_model", "paths./v1/chat/completions")),
        ),
        # LM Studio 0.3/0.4, from its documents; never seen running.
        "lmstudio": EngineTraits(
            _OPENAI,
            loads_on_demand=True,
            loaded=("state", "loaded"),
            lists_cache=True,
            describes=Description("/api/v0/models", window="loaded_context_length"),
            calls_on_demand=True,
            named_calls="only_tool",
            enforces_schema=True,
            many_choices=False,
            logprobs=False,
            thoughts="reasoning_content",
            probe=Probe(liveness="models", models="models", version=None),
            signs=Signs(owned_by=("organization_owner",)),
        ),
        # SGLang 0.5, from its source; never seen running.
        "sglang": EngineTraits(
            _OPENAI,
            stops_thoughts=True,
            model_optional=True,
            refuses_unread=True,
            counts=exact_counts.SGLANG,
            calls_on_demand=True,
            enforces_schema=True,
            continues_text=True,
            thinking_field="chat_template_kwargs",
            thoughts="reasoning_content",
            probe=Probe(liveness=None, models="models", version=None),
            signs=Signs(owned_by=("sglang",)),
        ),
        # TensorRT-LLM 1.x (trtllm-serve), from its source; never seen running.
        "tensorrt-llm": EngineTraits(
            _TEXT,
            window=(),
            calls_on_demand=True,
            assumes_no_calls=True,
            thinking_field="chat_template_kwargs",
            thoughts="reasoning_content",
            probe=Probe(liveness=None, models="models", version="/version"),
            signs=Signs(owned_by=("tensorrt_llm",)),
        ),
        # text-generation-inference 3.x, from its source; never seen running.
        "tgi": EngineTraits(
            _TEXT,
            describes=Description("/info", window="max_total_tokens", slots="max_concurrent_requests"),
            refuses_unread=True,
            counts=exact_counts.TGI,
            calls_on_demand=True,
            enforces_schema=True,
            many_choices=False,
            thoughts="content",
            probe=Probe(liveness=None, models="models", version=None),
            signs=Signs(path="/info", keys=("model_id", "max_total_tokens")),
        ),
        # llama_cpp.server 0.3.36 (llama-cpp-python), seen running.
        "llama-cpp-python": EngineTraits(
            _OPENAI,
            window=(),
            short_answers=True,
            enforces_schema=False,
            many_choices=False,
            logprobs=False,
            forms=Forms(limit="max_tokens"),
            thoughts="content",
            streams_usage="never",
            probe=Probe(liveness="models", models="models", version=None),
            signs=Signs(owned_by=("me",), path="/openapi.json", keys=("paths./extras/tokenize/count",)),
        ),
        "ollama": EngineTraits(
            _OPENAI,
            loads_on_demand=True,
            takes_window=True,
            cuts_silently=True,
            emulates_calls=True,
            enforces_schema=True,
            thinking_field="think",
            signs=Signs(path="/api/ps", keys=("models",)),
            probe=Probe(liveness="/api/tags", models="/api/tags", version="/api/version", held="/api/ps"),
        ),
        # No probe: every request to a cloud is billed.
        "litellm": EngineTraits(
            frozenset({"chat", "embeddings"}),
            calls_on_demand=True,
            takes_pdf=None,
            thinking_field="reasoning_effort",
            forms=Forms(developer=True),
            library=True,
        ),
        # What one of these serves is in routes.yaml (`serves`). Speech servers have no path in common, so any answer
        # counts as alive.
        "http": EngineTraits(
            frozenset(),
            model_optional=True,
            named_calls="never",
            answers_late=True,
            probe=Probe(liveness=None, models=None, version=None),
        ),
        **{name: _cloud(forms) for name, (_, forms) in clouds.CLOUDS.items()},
    }
)


def traits_of(backend: Backend) -> EngineTraits:
    """The row of what routes.yaml declares."""
    return serving(TRAITS[declared_server(backend)], backend.serves)


def serving(row: EngineTraits, serves: tuple[str, ...]) -> EngineTraits:
    """The row of a server that serves only these endpoints; none = all that such a server can."""
    return replace(row, endpoints=frozenset(serves)) if serves and row.endpoints else row


def declared_server(backend: Backend) -> str:
    """The name of that row. A cloud is known by its address."""
    known = clouds.at(backend.url) if backend.engine == "openai" and backend.url is not None else None
    return backend.server or known or backend.engine
