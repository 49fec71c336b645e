"""A parsed request: one pass over the body reads the few fields that matter; the rest stays bytes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeGuard

import msgspec
from msgspec import Raw

from gateway.domain.body import (
    THINKING_FIELDS,
    UNREADABLE,
    AskedThinking,
    as_number,
    as_switch,
    invalid_body,
    read_fields,
    value_of,
)
from gateway.domain.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, Endpoint
from gateway.domain.engine_traits import OwnResponses
from gateway.domain.tool_kinds import tool_kinds
from gateway.domain.upstream import Response
from gateway.errors import GatewayError

ToolChoice = Literal["none", "auto", "required", "named"]


BINARY = ("bytes", "bytes_only")  # values of `encoding_format` for vectors that are no JSON
LIMIT_MOST = 2**63 - 1  # tokens: a larger limit is left to the backend, which refuses it
# As vLLM bounds `n`: a server makes them all at once, and serves nobody else.
SEQUENCES_MOST = 16_384
WORDS_MOST = 1000  # of `stop` and `bad_words`: a server looks for each of them at every token, between all its requests
# Where the client's body has a file, which a translation (dialects/) knows, and a chat would have to be searched for.
FILE_AT = "x_gateway_file_at"
_PLACE_MOST = 200  # characters of such a place
PAGE_BYTES = 64 * 1024  # of the base64 of a PDF, for one page; a page is counted as an image
IMAGE_TOKENS = 1500  # usual for vision models: they depend on the dimensions of the image, not on its base64


class Media(NamedTuple):
    """The images, the audio and the files in a prompt. `bytes`: their size in the request body. `pages`: of the files,
    guessed from their size."""

    images: int = 0
    audio: bool = False
    bytes: int = 0
    pages: int = 0

    @property
    def pictures(self) -> int:
        """What counts as a number of images where tokens are estimated."""
        return self.images + self.pages


NO_MEDIA = Media()


class Refusal(NamedTuple):
    """The token counts in a backend's refusal; they apply to this request on this backend only. `least`: the prompt has
    at least so many tokens. `sums`: the backend adds the limit of the answer to the prompt."""

    window: int | None = None
    least: int = 0
    sums: bool = False


@dataclass(frozen=True, slots=True)
class OwnForm:
    """A request as its client sent it, to an endpoint that `becomes` another: for servers that have this endpoint
    themselves. `untranslatable`: why no other server can answer it; None = others can. `left_out`: the types of the
    tools that others are not told of."""

    endpoint: Endpoint
    fields: dict[str, Raw]
    untranslatable: GatewayError | None = None
    left_out: tuple[str, ...] = ()

    def body(self, request: InferenceRequest, chat: dict[str, Raw], how: OwnResponses) -> dict[str, Raw] | None:
        """The body for a server that has the endpoint; None where it is asked as a chat, with the body `chat`."""
        raise NotImplementedError

    def as_chat(self, response: Response, stream: bool, memory: Any, sender: str) -> Response:
        """The server's answer there, read as the answer of a chat. `memory` counts what is kept of it meanwhile."""
        raise NotImplementedError


@dataclass(slots=True)
class InferenceRequest:
    """A parsed body. `fields` are the body's own bytes, key by key; unknown fields are kept."""

    endpoint: Endpoint
    fields: dict[str, Raw]
    model: str
    stream: bool = False
    choices: int = 1  # n x prompts: the sequences a backend has to run
    wants_usage: bool = False  # the client asked for the usage chunk
    own_usage: bool = False  # the client set continuous_usage_stats: its stream_options are left alone
    limits: dict[str, int] = field(default_factory=dict)  # the token limits it sent, where they are valid
    prompt_bytes: int = 0  # media included
    tools: bool = False
    tool_choice: ToolChoice = "auto"
    json_schema: bool = False
    logprobs: bool = False
    thinking: Literal["on", "off"] | None = None  # whether it asks for thinking, in any of the known fields
    thinking_wish: bool = False  # `thinking` is a wish, not a demand
    continues: bool = False  # the answer is to begin where the text of the last message ends
    other_tools: bool = False  # not all of its tools are functions as a chat has them
    file_at: str = ""  # where a body that was translated has a file (a PDF); empty = it has none, or is no such body
    exact: dict[str, int] = field(default_factory=dict)  # backend name -> prompt tokens, where one has counted them
    refused: dict[str, Refusal] | None = None  # by backend name; None = none has refused it for its size
    sender: str = ""  # identifies the client (access.Identity.name)
    corrected: dict[str, tuple[str, ...]] | None = None  # backend name -> forms that are tried after a refusal
    own: OwnForm | None = None  # set where a server may be asked at the client's own endpoint
    _media: Media | None = field(default=None, init=False, repr=False, compare=False)  # None = not searched yet

    def limit(self) -> int | None:
        """The most answer tokens the client asked for."""
        return max(self.limits.values()) if self.limits else None

    @property
    def media(self) -> Media:
        """The images, audio and files in the prompt. Finding them reads the whole body again, so the result is cached,
        and only requests for which they matter are searched."""
        return self.look_for_media() if self._media is None else self._media

    def likeness(self) -> Likeness:
        """What it has in common with requests that differ from it in nothing but their prompt and their limits."""
        who = self.endpoint, self.model, self.stream, self.choices, self.wants_usage, self.own_usage
        needs = self.tools, self.tool_choice, self.json_schema, self.logprobs, self.thinking, self.thinking_wish
        return Likeness(*who, *needs)

    def look_for_media(self) -> Media:
        """Find `media` now: from a thread, where the body is large (large_bodies.py)."""
        self._media = find_media(self.fields.get("messages"))
        return self._media

    @property
    def media_known(self) -> bool:
        """Was the prompt searched for media?"""
        return self._media is not None

    @property
    def known_media(self) -> Media:
        """`media` if the prompt was searched already, else NO_MEDIA: for estimates that must cost nothing."""
        return NO_MEDIA if self._media is None else self._media

    @property
    def known_text_bytes(self) -> int:
        """Bytes of the prompt, without its media if they were searched for already."""
        return self.prompt_bytes if self._media is None else self.prompt_bytes - self._media.bytes


