"""A whole answer: the inspector handles it as a stream of one event, whose delta is the `message`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from gateway.domain.request import InferenceRequest
from gateway.inspection.answer import FIELDS, Delta
from gateway.inspection.inspector import Inspector
from gateway.inspection.policy import InspectionPolicy
from gateway.inspection.pooled import prompt_usage
from gateway.inspection.reasoning import Thoughts
from gateway.inspection.shape import brief, error_in
from gateway.transport.sse import Choice


class _Choice(msgspec.Struct):
    finish_reason: Any = None
    message: Any = None
    text: Any = None


class _Answer(msgspec.Struct):
    """The fields of an answer that are read. The bytes are passed on, so unknown fields are kept."""

    choices: list[_Choice] | None = None
    data: Raw = Raw()  # embeddings are large: not parsed (`Raw | None` would accept only null)
    results: Raw = Raw()
    model: Any = None
    usage: Any = None
    error: Any = None


_decode = msgspec.json.Decoder(_Answer).decode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_choices = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_decode_message = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode
_OBJECTS = re.compile(rb"\[\s*[{\]]")  # the beginning of a list of objects


class WholeAnswer(Inspector):
    """`body`: as received, or mended; `model`: the name in it; `told`: it is an error. `results`: the list of vectors
    or scores in it, to be checked by `PooledCheck`. The other attributes are the inspector's."""

    __slots__ = ("body", "model", "results", "told")

    def __init__(
        self,
        body: bytes,
        request: InferenceRequest,
        policy: InspectionPolicy | None = None,
        thoughts: Thoughts | None = None,
    ) -> None:
        super().__init__(request, policy, thoughts)
        self.body = body
        self.model: object = None
        self.results = Raw()
        self.told = False

    def read(self) -> None:
        """Check the body and mend it."""
        try:
            read = _decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.failure = "answered 200 with something that is not the JSON of an answer"
            return
        self.model = read.model
        self.usage = read.usage if isinstance(read.usage, dict) else None
        if self._request.endpoint.chunk_object:
            self._read_choices(read)
        else:
            self._read_results(read)

    def _read_results(self, read: _Answer) -> None:
        where = self._request.endpoint.pools or "data"
        self.results = read.results if where == "results" else read.data
        self.usage = prompt_usage(self.usage)
        if _OBJECTS.match(memoryview(self.results)) is None:
            self._fail(read, where)

    def _fail(self, read: _Answer, missing: str) -> None:
        error = read.error if read.error is not None else error_in(self.body)
        self.told = error is not None
        self.failure = (
            f"answered 200 with an error: {brief(error)}" if self.told else f"answered 200 without `{missing}`"
        )

    def _read_choices(self, read: _Answer) -> None:
        if read.choices is None or read.error is not None:
            self._fail(read, "choices")
            return
        if len(read.choices) == 1 and self.note_plain(read.choices[0].message, read.choices[0].finish_reason):
            return
        choices = [Choice(i, one.message, one.text, one.finish_reason) for i, one in enumerate(read.choices)]
        self.failure = self.fault_in(choices, whole=True) if choices else "answered with no choices"
        if self.failure is not None:
            return
        changed = self.inspect(choices, whole=True)
        if self.failure is not None:
            return
        if changed is not None:
            self.body = _rewritten(self.body, choices, changed)
        self.judge(sent=False)
        self._answers.clear()  # no longer needed: frees their memory


def read_whole(
    body: bytes, request: InferenceRequest, policy: InspectionPolicy | None = None, thoughts: Thoughts | None = None
) -> WholeAnswer:
    """Check the body of a 200 and mend it. A complete answer without content is `empty`."""
    answer = WholeAnswer(body, request, policy, thoughts)
    answer.read()
    return answer


def _rewritten(body: bytes, before: Sequence[Choice], changed: Sequence[Choice]) -> bytes:
    """The body with its changed choices. Logprobs of a changed text become null: they belonged to the old one."""
    fields = _decode_fields(body)
    written = _decode_choices(fields["choices"])
    differs = False
    for i, choice in enumerate(before):
        made = [one for one in changed if one.index == i]
        finish = made[-1].finish_reason
        if finish != choice.finish_reason:
            written[i]["finish_reason"] = Raw(_encode(finish))
            differs = True
        if choice.delta is None or (len(made) == 1 and made[0].delta is choice.delta):
            continue
        message = _joined(choice.delta, [one.delta for one in made])
        came = _decode_message(written[i]["message"])
        if _said(message) == _said(came):
            continue  # what was taken apart has come together again
        differs = True
        moved = message.get("content") != came.get("content")
        written[i]["message"] = Raw(_encode(message))
        if moved:
            written[i]["logprobs"] = Raw(b"null")
    return body if not differs else _encode({**fields, "choices": Raw(_encode(written))})


def _said(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if value is not None}


def _joined(message: dict[str, Any], deltas: list[Delta]) -> dict[str, Any]:
    """The message that the deltas add up to."""
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
