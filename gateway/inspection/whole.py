"""An answer that comes in one piece: is it one, is it whole, does it say anything, and what of it has to be mended?"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from msgspec import Raw

from gateway.domain.request import CHAT, InferenceRequest
from gateway.domain.usage import read_usage
from gateway.inspection.answer import FIELDS, ChoiceAnswer, Delta, is_plain
from gateway.inspection.heuristics import closes_alone, is_garbage, opened, swallowed
from gateway.inspection.policy import Expected, closes_thoughts
from gateway.inspection.reasoning import THINK, Thoughts
from gateway.inspection.shape import brief, fault_in_end, fault_in_message, fault_in_text
from gateway.transport.sse import BROKEN_ENDS


class _Choice(msgspec.Struct):
    index: Any = 0
    finish_reason: Any = None
    message: Any = None
    text: Any = None


class _Answer(msgspec.Struct):
    """What is read of an answer; its bytes are passed on, so nothing unknown is lost."""

    choices: list[_Choice] | None = None
    data: Raw = Raw()  # embeddings are large: not looked into (`Raw | None` would take nothing but null)
    model: Any = None
    usage: Any = None
    error: Any = None


_decode = msgspec.json.Decoder(_Answer).decode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_choices = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_decode_message = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode
_OBJECTS = re.compile(rb"\[\s*[{\]]")  # begins a list of objects


@dataclass(slots=True)
class WholeAnswer:
    """`body` as it came, or mended; `model` = the name in it. `failure` = why it is no answer. `disobeyed`: it did not
    call the tool that it had to. `stray_close`: thoughts without an opener ended in its content."""

    body: bytes
    model: object = None
    usage: dict[str, Any] | None = None
    empty: bool = False
    failure: str | None = None
    disobeyed: bool = False
    stray_close: bool = False
    never_closed: bool = False
    violations: set[str] = field(default_factory=set)
    mended: set[str] = field(default_factory=set)


def read_whole(
    body: bytes, request: InferenceRequest, expected: Expected | None = None, thoughts: Thoughts | None = None
) -> WholeAnswer:
    """Judges a 200 and mends it. A complete answer that says nothing is `empty`. `thoughts`: how this backend's model
    marks its thoughts."""
    answer = WholeAnswer(body)
    try:
        read = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        answer.failure = "answered 200 with something that is not the JSON of an answer"
        return answer
    answer.model = read.model
    answer.usage = read.usage if isinstance(read.usage, dict) else None
    if request.endpoint.chunk_object:
        _judge(answer, read, chat=request.endpoint is CHAT)
        if answer.failure is None and read.choices and request.endpoint is CHAT:
            _check(answer, read.choices, request, expected, thoughts)
    elif _OBJECTS.match(memoryview(read.data)) is None:
        answer.failure = _why(read, "data")
    return answer


def _check(
    answer: WholeAnswer,
    choices: list[_Choice],
    request: InferenceRequest,
    expected: Expected | None,
    thoughts: Thoughts | None,
) -> None:
    """Every choice through its check; the body is only written anew when one of them has to change."""
    limit = request.limit()
    cut = limit is not None and read_usage(answer.usage).completion == limit
    changed: dict[int, tuple[dict[str, Any], object]] = {}
    obeyed = said = thought = limited = False
    for i, choice in enumerate(choices):
        message = choice.message if isinstance(choice.message, dict) else {}
        content = message.get("content")
        text = content if isinstance(content, str) else ""
        wanted = expected
        style = opened(text, thoughts)
        if style is not None:
            wanted = expected or Expected(thoughts=style)
        elif (
            closes_alone(text) and not any(message.get(name) for name in FIELDS) and closes_thoughts(request, thoughts)
        ):
            answer.stray_close = True
            wanted = replace(expected or Expected(), thoughts=THINK.with_opener_implied())
        if is_garbage(text) or any(is_garbage(one) for name in FIELDS if isinstance(one := message.get(name), str)):
            answer.violations.add("garbage")
        if choice.finish_reason == "repetition":
            wanted = wanted or Expected()
        if wanted is None:
            said, thought = said or bool(text), thought or any(message.get(name) for name in FIELDS)
            limited = limited or choice.finish_reason == "length"
            continue
        if is_plain(message, choice.finish_reason, wanted):
            said, limited = True, limited or choice.finish_reason == "length"
            size = len(text) if text.isascii() else len(text.encode(errors="replace"))
            if wanted.tools is not None and len(choices) == 1 and swallowed(size, answer.usage):
                answer.violations.add("swallowed")
            continue
        check = ChoiceAnswer(wanted)
        deltas = check.delta(message)
        rest, finish = check.end(choice.finish_reason, cut=cut)
        if rest or finish != choice.finish_reason or len(deltas) != 1 or deltas[0] is not message:
            changed[i] = _joined(message, deltas + rest), finish
        answer.violations |= check.violations
        answer.mended |= check.mended
        answer.never_closed = answer.never_closed or check.never_closed
        obeyed = obeyed or check.obeyed
        if wanted.tools is not None and not check.called and len(choices) == 1 and swallowed(check.size, answer.usage):
            answer.violations.add("swallowed")
        visible = any(_is_visible(delta) for delta in deltas + rest)
        said, thought = said or visible or check.called, thought or check.thought
        limited = limited or finish == "length"
    cut_short = "reasoning_cut" in answer.violations
    answer.disobeyed = expected is not None and expected.must_call and not obeyed and not cut_short
    if expected is not None and expected.tools is not None and request.choices == 1:
        answer.empty = not said and not limited
    if thought and not said and not limited:
        answer.violations.add("nothing_said")
    if changed:
        answer.body = _rewritten(answer.body, changed)


def _is_visible(delta: Delta) -> bool:
    content = delta.get("content")
    said = content.strip() if isinstance(content, str) else content
    return bool(said or delta.get("refusal"))


def _joined(message: dict[str, Any], deltas: list[Delta]) -> dict[str, Any]:
    """One message of the deltas that it became."""
    joined = {key: value for key, value in message.items() if key not in ("content", "tool_calls", *FIELDS)}
    texts: dict[str, list[str]] = {}
    calls: list[Any] = []
    for delta in deltas:
        calls += delta.get("tool_calls") or ()
        for key in ("content", *FIELDS):
            if isinstance(delta.get(key), str):
                texts.setdefault(key, []).append(delta[key])
    nothing = None if calls or texts or message.get("content") is None else ""
    parts = next((delta["content"] for delta in deltas if isinstance(delta.get("content"), list)), nothing)
    joined["content"] = "".join(texts.pop("content", ())) or parts
    joined |= {key: "".join(parts) for key, parts in texts.items()}
    if calls:
        joined["tool_calls"] = [{k: v for k, v in call.items() if k != "index"} for call in calls]
    return joined


def _rewritten(body: bytes, changed: dict[int, tuple[dict[str, Any], object]]) -> bytes:
    """The body with these choices' messages and finish_reasons; not their logprobs, which belonged to the old text."""
    fields = _decode_fields(body)
    choices = _decode_choices(fields["choices"])
    for i, (message, finish) in changed.items():
        choice = choices[i]
        moved = message.get("content") != _decode_message(choice["message"]).get("content")
        choice |= {"message": Raw(_encode(message)), "finish_reason": Raw(_encode(finish))}
        if moved:
            choice["logprobs"] = Raw(b"null")
    return _encode({**fields, "choices": Raw(_encode(choices))})


