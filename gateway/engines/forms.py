"""A chat in the forms that one server reads (domain/forms.py). Pure: a body in which nothing is to be changed is not
read."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Raw

from gateway.domain.body import UNREADABLE, value_of
from gateway.domain.forms import Forms, nearest_effort
from gateway.engines.call_ids import with_ids
from gateway.engines.strict import strict_fields, strict_messages

Fields = dict[str, Raw]
Message = dict[str, Any]

_DEVELOPER = re.compile(rb'"developer"')
_LIMITS = ("max_completion_tokens", "max_tokens")
_EFFORT = "reasoning_effort"
_EFFORTS_INSIDE = (("reasoning", "effort"), ("chat_template_kwargs", _EFFORT))  # OpenRouter's, and a template's
_TEXT_ALONE = "The result is in the next message."
_NO_RESULT = "(no output)"
_BUDGETS = ((2048, "low"), (12_288, "medium"))  # tokens of a thinking budget, up to which it is that effort

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Any).decode


def reminder(text: str) -> str:
    """A system message that is not the first, as a text of the user's turn: many chat templates refuse it elsewhere.
    So it keeps its place, and everything before it stays in the prefix cache."""
    return f"<system-reminder>\n{text}\n</system-reminder>"


def names_developer(messages: Raw) -> bool:
    """Could a message have the role `developer`? False is sure."""
    return _DEVELOPER.search(memoryview(messages)) is not None


def messages_in_form(messages: Raw, forms: Forms) -> Raw:
    """The messages as the server reads them."""
    changes = forms.changes_messages or (not forms.developer and names_developer(messages))
    return _messages_in_form(messages, forms) if changes else messages


def put_in_form(fields: Fields, forms: Forms, messages: Raw | None = None) -> None:
    """Change the fields of a chat to the forms of its server. `messages`: where they have their form already."""
    if messages is not None:
        fields["messages"] = messages
    elif (given := fields.get("messages")) is not None:
        fields["messages"] = messages_in_form(given, forms)
    if forms.strict:
        strict_fields(fields)
    if forms.limit is not None:
        _name_limit(fields, forms.limit)
    if forms.thinking is not None and "thinking" in fields:
        _spell_thinking(fields, forms)
    if forms.efforts is not None and _EFFORT in fields:
        _set_effort(fields, value_of(fields[_EFFORT]), forms.efforts)
    for name, key in _EFFORTS_INSIDE if forms.efforts is not None else ():
        if name in fields:
            _set_effort_inside(fields, name, key, forms.efforts or ())
    if "strict" in forms.extras and "tools" in fields:
        fields["tools"] = _without_strict(fields["tools"])
    if forms.plain_schemas and "tools" in fields:
        fields["tools"] = _with_plain_schemas(fields["tools"])
    for name in forms.refused:
        fields.pop(name, None)


def _name_limit(fields: Fields, name: str) -> None:
    given = next((fields[one] for one in _LIMITS if one in fields and bytes(fields[one]) != b"null"), None)
    if given is None:
        return
    if name == "both":
        fields.setdefault("max_tokens", given)
        return
    for one in _LIMITS:
        fields.pop(one, None)
    fields[name] = given


def _set_effort(fields: Fields, effort: Any, known: tuple[str, ...]) -> None:
    nearest = nearest_effort(effort, known) if isinstance(effort, str) else None
    if nearest is None:
        fields.pop(_EFFORT, None)
    elif nearest != effort:
        fields[_EFFORT] = Raw(_encode(nearest))


def _set_effort_inside(fields: Fields, name: str, key: str, known: tuple[str, ...]) -> None:
    """The same of an effort inside another field."""
    given = value_of(fields[name])
    effort = given.get(key) if isinstance(given, dict) else None
    if not isinstance(effort, str) or (nearest := nearest_effort(effort, known)) == effort:
        return
    rest = {name: value for name, value in given.items() if name != key}
    made = rest if nearest is None else {**rest, key: nearest}
    if made:
        fields[name] = Raw(_encode(made))
    else:
        del fields[name]


def _without_strict(raw: Raw) -> Raw:
    tools = value_of(raw)
    if not isinstance(tools, list):
        return raw
    names = frozenset(("strict",))
    for tool in tools:
        if isinstance(tool, dict) and isinstance(tool.get("function"), dict):
            tool["function"] = {name: value for name, value in tool["function"].items() if name not in names}
    return Raw(_encode(tools))


# What servers that make a grammar of a schema do not know; the rest of it says what the values are.
_BOUNDS = frozenset(
    (
        *("pattern", "format", "patternProperties", "propertyNames", "minLength", "maxLength", "minItems", "maxItems"),
        *("uniqueItems", "contains", "minContains", "maxContains", "multipleOf", "not", "if", "then", "else"),
    )
)
_NAMED = ("properties", "$defs", "definitions")  # their keys are names, and no words of a schema
_VALUES = ("enum", "const", "default", "examples", "required")


def _with_plain_schemas(raw: Raw) -> Raw:
    tools = value_of(raw)
    if not isinstance(tools, list):
        return raw
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict) and isinstance(function.get("parameters"), dict):
            tool["function"] = {**function, "parameters": _plain_schema(function["parameters"])}
    return Raw(_encode(tools))


def _plain_schema(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_plain_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for word, value in schema.items():
        if word in _NAMED and isinstance(value, dict):
            made[word] = {name: _plain_schema(one) for name, one in value.items()}
        elif word not in _BOUNDS:
            made[word] = value if word in _VALUES else _plain_schema(value)
    return made


def _spell_thinking(fields: Fields, forms: Forms) -> None:
    """Anthropic's `thinking` as this server spells it; a budget is an effort where there are no budgets."""
    thinking = value_of(fields.pop("thinking"))
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if kind not in ("enabled", "disabled", "adaptive") or forms.thinking == "none":
        return
    if forms.thinking in ("type", "adaptive"):
        if forms.thinking == "adaptive" or kind != "adaptive":
            on = "adaptive" if forms.thinking == "adaptive" else "enabled"
            fields["thinking"] = Raw(_encode({"type": "disabled" if kind == "disabled" else on}))
        return
    effort = "none" if kind == "disabled" else _effort_of(thinking.get("budget_tokens"))
    if forms.thinking == "reasoning_effort":
        if effort is not None and bytes(fields.get(_EFFORT, b"null")) == b"null":
            fields[_EFFORT] = Raw(_encode(effort))
    elif "reasoning" not in fields and effort is not None:
        fields["reasoning"] = Raw(_encode({"effort": effort}))


