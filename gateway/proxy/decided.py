"""What a request depends on, and which of it may be kept for requests that are alike: every field of the configuration,
of a backend and of a request is named here, once. With another value than the usual one in a field that is not named,
nothing is kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gateway.config.snapshot import Alias, Backend, Client, Server, Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.capabilities import Capabilities
from gateway.domain.engine_traits import EngineTraits
from gateway.domain.facts import EngineReport, LearnedFacts
from gateway.domain.request import InferenceRequest


class Fields(NamedTuple):
    """The fields of one class, by name. `decided`: what is decided follows from them, and is decided anew when they
    change. `each`: looked at for each request. `nothing`: nothing that was decided depends on them, or only a request
    that is not decided ahead. `never`: with another value than the usual one nothing is decided ahead."""

    decided: str = ""
    each: str = ""
    nothing: str = ""
    never: str = ""

    def names(self) -> list[str]:
        return " ".join(self).split()


TABLE: Mapping[type, Fields] = {
    Snapshot: Fields(
        decided="backends aliases clients",
        each="server",
        nothing="nodes alerts modes mode own_catalog source traces",
    ),
    Server: Fields(
        decided="hosts",
        each="max_body memory",
        nothing="host port tls also_listen data keep_responses max_kept max_file shutdown metrics log proxies requests"
        " shared",
    ),
    Alias: Fields(
        decided="name steps also params thinking reasoning_field",
        each="balance resume ask_all",
        # Queues, clouds, starts and what cannot be served are for requests that the first step does not serve at once.
        nothing="on_busy cloud_when on_unsupported priority while_starting failover listed implicit notice",
        never="min_max_tokens describe_images",
    ),
    Client: Fields(
        decided="name key_sha256 old_key_sha256 aliases",
        each="rpm tpm max_inflight tasks budget",
        # What is decided ahead stays in the LAN and starts nothing.
        nothing="priority local_only may_start admin on_unsupported parent",
        never="users",
    ),
    Backend: Fields(
        decided="name on engine url model context kv_pool tool_parser auto_tools reasoning_parser thinking"
        " thinking_switch vision audio pdf serves server api_key launch",
        each="slots slots_assumed timeouts price",
        nothing="nodes dimensions embedding_model max_batch responses paths fields fixed run stop_after min_run budget"
        " recover exclusive health queue images observed profiles start stop parked in_mode",
        never="cloud",
    ),
    EngineTraits: Fields(
        decided="endpoints model_optional clamps_since calls_on_demand named_calls assumes_no_calls emulates_calls"
        " enforces_schema logprobs continues_text takes_pdf thinking_field streams_usage launch_flags library"
        " integer_bias leaves_calls_unread silent_parsers forms",
        # A server with another one of these is asked in another way than the client asked, when it is sent.
        each="withholds_tools enforces_stop stops_thoughts stops_unstreamed many_choices list_prompts token_prompts",
        nothing="loads_on_demand loaded default_model lists_cache window describes takes_window cuts_silently"
        " refuses_unread computes_beyond counts checks_limits thoughts ends_without_done tells_death responses"
        " embeds_or_ranks probe signs always_answers"
        " answers_late",
        never="short_answers",
    ),
    BackendState: Fields(
        decided="backend client reported facts absent revision name server traits model checkpoint",
        each="health siblings shared ratio progress prefill inflight prompt_tokens foreign last_event cooldown_until"
        " known_slots slots learned",
        nothing="host observers disobeys evidence counting reserved_tokens sleepless flag_drift held load load_seconds"
        " unloaded_at",
        never="pool",
    ),
    EngineReport: Fields(
        decided="model context version server loaded pool front_end", each="slots", nothing="started flags"
    ),
    LearnedFacts: Fields(decided="observed refused_window", nothing="pooled taught unconfirmed", never="lacks"),
    Capabilities: Fields(
        decided="tools required named json_schema logprobs images audio pdf continues thinking thinks silent switch"
        " doubtful mendable hosted sources"
    ),
    InferenceRequest: Fields(
        decided="endpoint fields model stream choices wants_usage own_usage tools tool_choice json_schema logprobs"
        " thinking thinking_wish",
        each="limits prompt_bytes sender",
        # A chat that names a file is read into other fields than it came with.
        nothing="exact refused corrected file_at own other_tools",
        never="continues",
    ),
}

# Where the usual value is not the default.
_USUAL: Mapping[tuple[type, str], Any] = {(BackendState, "pool"): None, (LearnedFacts, "lacks"): {}}


def fields_of(kind: type) -> list[str]:
    """The names of the fields of one of these classes, without private ones."""
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    else:
        names = [*(getattr(kind, "_fields", ()) or getattr(kind, "__slots__", ()))]
    return [name for name in names if not name.startswith("_")]


def checks_of(kind: type, named: Fields) -> list[tuple[str, Any]]:
    """(field, its usual value) for all that may not have another one, fields that the table does not name included."""
    free = set(" ".join((named.decided, named.each, named.nothing)).split())
    defaults: dict[str, Any] = {}
    if dataclasses.is_dataclass(kind):
        for field in dataclasses.fields(kind):
            made: Callable[[], Any] | Any = field.default_factory
            defaults[field.name] = field.default if made is dataclasses.MISSING else made()
    return [(name, _USUAL.get((kind, name), defaults.get(name))) for name in fields_of(kind) if name not in free]


CHECKS = {kind: checks_of(kind, named) for kind, named in TABLE.items()}


def is_usual(*things: object) -> bool:
    """May a request with these be decided ahead, as far as the table says it?"""
    for thing in things:
        for name, usual in CHECKS[type(thing)]:
            if getattr(thing, name) != usual:
                return False
    return True