@dataclass(frozen=True, slots=True)
class Likeness:
    """What an `InferenceRequest` has, without its prompt and its limits."""

    endpoint: Endpoint
    model: str
    stream: bool
    choices: int
    wants_usage: bool
    own_usage: bool
    tools: bool
    tool_choice: ToolChoice
    json_schema: bool
    logprobs: bool
    thinking: Literal["on", "off"] | None
    thinking_wish: bool

    def request(
        self, fields: dict[str, Raw], limits: dict[str, int], prompt_bytes: int, sender: str
    ) -> InferenceRequest:
        """A request with this in common."""
        return InferenceRequest(
            self.endpoint,
            fields,
            self.model,
            self.stream,
            self.choices,
            self.wants_usage,
            self.own_usage,
            limits,
            prompt_bytes,
            self.tools,
            self.tool_choice,
            self.json_schema,
            self.logprobs,
            self.thinking,
            self.thinking_wish,
            sender=sender,
        )


_BRACKET = ord("[")


def parse(endpoint: Endpoint, body: bytes | dict[str, Raw], own: OwnForm | None = None) -> InferenceRequest:
    """Parse a body, or its fields (of an endpoint that `becomes` another: the translated body; `own`: the client's).
    Raises `invalid_request_body` with what is wrong with it, and `request_too_large`."""
    fields = body if isinstance(body, dict) else read_fields(body)
    if endpoint.becomes is not None:
        endpoint = endpoint.completes if endpoint.completes and "prompt" in fields else endpoint.becomes
    model = value_of(fields.get("model"))
    if not isinstance(model, str) or not model:
        raise invalid_body("`model` is missing or not a string: it names the alias to use.", "model")
    request = InferenceRequest(endpoint, fields, model, own=own)
    for name in endpoint.prompt:
        if name in fields:
            request.prompt_bytes += len(memoryview(fields[name]))
    for name, read in _READERS.items():
        if name in fields:
            read(request, fields[name])
    if request.choices > SEQUENCES_MOST:
        raise too_many_answers()
    if not _RARE.isdisjoint(fields):
        for name, read in _RARE_READERS.items():
            if name in fields:
                read(request, fields[name])
    for name in endpoint.limits:
        limit = value_of(fields.get(name))
        if is_limit(limit):
            request.limits[name] = limit
    if not endpoint.chunk_object:
        request.stream = False
    return request


def too_many_answers() -> GatewayError:
    asks = f"The request asks for more than {SEQUENCES_MOST:,} answers (n x prompts). Send several requests."
    return GatewayError("request_too_large", asks)


def parse_and_search(endpoint: Endpoint, body: bytes, own: OwnForm | None = None) -> InferenceRequest:
    """`parse` of a body, and its `media` with it: for a thread (large_bodies.py)."""
    request = parse(endpoint, body, own)
    request.look_for_media()
    return request


def is_limit(value: Any) -> TypeGuard[int]:
    """Can an answer be limited to this number of tokens? (bool, a subclass of int, is excluded.)"""
    return type(value) is int and 1 <= value <= LIMIT_MOST


def asks_for_stream(raw: Raw | None) -> bool:
    """Whether servers answer a request with this value of `stream` with a stream."""
    return as_switch(value_of(raw)) is True


def _read_stream(request: InferenceRequest, raw: Raw) -> None:
    """Servers take 1 and "true" for true, too. They get the plain form, so that both sides expect the same answer."""
    request.stream = value_of(raw) is True
    if not request.stream and (switch := as_switch(value_of(raw))) is not None:
        request.stream, request.fields["stream"] = switch, Raw(b"true" if switch else b"false")


def _read_n(request: InferenceRequest, raw: Raw) -> None:
    n = as_number(value_of(raw))
    if n is not None and n > 1:
        request.choices *= n


def _read_stream_options(request: InferenceRequest, raw: Raw) -> None:
    options = value_of(raw)
    if isinstance(options, dict):
        request.wants_usage = as_switch(options.get("include_usage")) is True
        request.own_usage = as_switch(options.get("continuous_usage_stats")) is True


