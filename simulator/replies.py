"""The replies of a simulated model: deterministic raw text, in the format of its family."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from simulator.formats import Format
from simulator.parsers import Reasoning

Request = Mapping[str, Any]
_FILLER = (
    *("and", "the", "light", "on", "the", "spark", "kept", "blinking"),
    *("while", "another", "token", "came", "out", "of", "the", "box"),
)
_ASKS = re.compile(r"\bcall\b|weather|\btools?\b|function", re.I)
_PRODUCT = re.compile(r"(\d{1,6})\s*(?:\*|x|×|times)\s*(\d{1,6})", re.I)
_PLACE = re.compile(r"\b(?:in|for|of) ([A-Z][\w-]+)")
_GIVEN = re.compile(r"\b(\w+)=`([^`]*)`")  # the value of an argument, as in: call Bash with command=`date`
_AT_ONCE = re.compile(r"\bat once\b", re.I)  # in a prompt that asks for several calls in one answer
_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.S)  # added to prompts by Claude Code
_SCORE = re.compile(r"\bscore\b[^.?!\n]{0,80}\bfrom (\d{1,3}) to (\d{1,3})\b", re.I)
_SHOWN = re.compile(r"^JSON format: (\{.*\})$", re.M)  # how Open WebUI asks for titles, tags and follow-ups
_WORDS = re.compile(r"(\d{1,6})[ -]words?\b", re.I)


@dataclass(frozen=True, slots=True)
class Voice:
    """How a model writes: its name, its format of tool calls, its markers of thoughts (None = it never thinks)."""

    name: str
    family: Format
    thoughts: Reasoning | None


def score(prompt: str, least: int, most: int, name: str) -> str:
    """The verdict of a judge: nearly the same for every model, but not always."""
    size = most - least + 1
    common = int.from_bytes(sha256(prompt.encode()).digest()[:4], "big") % size
    own = sha256(f"{name}\n{prompt}".encode()).digest()
    moved = common + (own[0] % 3 - 1) if own[1] % 3 == 0 else common
    value = least + max(0, min(size - 1, moved))
    return json.dumps({"score": value, "reason": f"{name} finds {value} of {most} right."})


def filler(index: int) -> str:
    """Token `index` of a text that never ends (ignore_eos, long answers)."""
    return " " + _FILLER[index % len(_FILLER)]


def text_of(content: Any) -> str:
    """The text of a message's content: a string, or a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return " ".join(p.get("text", "") for p in content if isinstance(p, dict) and isinstance(p.get("text"), str))


def raw_reply(request: Request, voice: Voice, thinking: bool, force_call: bool = False) -> str:
    """The model's raw text for a chat request."""
    thought = "The user wants an answer. I will keep it short."
    messages = [m for m in request.get("messages", []) if isinstance(m, dict)]
    prompt, result = _turn(messages)
    answering_tool = result is not None
    calls = [] if answering_tool and not force_call else _calls(request, prompt, force_call)
    if calls:
        thought = f"I should call {calls[0][0]}."
        body = voice.family.render(calls)
    elif (schema := _schema(request)) is not None:
        body = json.dumps(example(schema, "answer", prompt), ensure_ascii=False)
    elif answering_tool:
        body = f"The tool answered: {(result or '')[:200]}"
    else:
        body = sentence(prompt, voice.name)
    return think(thought, voice) + body if thinking and voice.thoughts else body


def _turn(messages: Sequence[Mapping[str, Any]]) -> tuple[str, str | None]:
    """(the user's text, the last result of a tool or None) since the model's last turn. Agents append messages of
    their own to the user's and to a tool's result (OpenClaw does both)."""
    last = max((i for i, m in enumerate(messages) if m.get("role") == "assistant"), default=-1)
    prompt = [text_of(m.get("content")) for m in messages[last + 1 :] if m.get("role") == "user"]
    results = [text_of(m.get("content")) for m in messages[last + 1 :] if m.get("role") == "tool"]
    if not prompt:
        prompt = [text_of(m.get("content")) for m in messages if m.get("role") == "user"][-1:]
    return _REMINDER.sub("", "\n".join(prompt)), results[-1] if results else None


def think(thought: str, voice: Voice) -> str:
    """A thought between the markers of the model's family."""
    rules = voice.thoughts
    if rules is None:
        return ""
    if rules.drop_after_opening:
        return f"{rules.opening}{rules.drop_after_opening}{thought}{rules.closing}"
    return f"{rules.opening}\n{thought}\n{rules.closing}\n\n"