def _effort_of(budget: Any) -> str | None:
    """None: nothing was said of a budget."""
    if type(budget) is not int:
        return None
    return next((effort for most, effort in _BUDGETS if budget <= most), "high")


# -- messages ----------------------------------------------------------------------------------------------------------


def _messages_in_form(raw: Raw, forms: Forms) -> Raw:
    """The messages in the forms of the server; unchanged where they are none."""
    try:
        messages: Any = _decode(raw)
    except UNREADABLE:
        return raw
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        return raw
    made: list[Message] = messages
    if forms.strict:
        made = strict_messages(made)
    if forms.parts:
        made = [_with_known_parts(message) for message in made]
    if forms.paired:
        made = _paired(made)
    if forms.calls_alone:
        made = [{**message, "content": None} if message.get("tool_calls") else message for message in made]
    if forms.text_results:
        made = _pictures_apart(made)
    if forms.flat:
        made = [{**message, "content": _flat(message.get("content"))} for message in made]
    if forms.filled:
        made = _filled(made)
    if forms.turns or not (forms.developer and forms.system):
        made = _turns(made, forms)
    if forms.thoughts is not None:
        made = [_with_thoughts(message, forms.thoughts) for message in made]
    if forms.extras:
        made = [_without(message, forms.extras) for message in made]
    if forms.ids is not None:
        made = with_ids(made, forms.ids)
    return Raw(_encode(made))


def _turns(messages: list[Message], forms: Forms) -> list[Message]:
    """Messages of roles that the server does not read, in the system message at first, then in the user's turn."""
    foreign = () if forms.developer else ("developer",)
    if forms.system and not forms.turns and not any(message.get("role") in foreign for message in messages):
        return messages
    late = ("system", "developer") if forms.turns else foreign
    made: list[Message] = []
    for message in messages:
        role = message.get("role")
        if role in ("system", *foreign) and all(one.get("role") == "system" for one in made):
            role, message = "system", {**message, "role": "system"}
        elif role in late:
            role, message = "user", {**message, "role": "user", "content": _reminded(message.get("content"))}
        if made and made[-1].get("role") == role and _is_joined(made[-1], message, role, forms):
            made[-1] = _joined(made[-1], message)
        else:
            made.append(message)
    if forms.system or not made or made[0].get("role") != "system":
        return made
    spoken = {**made[0], "role": "user"}
    if len(made) > 1 and made[1].get("role") == "user":
        return [_joined(spoken, made[1]), *made[2:]]
    return [spoken, *made[1:]]


def _is_joined(first: Message, second: Message, role: object, forms: Forms) -> bool:
    """Do these neighbours become one? An assistant's calls are followed by their results: nothing joins them."""
    if not forms.turns:
        return role == "system"
    return role != "tool" and "tool_calls" not in first and "tool_calls" not in second