def _read_prompt(request: InferenceRequest, raw: Raw) -> None:
    """Several prompts in one completions request are several sequences."""
    if request.endpoint is COMPLETIONS and memoryview(raw)[0] == _BRACKET:
        prompts = value_of(raw)
        if isinstance(prompts, list) and prompts and isinstance(prompts[0], (str, list)):
            request.choices *= len(prompts)


def _read_tools(request: InferenceRequest, raw: Raw) -> None:
    kinds = tool_kinds(raw)
    request.tools, request.other_tools = kinds != "none", kinds == "others"


def _read_tool_choice(request: InferenceRequest, raw: Raw) -> None:
    choice = value_of(raw)
    if isinstance(choice, dict):
        request.tool_choice = "named"
        if choice.get("type") == "allowed_tools":
            allowed = choice.get("allowed_tools")
            mode = (allowed if isinstance(allowed, dict) else choice).get("mode")
            request.tool_choice = "required" if mode == "required" else "auto"
    elif choice in ("none", "required"):
        request.tool_choice = choice


def _read_response_format(request: InferenceRequest, raw: Raw) -> None:
    request.json_schema = b'"json_schema"' in bytes(raw)


def _thinking_reader(read: Callable[[Any], AskedThinking | None]) -> Callable[[InferenceRequest, Raw], None]:
    def ask(request: InferenceRequest, raw: Raw) -> None:
        asked = read(value_of(raw))
        if asked is not None and (request.thinking is None or (request.thinking_wish and not asked.wish)):
            request.thinking, request.thinking_wish = "on" if asked.on else "off", asked.wish

    return ask


def _read_logprobs(request: InferenceRequest, raw: Raw) -> None:
    request.logprobs = bytes(raw) not in (b"false", b"null")


def _read_continue(request: InferenceRequest, raw: Raw) -> None:
    request.continues = request.endpoint is CHAT and value_of(raw) is True


def _check_encoding(request: InferenceRequest, raw: Raw) -> None:
    if request.endpoint is EMBEDDINGS and value_of(raw) in BINARY:
        raise invalid_body("`encoding_format` must be float or base64.", "encoding_format")


def _words_reader(name: str) -> Callable[[InferenceRequest, Raw], None]:
    def check(_: InferenceRequest, raw: Raw) -> None:
        words = value_of(raw) if len(memoryview(raw)) > 2 * WORDS_MOST else None
        if isinstance(words, list) and len(words) > WORDS_MOST:
            raise invalid_body(f"`{name}` has more than {WORDS_MOST:,} entries.", name)

    return check


def _take_file_at(request: InferenceRequest, raw: Raw) -> None:
    """The field is the gateway's own, so no backend gets it."""
    where = value_of(raw)
    request.file_at = where if isinstance(where, str) and len(where) <= _PLACE_MOST else ""
    del request.fields[FILE_AT]


_MEDIA = re.compile(rb'"(?:image_url|input_audio|file)"')  # one pass over the text; a search for each word takes two


def may_have_media(messages: Raw) -> bool:
    """Could there be media among the parts of the messages? False is sure."""
    return _MEDIA.search(memoryview(messages)) is not None


def find_media(messages: Raw | None) -> Media:
    """Images, audio and files among the parts of the messages; their base64 is not prompt text."""
    if messages is None or not may_have_media(messages):
        return NO_MEDIA
    images, audio, size, pages = 0, False, 0, 0
    with contextlib.suppress(*UNREADABLE):
        for part in _content_parts(value_of(messages)):
            kind = part.get("type")
            if kind in ("image_url", "input_audio", "file"):
                images += kind == "image_url"
                audio = audio or kind == "input_audio"
                bytes_ = len(msgspec.json.encode(part))
                size += bytes_
                pages += -(-bytes_ // PAGE_BYTES) if kind == "file" else 0
    return Media(images, audio, size, pages) if size else NO_MEDIA


def _content_parts(messages: Any) -> list[dict[str, Any]]:
    if not isinstance(messages, list):
        return []
    contents = [m.get("content") for m in messages if isinstance(m, dict)]
    return [part for content in contents if isinstance(content, list) for part in content if isinstance(part, dict)]


_READERS: dict[str, Callable[[InferenceRequest, Raw], None]] = {
    "stream": _read_stream,
    "n": _read_n,
    "stream_options": _read_stream_options,
    "prompt": _read_prompt,
    "tools": _read_tools,
    "tool_choice": _read_tool_choice,
    "response_format": _read_response_format,
    "logprobs": _read_logprobs,
}

_RARE_READERS: dict[str, Callable[[InferenceRequest, Raw], None]] = {
    **{name: _thinking_reader(asked) for name, asked in THINKING_FIELDS.items()},
    "continue_final_message": _read_continue,
    "encoding_format": _check_encoding,
    **{name: _words_reader(name) for name in ("stop", "bad_words")},
    FILE_AT: _take_file_at,
}
_RARE = frozenset(_RARE_READERS)
# The fields of which the gateway reads the value, beside the prompt, the tools and the limits of the answer.
READ = frozenset({"model", *_READERS, *_RARE}) - {"prompt", "tools"}
