"""The known error messages of servers.

A fact is learned from a refusal only if its whole message is one of these texts. Servers quote what the client sent
(vLLM's validation errors do, with `'input': ...`), so a phrase inside a message may be the client's own.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LEAST_WINDOW = 256  # tokens; no server is started with less, so smaller numbers are not believed

_N = "(?<![0-9])[1-9][0-9]{0,8}(?![0-9])"
_COUNT = "[0-9]{1,9}"
_TAIL = rf"(?: \(parameter=[a-z_.]{{1,40}}, value={_N}\))?"
_REDUCE = r"(?:,? Please reduce the length of the [a-z ]{1,80}\.)?"
_NAME = r"[^\s`'\"]{1,256}"  # a model's name, without spaces and quotes


def _overflow_texts() -> tuple[re.Pattern[str], ...]:
    window, prompt, limit, total = (rf"(?P<{name}>{_N})" for name in ("window", "prompt", "limit", "total"))
    least = r"(?P<least>at least )?"
    head = rf"This model's maximum context length is {window} tokens\. However, "
    pictures = (
        r"For image inputs, the number of image tokens depends on the number of images, and possibly their aspect "
        r"ratios as well\."
    )
    of_what = rf"(?:\.| \(prompt \+ requested output tokens\)\.| plus multimodal tokens\. {pictures})"
    suggestion = rf"(?: Make sure that `max_model_len` is no smaller than the number of text tokens{of_what})?"
    texts = (
        # vLLM 0.32, and the builds before it that count no further than the window
        rf"{head}your prompt contains {least}{prompt} input tokens, which exceeds this limit even without any output "
        rf"tokens\.{_REDUCE}{_TAIL}",
        rf"{head}you requested (?P<limit>{_COUNT}) output tokens and your prompt contains {least}{prompt} input "
        rf"tokens, for a total of (?:at least )?{total} tokens\.{_REDUCE}{_TAIL}",
        rf"You passed {prompt} input tokens and requested (?P<limit>{_COUNT}) output tokens\. However, the model's "
        rf"context length is only {window} tokens, resulting in a maximum input length of {_COUNT} tokens"
        rf"\.{_REDUCE}{_TAIL}",
        # vLLM 0.4 to 0.12, and OpenAI
        rf"{head}you requested {total} tokens \({prompt} in (?:the messages|your prompt)[,;] {limit} (?:in|for) the "
        rf"completion\)\.{_REDUCE}",
        rf"{head}you requested {prompt} tokens in the (?:messages|input for embedding generation)[.,]{_REDUCE}",
        rf"{head}your (?:request has|messages resulted in) {prompt} (?:input )?tokens\.{_REDUCE}",
        rf"'max_tokens' or 'max_completion_tokens' is too large: {limit}\. This model's maximum context length is "
        rf"{window} tokens and your request has {prompt} input tokens \({_COUNT} > {_COUNT} - {_COUNT}\)\.",
        rf"The (?:decoder |encoder )?prompt \(length {prompt}\) is longer than the maximum model length of {window}\."
        rf"{suggestion}",
        rf"The (?:decoder |encoder )?prompt \(length {prompt}\) plus the number of requested output tokens \(at least "
        rf"1\) is longer than the maximum model length of {window}\.{suggestion}",
        # The limit alone is beyond the window.
        rf"max_(?:completion_|output_)?tokens={limit} ?cannot be greater than max_model_len=(?:max_total_tokens=)?"
        rf"{window}\. Please request fewer output tokens\.{_TAIL}",
        # llama-server; Anthropic
        rf"request \({prompt} tokens\) exceeds the available context size \({window} tokens\), try increasing it",
        rf"prompt is too long: {prompt} tokens > {window} maximum",
    )
    return tuple(re.compile(text) for text in texts)


_OVERFLOWS = _overflow_texts()

_LACKS = (
    # vLLM's message for a required call is more specific (there is no parser) than the one for auto (either flag may
    # be missing). The tool's name in it comes from the client.
    (re.compile(r'tool_choice="required" requires --tool-call-parser to be set'), "tool_parser"),
    (re.compile(r'tool_choice=function "[^"\n]{1,256}" requires --tool-call-parser to be set'), "tool_parser"),
    (re.compile(r'"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'), "tools"),
    (re.compile(rf'"?{_NAME}"? does not support tools'), "tools"),  # Ollama
    (re.compile(rf'"?{_NAME}"? does not support thinking'), "thinking"),
    (re.compile(rf"{_NAME} is not a multimodal model"), "images"),  # vLLM
    (re.compile(r"(?:this model is )?missing data required for image input"), "images"),  # Ollama
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
    r"|server busy, please try again\. +maximum pending requests exceeded"  # Ollama
)
_NO_SUCH_USE = re.compile(rf'"{_NAME}" does not support (?:chat|generate)')  # Ollama, of a model that only embeds

# -- guesses for unknown servers, which apply only to the refused request ---------------------------------------------

# The message of a server that could not read a body; it contains values of the body.
_VALIDATION = re.compile(r"\s*(?:[0-9]+ validation errors?\b|\[?\{)|.*(?:'input':|\"input\":|input_value=)", re.DOTALL)
_QUOTED = re.compile(r"(?<!\w)'[^']*'(?!\w)|\"[^\"]*\"|`[^`]*`|“[^”]*”")
_LIKE_OVERFLOW = re.compile(
    r"maximum context length|cannot be greater than max_model_len|maximum model length|context_length_exceeded"
    r"|exceeds? the (?:model's |available )?context|prompt is too long|longer than the context"
    r"|model's context length is only",
    re.IGNORECASE,
)
_LIKE_LACKS = (
    (re.compile(r"requires --tool-call-parser to be set"), "tool_parser"),
    (re.compile(r"requires --enable-auto-tool-choice|does not support tools"), "tools"),
    (re.compile(r"does not support thinking"), "thinking"),
    (re.compile(r"is not a multimodal model|missing data required for image input"), "images"),
)
_LIKE_NO_MODEL = re.compile(r"\bmodel\b.*\b(?:does not exist|not found)", re.IGNORECASE | re.DOTALL)
_WINDOW = re.compile(
    rf"maximum context length is ({_N})|max_model_len=(?:max_total_tokens=)?({_N})|maximum model length of ({_N})"
    rf"|context length is only ({_N})"
)
_PROMPT = re.compile(
    rf"contains (?:at least )?({_N}) input tokens|your request has ({_N}) input tokens|\(({_N}) in the messages"
    rf"|prompt is too long: ({_N})"
)


class Overflow(NamedTuple):
    """The window and the prompt that a refusal names, in tokens. `least`: the prompt has at least so many, and was not
    counted further. `limit_only`: the prompt fits, the answer's limit does not. `sound`: the message is one of
    _OVERFLOWS and its numbers are consistent."""

    window: int | None = None
    prompt: int | None = None
    least: bool = False
    limit_only: bool = False
    sound: bool = False


def read_overflow(message: str) -> Overflow | None:
    """The numbers of a message that is, as a whole, a known text about a prompt or a limit beyond the window."""
    for text in _OVERFLOWS:
        if (found := text.fullmatch(message)) is not None:
            return _numbers(found)
    return None


def _numbers(found: re.Match[str]) -> Overflow:
    read = {name: int(value) for name, value in found.groupdict().items() if value and name != "least"}
    window, prompt, limit, total = read["window"], read.get("prompt"), read.get("limit", 0), read.get("total")
    least = bool(found.groupdict().get("least"))
    asked = (prompt or 0) + limit
    sound = window >= LEAST_WINDOW and (asked > window or (not limit and asked == window))
    sound = sound and (total is None or total == asked)
    return Overflow(window, prompt, least, limit_only=prompt is None or (prompt < window and limit > 0), sound=sound)


def guess_overflow(message: str) -> tuple[str, Overflow] | None:
    """(phrase, numbers) of any other message that mentions a window outside of its quotations."""
    if _VALIDATION.match(message) is not None:
        return None
    plain = _QUOTED.sub(" ", message)
    found = _LIKE_OVERFLOW.search(plain)
    if found is None:
        return None
    window, prompt = _number(_WINDOW, plain), _number(_PROMPT, plain)
    fits = window is not None and prompt is not None and prompt < window
    least = "at least" in plain
    return found[0], Overflow(window, prompt, least, limit_only=fits or "cannot be greater than max_model_len" in plain)


def read_lack(message: str) -> str | None:
    """The missing capability, in a message that is as a whole a known text."""
    return next((lack for text, lack in _LACKS if text.fullmatch(message) is not None), None)


def guess_lack(message: str) -> tuple[str, str] | None:
    """(phrase, missing capability) of any other message that names one outside of its quotations."""
    if _VALIDATION.match(message) is not None:
        return None
    plain = _QUOTED.sub(" ", message)
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
    return _LIKE_NO_MODEL.search(_QUOTED.sub(" ", message)) is not None


def is_missing_path(message: str) -> bool:
    """Is this a known message of a server or a proxy for an unknown path? An empty message counts too."""
    return not message or _NOT_THERE.fullmatch(message) is not None


def is_missing_use(message: str) -> bool:
    """Is this a known message of a server whose model does not do what the endpoint is for?"""
    return _NO_SUCH_USE.fullmatch(message) is not None


def is_busy(message: str) -> bool:
    """Is this a known message for a full queue?"""
    return _BUSY.fullmatch(message) is not None


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(next(group for group in found.groups() if group)) if found else None
