"""What each kind of server does and does not do: what a row of it says. The rows themselves are data, in servers.toml.

Code outside gateway/engines reads these rows instead of asking which server a backend is, so it does not depend on how
requests are sent to one. The row in force for a backend is `BackendState.traits`: that of its `engine:`, and for
`engine: openai` that of its `server:`, else that of the server that it shows itself to be (`Signs`), else the row
`openai`. Where only routes.yaml is known it is `traits_of(backend)`.

To add a server that speaks OpenAI's API: its name in `ModelServer` (gateway/config/machines.py) and a row there. To add
an engine: its name in `Engine` there, a row, and its line of the registry in gateway/engines.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from gateway.config.snapshot import Backend
from gateway.domain.forms import USUAL_FORMS, Forms

ThinkingField = Literal["chat_template_kwargs", "think", "reasoning_effort"]


@dataclass(frozen=True, slots=True)
class Probe:
    """The paths that the prober requests, below the server's root (`/health`) or its API (`models`). A server without
    `models` has no model list; any status below 500 then counts as healthy. `metrics`: vLLM's page of counters, which
    show whether the engine makes progress; None = there is none. `slots`: a list of the slots with `is_processing`,
    answered by the engine's own loop, so that it also shows a hung one. `asleep`: says whether the engine was put to
    sleep, where it exists. `held`: the models that it has in memory."""

    liveness: str | None = None  # None = `health.path` of routes.yaml
    models: str | None = None
    version: str | None = None
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
class Tokenizer:
    """How a server tells the tokens of a text. The gateway speaks vLLM's words, which are the defaults (of 0.32).

    `prompt`, `special`, `strings`: its names of `prompt`, `add_special_tokens` and `return_token_strs`; "" = it has no
    such field. `text`: its name of the text in the answer about tokens. `chats`: it takes `messages`. `renders`: the
    path at which it writes `messages` as one text; None = it does not. `pieces`: with `strings`, each token is an
    object with its `id` and `piece`."""

    prompt: str = "prompt"
    special: str = "add_special_tokens"
    strings: str = "return_token_strs"
    text: str = "prompt"
    chats: bool = True
    renders: str | None = None
    pieces: bool = False


@dataclass(frozen=True, slots=True)
class Count:
    """One question for a number of tokens.

    `path`: below the server's root. `fields`: the fields of a request that are sent along, because they change the
    prompt. `prompt`: the server's name of the field `prompt`. `also`: further fields, as JSON. `answer`: the key of the
    number in the answer; "" = the whole answer; a list there is counted. `thoughts`: the only name under which earlier
    thoughts are counted; None = as in a chat."""

    path: str
    fields: tuple[str, ...]
    answer: str
    prompt: str = "prompt"
    also: tuple[tuple[str, str], ...] = ()
    thoughts: str | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """How a server counts the prompts of each endpoint exactly, and tells tokens themselves; None = it cannot."""

    chat: Count | None = None
    completions: Count | None = None
    tokenizer: Tokenizer | None = None

    def of(self, endpoint: str) -> Count | None:
        """`endpoint`: the name of an inference endpoint."""
        return self.chat if endpoint == "chat" else self.completions if endpoint == "completions" else None


NO_COUNTS = Counts()
RESPONSES_LACK = "endpoint:responses"  # the lack that is learned of a server that answers 404 there
Trouble = Literal["allowed_tools", "summary", "encrypted", "system_later", "neighbours", "parts", "unfinished", "media"]


@dataclass(frozen=True, slots=True)
class OwnResponses:
    """How a server serves OpenAI's `/v1/responses` itself. `fields`: those of a request that it obeys; a request with
    others is asked as a chat, because it would ignore them. `troubles`: what it answers worse than the same request as
    a chat (apps/dialects/responses/own_request.py tells what each is). `hosted`: it runs tools of its own (web_search,
    ...) and reads files, which no chat can carry. `untold`: it is asked there even where `responses` is not in
    routes.yaml."""

    fields: frozenset[str]
    troubles: frozenset[Trouble] = frozenset()
    hosted: bool = False
    untold: bool = True


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
    `tells_death`: regular expressions for whole error messages that say that the engine behind it has died.
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
    tells_death: tuple[str, ...] = ()
    always_answers: bool = False
    answers_late: bool = False
    launch_flags: bool = False
    library: bool = False
    responses: OwnResponses | None = None
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


def _row(told: Mapping[str, Any]) -> EngineTraits:
    """The row of these keys of servers.toml. Raises TypeError for an unknown key."""
    row = {**told, **dict.fromkeys(told.get("none", ()))}
    for key in ("like", "none", "hosts", "front_ends"):
        row.pop(key, None)
    if unknown := row.keys() - EngineTraits.__dataclass_fields__:
        raise TypeError(f"servers.toml: no field of a row: {', '.join(unknown)}")
    if row.get("responses") is not None:
        row["responses"] = _RESPONSES[row["responses"]]
    return msgspec.convert(row, EngineTraits)


_DATA = tomllib.loads(Path(__file__).with_name("servers.toml").read_text(encoding="utf-8"))
_RESPONSES: Mapping[str, Any] = _DATA.pop("responses")
_WHOLE = {name: {**_DATA.get(told.get("like", ""), {}), **told} for name, told in _DATA.items() if name[0] != "_"}
TRAITS: Mapping[str, EngineTraits] = MappingProxyType({name: _row(told) for name, told in _WHOLE.items()})
CLOUDS: Mapping[str, tuple[str, ...]] = {name: tuple(told["hosts"]) for name, told in _DATA.items() if "hosts" in told}
"""Name of a cloud's row -> its hosts."""
_BY_HOST = {host: name for name, hosts in CLOUDS.items() for host in hosts}


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """One API server that an engine can be started behind: the model and its speed stay, but what is served, refused
    and reported is another server's. `owned_by`: of the entries of its model list. `version_key`: a key that only its
    answer about its version has; None = it has none of its own. `traits`: the engine's row, as it serves it."""

    owned_by: str
    version_key: str | None
    traits: EngineTraits


def _front_end(server: str, told: dict[str, Any]) -> FrontEnd:
    owned_by, version_key = told.pop("owned_by"), told.pop("version_key", None)
    return FrontEnd(owned_by, version_key, _row({**_WHOLE[server], **told}) if told else TRAITS[server])


# Server -> name of the front end -> its row. Not listed: the server has one. The one in force is
# `BackendState.reported.front_end`.
FRONT_ENDS: Mapping[str, Mapping[str, FrontEnd]] = MappingProxyType(
    {
        server: {name: _front_end(server, front) for name, front in told["front_ends"].items()}
        for server, told in _WHOLE.items()
        if "front_ends" in told
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
    known = _BY_HOST.get(urlsplit(backend.url).hostname or "") if backend.engine == "openai" and backend.url else None
    return backend.server or known or backend.engine


def asked_there(declared: Literal["own", "hosted", "chat"] | None, row: OwnResponses | None) -> OwnResponses | None:
    """How a server is asked at its own `/v1/responses`; None = it is asked as a chat. `declared`: in routes.yaml;
    `row`: of its engine's traits."""
    if declared is None:
        return row if row is not None and row.untold else None
    row = row or TRAITS["openai"].responses
    return replace(row, hosted=declared == "hosted") if row is not None and declared != "chat" else None


def canaried(backend: Backend) -> bool:
    """Does it get canaries (tiny real requests)? Only backends that are probed and serve chat get them."""
    return backend.health.canary is not None and backend.health.every is not None and traits_of(backend).chats
