"""Refusals that name what the gateway could change: a field, a role, an effort, the form of an id or of a message.

A message may quote the client, so nothing is learned from it: the request is sent once more in the other form, and only
an answer to that is a proof. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Raw

from gateway.domain.body import THINKING_FIELDS, value_of
from gateway.domain.fields import CHAT_PREFERENCES
from gateway.domain.forms import EFFORTS, PAIRED, PARTS, STRICT, Forms

Fields = Mapping[str, Raw]

WITHOUT_THINKING = tuple(f"refused={name}" for name in THINKING_FIELDS if name != "chat_template_kwargs")
"""The forms of a request that only wishes for thoughts, for a server that has none."""

READ_MOST = 2000  # characters of a message

_REFUSES = re.compile(
    r"unsupported|not (?:be )?support|does(?: not|n't) support|unrecogni[sz]ed|unknown|not permitted|not allowed"
    r"|forbidden|unexpected|not accept|invalid (?:argument|field|parameter|property|key)|extra (?:input|field|propert)"
    r"|additional propert|no such (?:field|parameter)|not a valid (?:field|parameter)|is not valid for"
    r"|cannot (?:both )?be specified|at the same time|not available|deprecated"
    r"|only [\w.,' ]{1,40}(?:is|are) (?:allowed|supported)",
    re.IGNORECASE,
)
_LIMITS = ("max_tokens", "max_completion_tokens")
_TOGETHER = re.compile(r"\bboth\b|at the same time", re.IGNORECASE)
_EFFORT = re.compile(r"effort|\b(?:reasoning|think(?:ing)?) (?:value|level)", re.IGNORECASE)
_ALWAYS = re.compile(
    r"\b(?:reasoning|thinking)\b.{0,60}\b(?:mandatory|can(?:not|'t) be (?:disabled|turned off)|always on)"
    r"|only works in thinking mode",
    re.IGNORECASE,
)
_WORD = re.compile(r"(?<![\w-])[a-z]+(?![\w-])")
_ROLE = re.compile(r"\b(?:role|developer)\b", re.IGNORECASE)
_NO_SYSTEM = re.compile(
    r"system (?:role|message|prompt|instruction)s?\b.{0,20}\bnot (?:be )?(?:supported|allowed|enabled)", re.IGNORECASE
)
_TURNS = re.compile(
    r"system messages?\b.{0,40}\b(?:beginning|first|start)|must alternate|alternat\w+ (?:between )?user"
    r"|unexpected (?:message )?role|expected last role|after the optional system message|multiple system messages",
    re.IGNORECASE,
)
_RESULTS = re.compile(
    r"(?:role|messages?)\W{1,3}(?:with role )?\W?tool\b|\btool (?:messages?|results?|role)\b|\btool_result\b",
    re.IGNORECASE,
)
_TEXT_ONLY = re.compile(
    r"only (?:text|string)|must be a string|image|content part|multimodal|expected a? ?string", re.IGNORECASE
)
_THOUGHTS = re.compile(r"\b(reasoning_content|reasoning)\b")
_WANTED = re.compile(r"missing|must|required|passed back|need", re.IGNORECASE)
_FLAT = re.compile(
    r"invalid type: sequence, expected a? ?string"
    r"|content\b.{0,60}(?:must|should|expected to|needs to) be a (?:valid )?str",
    re.IGNORECASE,
)
_IN_PARTS = re.compile(r'"content": ?\[')
_FILLED = re.compile(
    r"non-empty content|content.{0,40}(?:must|should|can)(?:not| not) be empty|content.{0,40}must be non-empty"
    r"|role '?assistant'? must not be empty|must have either content|content (?:field )?is (?:required|empty)",
    re.IGNORECASE,
)
_EMPTY = re.compile(r'"content": ?(?:""|null|\[\])|"text": ?""')
_UNIQUE = re.compile(r"\bids? must be unique|duplicate[d ]{0,3}.{0,20}\b(?:tool|call)_?\w* ?_?ids?\b", re.IGNORECASE)
_IDS = re.compile(
    r"\b(?:tool[_ -]?(?:call|use)[\w. -]{0,10}id|tool_calls?\[?\d*\]?[.\w]*\bid|\bcall_id)\b", re.IGNORECASE
)
_NINE = re.compile(r"length of 9\b|9 characters|\{9\}")
_SAFE = re.compile(r"a-zA-Z0-9_-|alphanumeric|pattern", re.IGNORECASE)
_LONG = re.compile(r"too long|maximum length|at most", re.IGNORECASE)
_APART = (
    r"['\"`]{0}['\"`.]|^{0}\b|\binvalid {0}:"
    r"|(?:supplied|fields?|parameters?|arguments?|property|keys?)\W{{1,4}}(?:[\w'`\", ]{{0,80}}\W)?{0}\b"
)
# How servers begin that read no value of another type, and no arguments that are no JSON.
_STRICT = re.compile(
    r"Failed to deserialize the JSON body into the target type: "  # vLLM's Rust front end
    r"|Assistant messages must contain text, reasoning content, or tool_calls\."
    r"|messages: Validation error: message content (?:parts )?cannot be empty"
    r"|Function messages are not supported\."
    r"|duplicate tool name `|Only function tool calls are supported\."
    r"|failed to submit chat request: chat template error: assistant tool call `.{1,200}` has invalid JSON arguments: "
    r"|Failed to parse tool call arguments as JSON: "  # llama-server
    # Python servers that read the arguments of the history, and templates that walk through them
    r"|(?:Unterminated string starting at|Expecting [\w ,':]{1,60}|Extra data|Invalid control character at)"
    r": line \d+ column \d+ \(char \d+\)\Z"
    r"|Can only get item pairs from a mapping\.?\Z"
)
_PAIRED = re.compile(
    r"tool_calls\W{1,3}must be followed by tool messages|did not have response messages"
    r"|must be a response to a prece+ding message with\W{1,3}tool_calls"
    r"|(?:messages? with|message has) (?:role )?\W?tool\b.{0,60}(?:previous|prece\w+)"
    r"|not the same number of function calls and responses"
    r"|tool_use\W{1,3}ids were found without|unexpected \W?tool_use_id"
    r"|(?:tool result|tool_result|tool message|tool response)\w*\b.{0,60}\bno (?:matching|corresponding|previous)"
    r"|(?:unexpected|missing|no) (?:tool|function) (?:call )?(?:results?|outputs?|responses?)\b.{0,40}(?:call|message)",
    re.IGNORECASE,
)
_PARTS = re.compile(
    r"content\[\]\.type|(?:content|message|part)\b.{0,20}\btype\b|type\b.{0,20}\b(?:content|part)\b|content part"
    r"|Input should be '(?:text|image_url|video_url|input_audio|refusal|file)'",
    re.IGNORECASE,
)
_OTHER_PART = re.compile(
    r'\{"type": ?"(?!(?:text|image_url|input_audio|audio_url|video_url|file|refusal|function|custom|object)")\w+"'
)
_SCHEMAS = re.compile(
    r"(?:failed to parse|error parsing) grammar|schema conversion failed|Pattern must start with|unrecognized schema"
    r"|(?:schema|keyword|pattern|format)\b.{0,80}\bnot (?:be )?supported (?:by|in|for)|Unable to generate parser",
    re.IGNORECASE,
)
_BOUNDS = re.compile(rb'"(?:pattern|format|(?:min|max)(?:Length|Items)|uniqueItems|not|patternProperties)" ?:')
_CALLS_ALONE = re.compile(r"either content or tool_calls, but not both|content and tool_calls\b.{0,40}\b(?:both|same)")
# What vLLM's Python front end, and others that read with pydantic, say of a value that another front end takes.
_MISTYPED = re.compile(
    r"\d+ validation errors?\b|Input should be (?:an? valid |')|Field required|Missing 'type' field in multimodal part"
    r"|assistant tool_calls of type 'function'|sequence item \d+: expected str instance"
    r"|`\w{1,40}` must be an? (?:non-negative )?integer|TextEncodeInput must be Union"
)
_VARIANT = "unknown variant `"  # serde: a word that it does not know, not a type
_EXTRAS = (
    *("annotations", "refusal", "audio", "function_call", "reasoning_details", "thinking_blocks", "cache_control"),
    *("provider_specific_fields", "extra_content", "index", "prefix", "partial", "phase"),
)
_WORDS = ("name", "strict")  # extras too, but words of any language
_LOCATED = re.compile(r'"loc": ?\[([^\]]{1,200})\]')


def read_complaint(message: str, param: str | None, sent: Fields, prompt: str, forms: Forms) -> tuple[str, ...]:
    """The forms to try, as learned facts without their mark (`limit=max_tokens`); empty = the message names nothing
    that the gateway could change. `sent`: the fields that were sent; `prompt`: the messages, as JSON;
    `forms`: those in which they were sent."""
    message = message[:READ_MOST]
    if _FLAT.search(message) and _IN_PARTS.search(prompt) and not _RESULTS.search(message) and not forms.flat:
        return ("flat=true",)
    if _VARIANT not in message and _STRICT.match(message) is not None:
        return () if forms.strict else (STRICT,)
    if not forms.paired and '"tool_call' in prompt and _PAIRED.search(message):
        return (PAIRED,)
    if not forms.parts and _OTHER_PART.search(prompt) and _PARTS.search(message):
        return (PARTS,)
    if not forms.plain_schemas and _SCHEMAS.search(message) and _BOUNDS.search(bytes(sent.get("tools", b""))):
        return ("plain_schemas=true",)
    if not forms.calls_alone and '"tool_calls"' in prompt and _CALLS_ALONE.search(message):
        return ("calls_alone=true",)
    for read in (_limit, _effort, _ids, _thoughts, _result, _role, _filled):
        if found := read(message, param or "", sent, prompt, forms):
            return (found,)
    if extras := tuple(f"extras={name}" for name in _extras(message, param or "", prompt, sent)):
        return extras
    refused = [f"refused={name}" for name in _refused(message, param or "", sent)]
    if not refused and not forms.strict and _MISTYPED.search(message) is not None:
        return (STRICT,)
    return tuple(refused[-1:] if _TOGETHER.search(message) else refused)


def _limit(message: str, param: str, sent: Fields, prompt: str, forms: Forms) -> str | None:
    if _REFUSES.search(message) is None:
        return None
    named = [name for name in _LIMITS if name in sent and (param == name or re.search(rf"\b{name}\b", message))]
    if not named:
        return None
    at = {name: message.find(name) for name in named}
    refused = param if param in named else min(named, key=lambda name: at[name])
    return "limit=" + _LIMITS[1 - _LIMITS.index(refused)]


def _effort(message: str, param: str, sent: Fields, prompt: str, forms: Forms) -> str | None:
    asked = value_of(sent.get("reasoning_effort")) or _inside(sent, "reasoning", "effort")
    asked = asked or _inside(sent, "chat_template_kwargs", "reasoning_effort")
    if not isinstance(asked, str):
        return None
    if asked == "none" and _ALWAYS.search(message) and forms.efforts is None:
        return "efforts=" + ",".join(EFFORTS[1:])
    known = [word for word in dict.fromkeys(_WORD.findall(message.lower())) if word in EFFORTS and word != asked]
    quoted = len(known) > 1 and re.search(rf"['\"`]{re.escape(asked)}['\"`]", message) is not None
    if not (quoted or _EFFORT.search(message) or _EFFORT.search(param)):
        return None
    if forms.efforts is not None:
        return "efforts="  # those that the server named did not help
    return "efforts=" + ",".join(known)


def _inside(sent: Fields, name: str, key: str) -> object:
    value = value_of(sent.get(name))
    return value.get(key) if isinstance(value, dict) else None


def _ids(message: str, param: str, sent: Fields, prompt: str, forms: Forms) -> str | None:
    if '"tool_calls"' in prompt and _UNIQUE.search(message):
        return "ids=unique"
    if '"tool_call' not in prompt or not (_IDS.search(message) or _IDS.search(param)):
        return None
    if _NINE.search(message):
        return "ids=mistral"
    if _LONG.search(message):
        return "ids=short"
    return "ids=safe" if _SAFE.search(message) else None


def _thoughts(message: str, param: str, sent: Fields, prompt: str, forms: Forms) -> str | None:
    found = _THOUGHTS.search(message) or _THOUGHTS.search(param)
    if found is None:
        return None
    if _REFUSES.search(message) is None and _WANTED.search(message):
        return f"thoughts={found[1]}" if '"assistant"' in prompt else None
    if _REFUSES.search(message) and (f'"{found[1]}":' in prompt or '"reasoning' in prompt):
        return "thoughts=none"
    return None


def _result(message: str, param: str, sent: Fields, prompt: str, forms: Forms) -> str | None:
    shown = '"tool_call_id"' in prompt and '"type":' in prompt and _RESULTS.search(message)
    return "text_results=true" if shown and _TEXT_ONLY.search(message) else None


def _role(message: str, param: str, sent: Fields, prompt: str, forms: Forms) -> str | None:
    if '"developer"' in prompt and forms.developer and _ROLE.search(message):
        return "developer=false"
    if '"system"' in prompt and _NO_SYSTEM.search(message):
        return "system=false"
    return "turns=true" if _TURNS.search(message) else None


def _filled(message: str, param: str, sent: Fields, prompt: str, forms: Forms) -> str | None:
    return "filled=true" if _FILLED.search(message) and _EMPTY.search(prompt) else None


def _extras(message: str, param: str, prompt: str, sent: Fields) -> Iterator[str]:
    """The fields of messages, of their parts and calls, that the message refuses and that nobody needs."""
    if _REFUSES.search(message) is None:
        return
    for name in _EXTRAS:
        if f'"{name}":' in prompt and (re.search(rf"\b{name}\b", message) or param.rpartition(".")[2] == name):
            yield name
    tools = bytes(sent.get("tools", b"")).decode("utf-8", "replace")
    for name in _WORDS:
        told = f"{message} {param}"
        if f'"{name}":' in prompt + tools and re.search(rf"\b(?:messages|tools)\b[^\n]{{0,40}}['\"`.]{name}\b", told):
            yield name


def _refused(message: str, param: str, sent: Fields) -> Iterator[str]:
    """The preferences among the fields that the message refuses. A name that is a word of any language counts only
    where it is set apart."""
    if _REFUSES.search(message) is None:
        return
    located = {word for place in _LOCATED.findall(message) for word in re.findall(r"\w+", place)}
    for name in sent:
        if name not in CHAT_PREFERENCES and name != "stream_options":
            continue
        named = rf"\b{name}\b" if "_" in name else _APART.format(name)
        if param.split(".")[0] == name or name in located or re.search(named, message):
            yield name
