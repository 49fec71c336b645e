"""How a server is asked that lacks something of OpenAI's API: the bodies to send instead of the client's. Pure."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from gateway.domain.backend import BackendState
from gateway.domain.body import as_number, value_of
from gateway.domain.endpoints import CHAT
from gateway.domain.engine_traits import EngineTraits
from gateway.domain.request import is_limit
from gateway.engines.base import EngineRequest, InexpressibleRequest, UnmetDemand

PARTS_MOST = 128  # answers to one request, as many as OpenAI allows
STOPS_MOST, STOP_MOST = 64, 1000  # stop strings, and characters of each
BIAS_MOST = 1_000_000  # a larger bias is left to the server; OpenAI allows 100

_encode = msgspec.json.Encoder().encode
_TRUE, _INCLUDE_USAGE = Raw(b"true"), Raw(b'{"include_usage":true}')

Fields = dict[str, Raw]


class BackendBodies(NamedTuple):
    """The bodies that are sent one after the other. `stops`: the stop strings that are looked for here. `assembled`:
    their streams become one whole answer. `each`: so many in a row are answers to one prompt."""

    bodies: list[Fields]
    stops: tuple[str, ...]
    assembled: bool
    each: int = 1

    @property
    def as_is(self) -> bool:
        """May the answer be passed on as it comes?"""
        return len(self.bodies) == 1 and not (self.stops or self.assembled)


def read_stops(raw: Raw | None) -> tuple[str, ...]:
    """The stop strings of a request. Raises Refused."""
    stop = value_of(raw)
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops):
        raise InexpressibleRequest("`stop` must be a string or a list of strings.", "stop")
    if len(stops) > STOPS_MOST or any(len(one) > STOP_MOST for one in stops):
        raise InexpressibleRequest(f"`stop` may have at most {STOPS_MOST} strings of {STOP_MOST} characters.", "stop")
    return tuple(one for one in stops if one)


def split(fields: Fields, *, n: bool = True, prompts: bool = True, tokens: bool = False) -> list[Fields]:
    """One body for each answer that is asked for: `n` to each of the prompts. `n`, `prompts`: split by it. `tokens`:
    a prompt may be token ids. Raises Refused."""
    seed, count = value_of(fields.get("seed")), _answers_each(fields) if n else 1
    n = n and count > 0  # any other number is for the server to refuse
    count = count or 1
    texts = _prompts(value_of(fields.get("prompt")), tokens=tokens) if prompts else [None]
    if count * len(texts) > PARTS_MOST:
        raise UnmetDemand(
            f"`n` and `prompt` ask for more than {PARTS_MOST} answers; this server gives one at a time.", "n"
        )
    one = _without(fields, "n") if n else fields
    bodies = []
    for prompt in texts:
        for number in range(count):
            body = dict(one)
            if prompt is not None:
                body["prompt"] = Raw(_encode(prompt))
            if number and type(seed) is int:  # with the same seed all answers would be the same
                body["seed"] = Raw(_encode(seed + number))
            bodies.append(body)
    return bodies


def _answers_each(fields: Fields) -> int:
    """The answers to each prompt that are asked for; 0 = `n` is none that can be."""
    asked = value_of(fields.get("n"))
    count = 1 if asked is None or isinstance(asked, bool) else as_number(asked)
    return max(count or 0, 0)


def _prompts(prompt: Any, *, tokens: bool) -> list[Any]:
    """The prompts of a text completion; [None] = as the client sent it."""
    if not isinstance(prompt, list) or (tokens and prompt and not any(isinstance(one, (str, list)) for one in prompt)):
        return [None]
    texts = [one for one in prompt if isinstance(one, str) or (tokens and isinstance(one, list))]
    if not texts or len(texts) != len(prompt):
        raise UnmetDemand("This server takes a text as `prompt`, or a list of texts; no token ids.", "prompt")
    return [*texts]


def keeps_stop(call: EngineRequest, state: BackendState) -> bool:
    """Would this server end the thoughts at a word of `stop`, so that no answer comes?"""
    if not state.traits.stops_thoughts or "stop" not in call.fields or call.endpoint is not CHAT:
        return False
    if "include_stop_str_in_output" in call.fields or b"false" in bytes(call.fields.get("chat_template_kwargs", b"")):
        return False
    return state.capabilities(time.monotonic()).thinks is True and value_of(call.fields["stop"]) not in (
        None,
        [],
        "",
    )


def ask(call: EngineRequest, traits: EngineTraits, *, keeps_stop: bool = False) -> BackendBodies:
    """The bodies to send for this call. `keeps_stop`: its stop strings are looked for here. Raises Refused."""
    if not traits.checks_limits:
        _check_limits(call)
    fields, generates = call.fields, bool(call.endpoint.chunk_object)
    stops: tuple[str, ...] = ()
    if (keeps_stop or not traits.enforces_stop) and "stop" in fields:
        stops, fields = read_stops(fields["stop"]), _without(fields, "stop")
    if not traits.withholds_tools and "tools" in fields and value_of(fields.get("tool_choice")) == "none":
        fields = _without(fields, "tools", "tool_choice", "parallel_tool_calls")
    if not traits.integer_bias and "logit_bias" in fields:
        fields = {**fields, "logit_bias": _with_floats(fields["logit_bias"])}
    bodies = [fields]
    if generates:  # where stop strings are looked for, a stream has one answer
        bodies = split(
            fields,
            n=bool(stops) or not traits.many_choices,
            prompts=bool(stops) or not traits.list_prompts,
            tokens=traits.token_prompts,
        )
    in_parts = bool(stops) or len(bodies) > 1 or (not traits.stops_unstreamed and _asks_for_one(fields))
    assembled = generates and in_parts and not call.stream
    if assembled:
        bodies = [{**body, "stream": _TRUE, "stream_options": _INCLUDE_USAGE} for body in bodies]
    each = max(1, _answers_each(call.fields)) if len(bodies) > 1 and "n" not in bodies[0] else 1
    return BackendBodies(bodies, stops, assembled, each)


def _asks_for_one(fields: Fields) -> bool:
    """Is one answer asked for? The streams of several cannot be distinguished."""
    return value_of(fields.get("n")) in (None, 1) and not isinstance(value_of(fields.get("prompt")), list)


def _without(fields: Fields, *names: str) -> Fields:
    return {name: value for name, value in fields.items() if name not in names}


def _check_limits(call: EngineRequest) -> None:
    for name in call.endpoint.limits:
        limit = value_of(call.fields.get(name))
        if limit is not None and not is_limit(limit):
            raise InexpressibleRequest(f"`{name}` must be a whole number of at least 1.", name)


def _with_floats(raw: Raw) -> Raw:
    bias = value_of(raw)
    if not isinstance(bias, dict):
        return raw
    return Raw(_encode({token: float(v) if type(v) is int and abs(v) <= BIAS_MOST else v for token, v in bias.items()}))