def _judge(answer: WholeAnswer, read: _Answer, *, chat: bool) -> None:
    if read.choices is None:
        answer.failure = _why(read, "choices")
        return
    for choice in read.choices:
        said = fault_in_message(choice.message) if chat else fault_in_text(choice.text)
        fault = said or fault_in_end(choice.finish_reason)
        if fault is not None:
            answer.failure = fault
        elif choice.finish_reason in BROKEN_ENDS:
            answer.failure = f"ended with finish_reason {choice.finish_reason}"
        elif choice.finish_reason is None:
            answer.failure = "ended without a finish_reason"
    if not read.choices:
        answer.failure = "answered with no choices"
    answer.empty = all(_says_nothing(choice) for choice in read.choices)


def _why(read: _Answer, missing: str) -> str:
    if read.error is not None:
        return f"answered 200 with an error: {brief(read.error)}"
    return f"answered 200 without `{missing}`"


def _says_nothing(choice: _Choice) -> bool:
    """Neither text, nor calls, nor even a thought; and not because the client allowed no more."""
    if choice.finish_reason == "length" or choice.text:
        return False
    message = choice.message if isinstance(choice.message, dict) else {}
    said = ("content", "tool_calls", "refusal", "reasoning", "reasoning_content", "function_call", "audio")
    return not any(message.get(key) for key in said)
