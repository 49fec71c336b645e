"""Writes the tables of servers and clouds into docs/engines.md, each between its two marks, from the rows of
gateway/domain/servers.toml. tests/program/test_reference.py checks that it is current."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gateway.domain.engine_traits import CLOUDS, TRAITS, EngineTraits
from gateway.domain.forms import Forms

PAGE = Path(__file__).parents[1] / "engines.md"
BEGIN, END = "<!-- servers: begin -->\n", "<!-- servers: end -->\n"
BEGIN_CLOUDS, END_CLOUDS = "<!-- clouds: begin -->\n", "<!-- clouds: end -->\n"
# Those that a file may name as the server behind `engine: openai`: an Ollama is asked as `engine: ollama`.
SERVERS = [name for name, traits in TRAITS.items() if traits.signs is not None and name != "ollama"]

_FORCED = {"native": "yes", "only_tool": "by offering it alone", "never": "no"}
_SCHEMA = {True: "enforced", False: "ignored", None: "not known"}
_THINKING = {None: "as declared", "chat_template_kwargs": "`chat_template_kwargs`"}


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _signs(traits: EngineTraits) -> str:
    signs = traits.signs
    assert signs is not None
    found = [f"`owned_by: {' or '.join(signs.owned_by)}`"] if signs.owned_by else []
    found += [f"`{signs.header[0]}: {signs.header[1]}…`"] if signs.header is not None else []
    return ", ".join([*found, *([f"`{signs.path}`"] if signs.path is not None else [])])


def _window(traits: EngineTraits) -> str:
    found = [f"`{path}`" for path in traits.window] if not traits.lists_cache else []
    found += [f"`{traits.describes.path}`"] if traits.describes is not None else []
    return ", ".join(found) or "`context` only"


def _lists(traits: EngineTraits) -> str:
    if traits.loaded is not None:
        return f"what is loaded by `{traits.loaded[0]}`"
    return "its disk" if traits.lists_cache else "what it serves"


ROWS: dict[str, Callable[[EngineTraits], str]] = {
    "known by": _signs,
    "endpoints": lambda t: ", ".join(sorted(t.endpoints)),
    "window": _window,
    "model list names": _lists,
    "loads on demand": lambda t: _yes(t.loads_on_demand),
    "`tool_choice: required`": lambda t: _yes(t.calls_on_demand),
    "a named tool": lambda t: _FORCED[t.named_calls],
    "`tool_choice: none`": lambda t: "yes" if t.withholds_tools else "no: tools are left out",
    "`tool_choice` absent": lambda t: "none: auto is written" if t.assumes_no_calls else "auto",
    "`json_schema`": lambda t: _SCHEMA[t.enforces_schema],
    "`stop`": lambda t: "yes" if t.enforces_stop else "no: the gateway cuts",
    "`n` above 1": lambda t: _yes(t.many_choices),
    "`logprobs`": lambda t: _yes(t.logprobs),
    "the beginning of an answer": lambda t: "continued" if t.continues_text else "no",
    "a list of prompts": lambda t: _yes(t.list_prompts),
    "`max_tokens` absent": lambda t: "short: filled in" if t.short_answers else "to the window",
    "thinking is switched by": lambda t: _THINKING.get(t.thinking_field) or f"`{t.thinking_field}`",
    "thoughts come in": lambda t: "the text" if t.thoughts == "content" else f"`{t.thoughts}`",
    "usage of a stream": lambda t: t.streams_usage,
    "`[DONE]`": lambda t: _yes(not t.ends_without_done),
    "`/v1/responses`": lambda t: "asked there" if t.responses is not None and t.responses.untold else "as a chat",
    "stops when the client leaves": lambda t: "yes" if t.stops_unstreamed else "in a stream only: always asked for one",
    "a prompt beyond its window": lambda t: "is computed: `context` bounds it" if t.computes_beyond else "is refused",
}


def table() -> str:
    head = ["| | " + " | ".join(f"`{name}`" for name in SERVERS) + " |", "|---" * (len(SERVERS) + 1) + "|"]
    rows = ["| " + " | ".join([what, *(cell(TRAITS[name]) for name in SERVERS)]) + " |" for what, cell in ROWS.items()]
    return "\n".join([*head, *rows]) + "\n"


_LIMITS = {None: "as it came", "both": "both names"}
_SPELLED = {None: "as it came", "type": "`thinking.type`", "none": "left out"}
FORMS: dict[str, Callable[[Forms], str]] = {
    "role `developer`": lambda f: "read" if f.developer else "`system`",
    "limit": lambda f: _LIMITS.get(f.limit) or f"`{f.limit}`",
    "efforts": lambda f: "as they came" if f.efforts is None else ", ".join(f"`{word}`" for word in f.efforts),
    "Anthropic's `thinking`": lambda f: _SPELLED.get(f.thinking) or f"`{f.thinking}`",
    "thoughts of the history": lambda f: "left out" if f.thoughts == "none" else f"`{f.thoughts or 'as they came'}`",
    "ids of calls": lambda f: (
        {None: "any", "mistral": "nine letters and digits"}.get(f.ids) or "letters, digits, _ and -"
    ),
    "id of a session": lambda f: "not told" if f.session is None else f"`{f.session}`",
    "left out": lambda f: ", ".join(f"`{name}`" for name in sorted(f.refused)) or "nothing",
}


def clouds() -> str:
    head = ["| cloud | hosts | " + " | ".join(FORMS) + " |", "|---" * (len(FORMS) + 2) + "|"]
    rows = [
        "| "
        + " | ".join([f"`{name}`", ", ".join(hosts) or "any", *(cell(TRAITS[name].forms) for cell in FORMS.values())])
        + " |"
        for name, hosts in CLOUDS.items()
    ]
    return "\n".join([*head, *rows]) + "\n"


def _between(page: str, begin: str, end: str, text: str) -> str:
    before, _, rest = page.partition(begin)
    return before + begin + text + end + rest.partition(end)[2]


def with_table(page: str) -> str:
    return _between(_between(page, BEGIN, END, table()), BEGIN_CLOUDS, END_CLOUDS, clouds())


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
