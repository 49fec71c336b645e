"""What servers say when a prompt, or the limit of its answer, is beyond their window: a table of texts, and the numbers
in them.

A window is learned only from a message that is one of these texts as a whole (`Overflow.sound`). Any other message
counts for the refused request alone (`guess_overflow`).
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

LEAST_WINDOW = 256  # tokens; no server is started with less, so smaller numbers are not believed

_N = "(?<![0-9])[1-9][0-9]{0,8}(?![0-9])"
_COUNT = "[0-9]{1,9}"
_TAIL = rf"(?: \(parameter=[a-z_.]{{1,40}}, value={_N}\))?"
_REDUCE = r"(?:,? Please reduce the length of the [a-z ]{1,80}\.)?"
_LARGER = r"(?: Try to load the model with a larger context length, or provide a shorter input\.?)?"
_DATA = r"(?:\.? ?Error Data: n/a, Additional Data: n/a)?"


def _texts() -> tuple[str, ...]:
    """The texts, by server. Groups: `window`; `most`, a bound of the prompt alone, which is no window; `prompt` and
    `more` of it; `limit` of the answer; `total` of prompt and limit; `least`: the prompt was not counted further."""
    names = ("window", "most", "prompt", "more", "limit", "total")
    window, most, prompt, more, limit, total = (rf"(?P<{name}>{_N})" for name in names)
    counted = rf"(?P<limit>{_COUNT})"
    least = r"(?P<least>at least )?"
    head = rf"This model's maximum context length is {window} tokens\. However, "
    pictures = (
        r"For image inputs, the number of image tokens depends on the number of images, and possibly their aspect "
        r"ratios as well\."
    )
    of_what = rf"(?:\.| \(prompt \+ requested output tokens\)\.| plus multimodal tokens\. {pictures})"
    suggestion = rf"(?: Make sure that `max_model_len` is no smaller than the number of text tokens{of_what})?"
    sums = rf"The sum of prompt length \({prompt}(?:\.0)?\)(?:,| and) query length \({_COUNT}\)"
    invalid = r"(?:Input validation error: )?"
    return (
        # vLLM 0.32, and the builds before it that count no further than the window
        rf"{head}your prompt contains {least}{prompt} input tokens, which exceeds this limit even without any output "
        rf"tokens\.{_REDUCE}{_TAIL}",
        rf"{head}you requested {counted} output tokens and your prompt contains {least}{prompt} input tokens, for a "
        rf"total of (?:at least )?{total} tokens\.{_REDUCE}{_TAIL}",
        rf"You passed {prompt} input tokens and requested {counted} output tokens\. However, the model's context "
        rf"length is only {window} tokens, resulting in a maximum input length of {_COUNT} tokens\.{_REDUCE}{_TAIL}",
        # vLLM 0.4 to 0.12, OpenAI, and llama_cpp.server 0.3, which writes None for a limit that was not sent
        rf"{head}you requested {total} tokens \({prompt} in (?:the messages|your prompt)[,;] (?:{limit}|None) "
        rf"(?:in|for) the completion\)\.{_REDUCE}",
        rf"{head}you requested {prompt} tokens in the (?:messages|input for embedding generation)[.,]{_REDUCE}",
        rf"{head}your (?:request has|messages resulted in) {prompt} (?:input )?tokens\.{_REDUCE}",
        rf"'max_tokens' or 'max_completion_tokens' is too large: {limit}\. This model's maximum context length is "
        rf"{window} tokens and your request has {prompt} input tokens \({_COUNT} > {_COUNT} - {_COUNT}\)\.",
        rf"The (?:decoder |encoder )?prompt \(length {prompt}\) is longer than the maximum model length of {window}\."
        rf"{suggestion}",
        rf"The (?:decoder |encoder )?prompt \(length {prompt}\) plus the number of requested output tokens \(at least "
        rf"1\) is longer than the maximum model length of {window}\.{suggestion}",
        # vLLM: the limit alone is beyond the window
        rf"max_(?:completion_|output_)?tokens={limit} ?cannot be greater than max_model_len=(?:max_total_tokens=)?"
        rf"{window}\. Please request fewer output tokens\.{_TAIL}",
        # llama_cpp.server 0.3, of a completion
        rf"This model's maximum context length is {window} tokens, however you requested {total} tokens \({prompt} in "
        rf"your prompt; (?:{limit}|None) for the completion\)\. Please reduce your prompt; or completion length\.",
        # llama-server, and Ollama since 0.30
        rf"request \({prompt} tokens\) exceeds the available context size \({window} tokens\), try increasing it",
        # SGLang
        rf"The input \({prompt} tokens\) is longer than the model's context length \({window} tokens\)\.?",
        rf"Requested token count exceeds the model's maximum context length of {window} tokens\. You requested a total "
        rf"of {total} tokens: {prompt} tokens from the input messages and {limit} tokens for the completion\. Please "
        rf"reduce the number of tokens in the input messages or the completion to fit within the limit\.",
        rf"Input length \({prompt} tokens\) exceeds the maximum allowed length \({most} tokens\)\. Use a shorter input "
        rf"or enable --allow-auto-truncate\.",
        # text-generation-inference
        rf"{invalid}`inputs` tokens \+ `max_new_tokens` must be <= {window}\. Given: {prompt} `inputs` tokens and "
        rf"{counted} `max_new_tokens`",
        rf"{invalid}`inputs` must have less than {most} tokens\. Given: {prompt}",
        # LM Studio, also its older wording
        rf"The number of tokens to keep from the initial prompt is greater than the context length \(n_keep: ?{prompt} "
        rf"?>= ?n_ctx: ?{window}\)\.?{_LARGER}{_DATA}",
        rf"Trying to keep the first {prompt} tokens when context the overflows\. However, the model is loaded with "
        rf"context length of only {window} tokens, which is not enough\.{_LARGER}{_DATA}",
        # TensorRT-LLM
        rf"{sums}(?:,| and|, and)? max_tokens \({counted}\) should not exceed max_seq_len \({window}\)",
        rf"{sums} should not exceed max_num_tokens \({most}\)",
        rf"`default_max_tokens` \(-?{_COUNT}\) must be greater than 0, `default_max_tokens` \(-?{_COUNT}\) = "
        rf"max_seq_len \({window}\) - `splited_prompt_len` \({prompt}(?:\.0)?\) - `query_token_len` \((?:{more}|0)\)",
        # Anthropic
        rf"prompt is too long: {prompt} tokens > {window} maximum",
        rf"input length and `max_tokens` exceed context limit: {prompt} \+ {limit} > {window}, decrease input length "
        rf"or `max_tokens` and try again",
    )


@cache
def _overflows() -> tuple[re.Pattern[str], ...]:
    """Compiled for the first error that is read: that takes a fiftieth of a start."""
    return tuple(re.compile(text) for text in _texts())


_LIKE_OVERFLOW = re.compile(
    r"maximum context length|cannot be greater than max_model_len|maximum model length|context_length_exceeded"
    r"|exceeds? the (?:model's |available )?context|longer than the (?:model's )?context"
    r"|model's context length is only|loaded with context length of only|Reached context length of"
    r"|greater than the context length|should not exceed max_(?:seq_len|num_tokens)"
    r"|tokens(?: \(\d+\))? exceeds? context window of"
    r"|input token count.{1,40}exceeds the maximum number of tokens|prompt token count of .{1,20} exceeds the limit"
    r"|exceeded model token limit|prompt exceeds max length|context window exceeds limit|maximum prompt length is"
    r"|prompt(?: is)? too long|exceed(?:s|ed)? (?:the )?max(?:imum)? (?:context|sequence|input|model) "
    r"|input is too long for (?:the )?requested model|range of input length should be|context length exceeded"
    r"|number of tokens in the (?:request|prompt) cannot exceed|too large for model with .{1,20} maximum context",
    re.IGNORECASE,
)
_WINDOW = re.compile(
    rf"maximum context length is ({_N})|max_model_len=(?:max_total_tokens=)?({_N})|maximum model length of ({_N})"
    rf"|context (?:length|window) (?:is |of )(?:only )?({_N})|context (?:length|size) \(({_N}) tokens\)"
    rf"|max_seq_len \(({_N})\)"
)
_PROMPT = re.compile(
    rf"contains (?:at least )?({_N}) input tokens|your request has ({_N}) input tokens|\(({_N}) in the messages"
    rf"|prompt is too long: ({_N})"
)

# The message of a server that could not read a body; it contains values of the body.
_VALIDATION = re.compile(r"\s*(?:[0-9]+ validation errors?\b|\[?\{)|.*(?:'input':|\"input\":|input_value=)", re.DOTALL)
_QUOTED = re.compile(r"(?<!\w)'[^']*'(?!\w)|\"[^\"]*\"|`[^`]*`|“[^”]*”")


class Overflow(NamedTuple):
    """The window and the prompt that a refusal names, in tokens. `least`: the prompt has at least so many, and was not
    counted further. `limit_only`: the prompt fits, the answer's limit does not. `sound`: the message is one of
    `_overflows` and its numbers are consistent."""

    window: int | None = None
    prompt: int | None = None
    least: bool = False
    limit_only: bool = False
    sound: bool = False


def read_overflow(message: str) -> Overflow | None:
    """The numbers of a message that is, as a whole, a known text about a prompt or a limit beyond the window."""
    for text in _overflows():
        if (found := text.fullmatch(message)) is not None:
            return _numbers(found)
    return None


def _numbers(found: re.Match[str]) -> Overflow:
    read = {name: int(value) for name, value in found.groupdict().items() if value and name != "least"}
    if "most" in read:
        return Overflow(read["most"], read["prompt"])
    window, prompt, limit, total = read["window"], read.get("prompt"), read.get("limit", 0), read.get("total")
    prompt = prompt and prompt + read.get("more", 0)
    least = bool(found.groupdict().get("least"))
    asked = (prompt or 0) + limit
    sound = window >= LEAST_WINDOW and (asked > window or (not limit and asked == window))
    sound = sound and (total is None or total == asked)
    return Overflow(window, prompt, least, limit_only=prompt is None or (prompt < window and limit > 0), sound=sound)


def guess_overflow(message: str) -> tuple[str, Overflow] | None:
    """(phrase, numbers) of any other message that mentions a window outside of its quotations."""
    if is_validation(message):
        return None
    plain = without_quotations(message)
    found = _LIKE_OVERFLOW.search(plain)
    if found is None:
        return None
    window, prompt = _number(_WINDOW, plain), _number(_PROMPT, plain)
    fits = window is not None and prompt is not None and prompt < window
    least = "at least" in plain
    return found[0], Overflow(window, prompt, least, limit_only=fits or "cannot be greater than max_model_len" in plain)


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(next(group for group in found.groups() if group)) if found else None


def is_validation(message: str) -> bool:
    """Is it the message of a server that could not read a body, with values of the body?"""
    return _VALIDATION.match(message) is not None


def without_quotations(message: str) -> str:
    """The message with its quotations taken out."""
    return _QUOTED.sub(" ", message)
