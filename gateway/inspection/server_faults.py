"""The 5xx answers of servers that do not mean what a 5xx means. llama-server answers 500 to mistakes of the client, to
what it was not started for, and, with every request that it runs, when their common memory is full. vLLM's Rust front
end answers 500 to requests with tools where it has no parser of calls, and 501 at endpoints that it lacks.

Only a message that is known counts: as a whole, or by its beginning, which no client can write.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

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