def sentence(prompt: str, name: str) -> str:
    """A short answer to `prompt`; `N words` in it asks for a text of that length, `A*B` for a product, `score ... from
    1 to 5` for a verdict, `JSON format: {...}` on a line of its own for that object."""
    if shown := _SHOWN.search(prompt):
        return shown[1]
    if product := _PRODUCT.search(prompt):
        return f"{product[1]}*{product[2]} is {int(product[1]) * int(product[2])}."
    if asked := _SCORE.search(prompt):
        least, most = sorted((int(asked[1]), int(asked[2])))
        return score(prompt, least, most, name)
    if words := _WORDS.search(prompt):
        return "".join(filler(i) for i in range(int(words[1]))).lstrip()
    quoted = " ".join(prompt.split())[:80]
    return f'This is {name}, simulated. You said: "{quoted}"' if quoted else f"This is {name}, simulated."


def _objects(value: Any) -> list[Any]:
    """The objects in a value that should be a list of objects."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _calls(request: Request, prompt: str, force: bool) -> list[tuple[str, dict[str, Any]]]:
    functions = [t["function"] for t in _objects(request.get("tools")) if isinstance(t.get("function"), dict)]
    if not functions:
        return []
    choice = request.get("tool_choice")
    mentioned = next((f for f in functions if _mentions(prompt, f["name"])), None)
    if isinstance(choice, dict):
        name = choice.get("function", {}).get("name")
        chosen = next((f for f in functions if f["name"] == name), functions[0])
    elif choice == "required" or force or mentioned or _ASKS.search(prompt):
        chosen = mentioned or functions[0]
    else:
        return []
    parameters = chosen.get("parameters") or {}
    several = request.get("parallel_tool_calls") is not False and _AT_ONCE.search(prompt) is not None
    questions = _PLACE.findall(prompt) if several else []
    return [(chosen["name"], example(parameters, "", f"in {place}")) for place in dict.fromkeys(questions)] or [
        (chosen["name"], example(parameters, "", prompt))
    ]


def _mentions(prompt: str, tool: str) -> bool:
    """Does the prompt mention the tool? Only as a whole word; a name that is a plain word ("read", "exec") counts
    only if the prompt asks for a call."""
    name = re.escape(tool.lower()).replace("_", "[_ ]")
    return ("_" in tool or _ASKS.search(prompt) is not None) and re.search(rf"\b{name}\b", prompt.lower()) is not None


def _schema(request: Request) -> Mapping[str, Any] | None:
    wanted = request.get("response_format") or {}
    if wanted.get("type") == "json_schema":
        return (wanted.get("json_schema") or {}).get("schema") or {}
    if wanted.get("type") == "json_object":
        return {"type": "object", "properties": {"answer": {"type": "string"}}}
    outputs = request.get("structured_outputs") or {}
    return outputs.get("json") if isinstance(outputs.get("json"), dict) else None


def example(schema: Mapping[str, Any], key: str, prompt: str) -> Any:
    """A value that satisfies a JSON schema: required properties filled by type, the rest left out."""
    for fixed in ("const", "default"):
        if fixed in schema:
            return schema[fixed]
    if schema.get("enum"):
        return next((v for v in schema["enum"] if str(v).lower() in prompt.lower()), schema["enum"][0])
    for union in ("anyOf", "oneOf"):
        if schema.get(union):
            return example(schema[union][0], key, prompt)
    kind = schema.get("type", "object" if "properties" in schema or not key else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties") or {}
        required = schema.get("required", list(properties) if key == "answer" else [])
        return {name: example(properties.get(name, {"type": "string"}), name, prompt) for name in required}
    if kind == "array":
        return [example(schema.get("items") or {"type": "string"}, key, prompt)] * schema.get("minItems", 1)
    return _scalar(kind, schema, key, prompt)


def _scalar(kind: str, schema: Mapping[str, Any], key: str, prompt: str) -> Any:
    if kind in ("integer", "number"):
        number = re.search(r"\b\d{1,4}\b", prompt)
        low, high = schema.get("minimum", 1), schema.get("maximum", 10**9)
        value = min(max(int(number[0]) if number else 1, low), high)
        return int(value) if kind == "integer" else float(value)
    if kind == "boolean":
        return True
    if kind == "null":
        return None
    given = dict(_GIVEN.findall(prompt))
    if key in given:
        return given[key]
    place = _PLACE.search(prompt)
    if key.lower() in ("city", "location", "place"):
        return place[1] if place else "Oslo"
    return key or "text"
