"""The known error messages of servers, and what they mean.

A fact is learned from a refusal only if its whole message is one of these texts. Servers quote what the client sent
(vLLM's validation errors do, with `'input': ...`), so a phrase inside a message may be the client's own."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from gateway.inspection.overflows import is_validation, without_quotations

_NAME = r"[^\s`'\"]{1,256}"  # a model's name, without spaces and quotes

_LACKS = (
    # vLLM's message for a required call is more specific (there is no parser) than the one for auto (either flag may
    # be missing). The tool's name in it comes from the client.
    (re.compile(r'tool_choice="required" requires --tool-call-parser to be set'), "tool_parser"),
    (re.compile(r'tool_choice=function "[^"\n]{1,256}" requires --tool-call-parser to be set'), "tool_parser"),
    (re.compile(r'"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'), "tools"),
    (re.compile(rf'"?{_NAME}"? does not support tools'), "tools"),  # Ollama
    (re.compile(rf'"?{_NAME}"? does not support thinking'), "thinking"),
    (re.compile(rf"{_NAME} is not a multimodal model"), "images"),  # vLLM
    (re.compile(r"Unsupported chat content part type: 'file'\. Supported types: [\w, ]{1,400}\."), "pdf"),  # vLLM
    (re.compile(r"(?:this model is )?missing data required for image input"), "images"),  # Ollama
    (re.compile(r"Multimodal data provided, but model does not support multimodal requests\."), "images"),  # the same
    (re.compile(r"unsupported multimodal content: (?:image|video)(?:_url)?"), "images"),  # vLLM's Rust front end
    (re.compile(r"unsupported multimodal content: (?:input_)?audio(?:_url)?"), "audio"),
    (re.compile(r"Failed to buffer the request body: length limit exceeded"), "body"),
)
_NO_SUCH_MODEL = (
    re.compile(rf"The model `(?P<name>{_NAME})` does not exist\.(?: Valid aliases: .{{1,2000}}\.)?"),  # vLLM
    re.compile(rf"The model `(?P<name>{_NAME})` does not exist or you do not have access to it\.?"),  # OpenAI
    re.compile(rf"model ['\"](?P<name>{_NAME})['\"] not found(?:, try pulling it first)?"),  # Ollama
    re.compile(rf"The model '(?P<name>{_NAME})' was not found at any provider: name it as provider/model.*", re.DOTALL),
    re.compile(rf"The address of model '(?P<name>{_NAME})' was not found: .*", re.DOTALL),
)
_NOT_THERE = re.compile(
    r"(?:404:? ?)?(?:page )?not found(?: the requested URL was not found on this server\.?| nginx\S{0,20})?\.?|404 page"
    r"|cannot (?:get|post) /[\w./-]{1,100}|no route matched with those values",
    re.IGNORECASE,
)
_BUSY = re.compile(
    r"The engine is currently busy and cannot accept new requests\."  # vLLM
    r"(?: Please try again later or on a different instance\.)?"
    r"|The request queue is full\."  # SGLang
    r"|server busy, please try again\. +maximum pending requests exceeded"  # Ollama
)
_NO_SUCH_USE = re.compile(
    rf'"{_NAME}" does not support (?:chat|generate)'  # Ollama, of a model that only embeds
    r"|(?:Backend error: )?model is not an? (?:embedding|re-ranker|reranker) model",  # text-embeddings-inference
    re.IGNORECASE,
)
_BATCH_LIMITS = (
    re.compile(r"(?:input )?batch size [0-9]{1,9} > maximum allowed batch size ([0-9]{1,9})"),  # the same, SiliconFlow
    re.compile(
        r"Invalid 'input': array too long\. Expected an array with maximum length ([0-9]{1,9}), but got an array with "
        r"length [0-9]{1,9} instead\."  # OpenAI
    ),
    re.compile(r"(?:invalid request: )?total number of texts must be at most ([0-9]{1,9}) - received [0-9]{1,9}\.?"),
    re.compile(
        r"(?:<400> )?(?:InternalError\.Algo\.InvalidParameter: )?Value error, batch size is invalid, it should not be "
        r"larger than ([0-9]{1,9})\.: input\.contents"  # DashScope
    ),
)

# -- guesses for unknown servers, which apply only to the refused request ---------------------------------------------

_LIKE_LACKS = (
    (re.compile(r"requires --tool-call-parser to be set"), "tool_parser"),
    (re.compile(r"requires --enable-auto-tool-choice|does not support tools"), "tools"),
    (re.compile(r"does not support thinking"), "thinking"),
    (re.compile(r"is not a multimodal model|missing data required for image input"), "images"),
)
_LIKE_NO_MODEL = re.compile(r"\bmodel\b.*\b(?:does not exist|not found)", re.IGNORECASE | re.DOTALL)


def read_lack(message: str) -> str | None:
    """The missing capability, in a message that is as a whole a known text."""
    return next((lack for text, lack in _LACKS if text.fullmatch(message) is not None), None)


def read_batch_limit(message: str) -> int | None:
    """The inputs that a server takes in one request, in a message that is as a whole a known text."""
    found = next((found for text in _BATCH_LIMITS if (found := text.fullmatch(message)) is not None), None)
    return int(found[1]) or None if found is not None else None


def guess_lack(message: str) -> tuple[str, str] | None:
    """(phrase, missing capability) of any other message that names one outside of its quotations."""
    if is_validation(message):
        return None
    plain = without_quotations(message)
    for text, lack in _LIKE_LACKS:
        if (found := text.search(plain)) is not None:
            return found[0], lack
    return None


def read_missing_model(message: str) -> str | None:
    """The name of a model that is not served, in a message that is as a whole a known text."""
    for text in _NO_SUCH_MODEL:
        if (found := text.fullmatch(message)) is not None:
            return found["name"]
    return None


def like_missing_model(message: str) -> bool:
    """Does the message mention, outside of its quotations, a model that does not exist?"""
    return _LIKE_NO_MODEL.search(without_quotations(message)) is not None


def is_missing_path(message: str) -> bool:
    """Is this a known message of a server or a proxy for an unknown path? An empty message counts too."""
    return not message or _NOT_THERE.fullmatch(message) is not None


def is_missing_use(message: str) -> bool:
    """Is this a known message of a server whose model does not do what the endpoint is for?"""
    return _NO_SUCH_USE.fullmatch(message) is not None


def is_busy(message: str) -> bool:
    """Is this a known message for a full queue?"""
    return _BUSY.fullmatch(message) is not None


# -- answers of 5xx that do not mean what a 5xx means ------------------------------------------------------------------

_N = "[0-9]{1,9}"

_CLIENTS = re.compile(
    r"Failed to parse (?:tool call arguments as JSON|tools|messages): .*"
    r"|\[json\.exception\.parse_error\.101\] .*"  # the body itself, e.g. half of a surrogate pair
    r"|Cannot use both json_schema and grammar"
    r"|Cannot specify (?:grammar with tools|both content and content_parts)"
    rf"|input \({_N} tokens\) is too large to process\. increase the physical batch size"
    rf" \(current batch size: {_N}\)"
    r"|Failed to (?:download image|load image or audio file)|Invalid base64 value"
    r"|failed to submit chat request: chat template error: .*",  # vllm-rs: the template refuses the messages
    re.DOTALL,
)
_MEDIA = re.compile(
    r"(image|audio|video) input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
)
_TOOLS = re.compile(r"tool(?:s|_choice) param requires --jinja flag")
_NO_PARSER = "failed to submit chat request: tool parsing is disabled by frontend configuration"  # vllm-rs
_TWO_PARSERS = re.compile(  # vllm-rs, of models whose calls and thoughts one parser reads (gemma4)
    r"failed to submit chat request: unified parsing requires the tool and reasoning selections to resolve to the same"
    r" parser; resolved [^\n]{1,300}"
)
_ENDPOINT = re.compile(
    r"This server does not support (?:embeddings|reranking)\. Start it with `--[a-z]{1,20}`"
    r"|(?:GET|POST) /[\w/.{}-]{1,100} is not supported by the Rust frontend yet\."
    r" Set VLLM_USE_RUST_FRONTEND=0 to use the Python frontend\."
)
UNREADABLE = re.compile(r"The model produced output that does not match the expected [\w-]{1,50} format")
POOL_FULL = "Context size has been exceeded."
_LACK_OF_MEDIA = {"image": "images", "audio": "audio"}


class ServerFault(NamedTuple):
    """What a 5xx means. `kind`: client = the request is wrong; incapable = the server lacks `lack`; unserved = it does
    not serve this endpoint; cooldown = it has no room for what it runs; misconfigured = as it was started, it answers
    nothing; empty = its model wrote nothing that can be read. `says`: what an operator reads instead of the message,
    where that does not name what is missing."""

    kind: Literal["client", "incapable", "unserved", "cooldown", "misconfigured", "empty"]
    lack: str | None = None
    says: str = ""


def read_server_fault(message: str) -> ServerFault | None:
    """The meaning of a 5xx with this message; None = it is a failure, as a 5xx says."""
    if is_pool_full(message):
        return ServerFault("cooldown")
    if (media := _MEDIA.fullmatch(message)) is not None:
        lack = _LACK_OF_MEDIA.get(media[1])
        return ServerFault("incapable", lack) if lack is not None else ServerFault("client")
    if _TOOLS.fullmatch(message) is not None:
        return ServerFault("incapable", "tools")
    if message == _NO_PARSER:
        return ServerFault("incapable", "tool_parser", "it was started without --tool-call-parser")
    if UNREADABLE.fullmatch(message) is not None:
        return ServerFault("empty")
    if _TWO_PARSERS.fullmatch(message) is not None:
        return ServerFault(
            "misconfigured", says="its --tool-call-parser and its --reasoning-parser have to be the same"
        )
    if _ENDPOINT.fullmatch(message) is not None:
        return ServerFault("unserved")
    return ServerFault("client") if _CLIENTS.fullmatch(message) is not None else None


def is_pool_full(message: object) -> bool:
    """Is this llama-server's message to every request that it runs when the memory that they share is full?"""
    return message == POOL_FULL