def _joined(first: Message, second: Message) -> Message:
    one, two = first.get("content") or "", second.get("content") or ""
    if isinstance(one, str) and isinstance(two, str):
        return {**second, **first, "content": f"{one}\n\n{two}" if one and two else one or two}
    return {**second, **first, "content": [*_parts(one), *_parts(two)]}


def _parts(content: Any) -> list[Any]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if isinstance(content, str) and content else []


def _reminded(content: Any) -> Any:
    if isinstance(content, str):
        return reminder(content) if content else content
    return [
        {**part, "text": reminder(part["text"])}
        if isinstance(part, dict) and isinstance(part.get("text"), str)
        else part
        for part in _parts(content)
    ]


def _flat(content: Any) -> Any:
    """The content as one text, where it has nothing but texts."""
    if not isinstance(content, list) or not all(isinstance(part, dict) and "text" in part for part in content):
        return content
    return "\n".join(str(part["text"]) for part in content)


def _filled(messages: list[Message]) -> list[Message]:
    """The messages without those that say nothing, and without texts in them that do; a result of a call says so."""
    made: list[Message] = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            content = [part for part in content if not (isinstance(part, dict) and part.get("text") == "")]
            message = {**message, "content": content}
        if content or message.get("tool_calls"):
            made.append(message if content else {**message, "content": None})
        elif message.get("role") == "tool":
            made.append({**message, "content": _NO_RESULT})
    return made if any(message.get("role") == "user" for message in made) else messages


def _pictures_apart(messages: list[Message]) -> list[Message]:
    """The results of calls with their text alone; what else they show is in a message of the user behind them."""
    made: list[Message] = []
    shown: list[Any] = []
    for message in messages:
        if message.get("role") != "tool" and shown:
            made.append({"role": "user", "content": shown})
            shown = []
        content = message.get("content")
        if message.get("role") == "tool" and isinstance(content, list):
            texts = [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
            others = [part for part in content if not (isinstance(part, dict) and part.get("type") == "text")]
            shown = shown + others
            message = {**message, "content": "\n".join(texts) or (_TEXT_ALONE if others else "")}
        made.append(message)
    return [*made, {"role": "user", "content": shown}] if shown else made


_PARTS = ("text", "image_url", "input_audio", "audio_url", "video_url", "file", "refusal")
_LOST = "(the result of this call was lost)"


def _with_known_parts(message: Message) -> Message:
    """The message without parts that are neither text nor media: what they say goes where a chat has it."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = [part for part in content if isinstance(part, dict)]
    thoughts = "".join(str(part.get("thinking") or "") for part in parts if part.get("type") == "thinking")
    kept = [part if part.get("type") in _PARTS else {"type": "text", "text": _told(part)} for part in parts]
    kept = [part for part in kept if part.get("type") != "text" or part.get("text")]
    if thoughts and not (message.get("reasoning_content") or message.get("reasoning")):
        message = {**message, "reasoning_content": thoughts}
    return {**message, "content": kept or ""}


def _told(part: Message) -> str:
    told = part.get("text") or part.get("content")
    return told if isinstance(told, str) and "think" not in str(part.get("type")) else ""


def _paired(messages: list[Message]) -> list[Message]:
    """The messages with a result for each call, and without results of calls that are not there: those are told by the
    user."""
    made: list[Message] = []
    open_: list[str] = []  # ids of calls without a result
    for message in messages:
        id_, role = message.get("tool_call_id"), message.get("role")
        if role == "tool" and id_ not in open_:
            told = {"role": "user", "content": message.get("content")}
            made += [told] if not open_ else []
            continue
        if role == "tool":
            open_.remove(str(id_))
        elif open_:
            made += [{"role": "tool", "tool_call_id": one, "content": _LOST} for one in open_]
            open_ = []
        made.append(message)
        calls = message.get("tool_calls") if role == "assistant" else None
        open_ += [str(call.get("id")) for call in calls or () if isinstance(call, dict)]
    return [*made, *({"role": "tool", "tool_call_id": one, "content": _LOST} for one in open_)]


def _with_thoughts(message: Message, name: str) -> Message:
    """The thoughts of an earlier turn under this name. A turn with calls has to have `reasoning_content`."""
    if message.get("role") != "assistant":
        return message
    told = message.get("reasoning_content") or message.get("reasoning")
    kept = {key: value for key, value in message.items() if key not in ("reasoning", "reasoning_content")}
    if name == "none" or (told is None and not (name == "reasoning_content" and message.get("tool_calls"))):
        return kept
    return {**kept, name: told or ""}


def _without(message: Message, names: frozenset[str]) -> Message:
    """The message without these fields, of itself, of its parts and of its calls."""
    made = {name: value for name, value in message.items() if name not in names}
    for listed in ("content", "tool_calls"):
        if isinstance(made.get(listed), list):
            made[listed] = [_without(one, names) if isinstance(one, dict) else one for one in made[listed]]
    return made
