"""Rules about tool calls and thoughts: the flags that agents need, and parsers by family."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gateway.apps.fleet.lint.subject import DECLARED_BY, Finding, Severity, Subject
from gateway.config.problems import Path
from gateway.domain.engine_traits import traits_of

GUIDE = "guide to vLLM on a Spark, 7.1.1 and 8"
_400 = 'every request with tools is a 400: "auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser'


def auto_tool_choice(one: Subject) -> Iterator[Finding]:
    """Tools need both flags."""
    if not traits_of(one.backend).launch_flags or not one.chats or not (one.launched or one.tools):
        return
    auto, parser, best = one.flags.get("enable-auto-tool-choice"), one.tools, _best_parser(one)
    if parser and not auto and one.rust_front_end:
        return  # there the parser is enough
    if parser and not auto:
        message = f"a tool parser without --enable-auto-tool-choice: {_400}"
        fix = "--enable-auto-tool-choice" if one.launched else "auto_tools: true (and --enable-auto-tool-choice there)"
        yield Finding("error" if one.launched else "warning", message, fix, GUIDE, one.at("enable-auto-tool-choice"))
    elif auto and not one.flags.get("tool-call-parser") and one.whole:
        message = "--enable-auto-tool-choice without --tool-call-parser: vLLM does not start"
        yield Finding("error", message, f"--tool-call-parser {best or 'NAME'}", GUIDE)
    elif not auto and not parser and one.whole:
        message = f"no tool parser. The model loads and /v1/models is fine, but {_400}"
        fix = f"--enable-auto-tool-choice --tool-call-parser {best or 'NAME'}"
        published = one.facts.tool_parsers != ()
        yield Finding("warning" if published else "note", message, fix if published else "", GUIDE)


def parser_family(one: Subject) -> Iterator[Finding]:
    """The tool parser follows the model's family, not the client."""
    parser, facts, where = one.tools, one.facts, one.at("tool-call-parser")
    if parser is None or not traits_of(one.backend).launch_flags:
        return
    best = _best_parser(one)
    fix = _fix(one, "tool-call-parser", best) if best else ""
    source = facts.source_of("tool_parsers")
    if facts.tool_parsers == ():
        yield Finding(
            "note", f"no tool parser is published for {one.named}: see that a call arrives", "", source, where
        )
    elif facts.tool_parsers is None:
        known = _named_parsers(one) or facts.likely_parsers
        if known and parser not in known:
            message = f"'{parser}' is not the tool parser of {one.named}, which is {best}: calls may stay text"
            yield Finding("warning", message, fix, "vLLM's table of parsers", where)
    elif parser in facts.reported_parsers:
        message = (
            f"'{parser}' works for some with {one.named}, others need {best}: see with `gateway probe` that it calls"
        )
        yield Finding("warning", message, fix, source, where)
    elif parser not in facts.tool_parsers:
        message = f"'{parser}' cannot read the calls of {one.named}: they stay text in the answer, or are swallowed"
        yield Finding(one.claim(facts.versions_of("tool_parsers")), message, fix, source, where)


def model_unknown(one: Subject) -> Iterator[Finding]:
    """A model of which nothing is known here is not one of which nothing is wrong."""
    if not one.whole or one.profile is not None or not one.names or not one.chats:
        return
    if one.facts.match or one.family is not None:
        return
    message = f"{one.model} is in no row of the catalogue: its parsers, drafts and image are not checked"
    fix = "see with `gateway probe` that it calls tools; `families` of your own catalogue takes a row"
    yield Finding("note", message, fix, "the catalogue")


def reasoning_parser(one: Subject) -> Iterator[Finding]:
    """The reasoning parser follows the family, and is there where the model thinks."""
    wanted = one.facts.reasoning_parsers
    if wanted is None:
        name = one.family.reasoning_parser if one.family is not None else None
        wanted = (name,) if name else None if one.family is None or one.family.thinking != "never" else ()
    if not traits_of(one.backend).launch_flags or wanted is None or not one.chats:
        return
    given, where = one.text("reasoning-parser"), one.at("reasoning-parser")
    has_none = one.whole if one.launched else one.backend.reasoning_parser == "none"
    source = one.facts.source_of("reasoning_parsers") or "vLLM's table of parsers"
    if given and not wanted:
        message = f"{one.named} writes no thoughts: with a reasoning parser its whole answer may count as one"
        fix = "take out --reasoning-parser" if one.launched else "reasoning_parser: none"
        yield Finding("warning", message, fix, source, where)
    elif given and given not in wanted:
        message = (
            f"'{given}' is not the reasoning parser of {one.named}: thoughts land in the answer, or the answer in them"
        )
        yield Finding("warning", message, _fix(one, "reasoning-parser", wanted[0]), source, where)
    elif not given and wanted and "none" not in wanted and has_none:
        thinks = one.family is not None and one.family.thinks_by_default
        when = "thinks unless told not to" if thinks else "thinks when told to"
        message = f"{one.named} {when}, and no reasoning parser takes its thoughts out of the answer"
        yield Finding("warning" if thinks else "note", message, _fix(one, "reasoning-parser", wanted[0]), source, where)


def parser_plugin(one: Subject) -> Iterator[Finding]:
    """A reasoning parser that is no part of vLLM needs its file."""
    plugin = one.facts.parser_plugin
    if plugin is None or not one.whole or one.text("reasoning-parser") != plugin:
        return
    if "reasoning-parser-plugin" not in one.flags:
        message = f"'{plugin}' is no parser of vLLM's: without its file vLLM does not start"
        fix = f"--reasoning-parser-plugin /models/{plugin}_reasoning_parser.py (from the model's repository)"
        severity = one.claim(one.facts.versions_of("parser_plugin"))
        yield Finding(severity, message, fix, one.facts.source_of("parser_plugin"))


def thinking_only(one: Subject) -> Iterator[Finding]:
    """A checkpoint that always thinks may never call."""
    if one.facts.auto_calls:
        return
    message = (
        f"{one.named} cannot call tools with tool_choice auto: it thinks and ends its turn. It knows only thinking; "
        "enable_thinking: false and /no_think do nothing"
    )
    fix = "serve the Instruct checkpoint for agents"
    where = one.place if one.launched else ("model",)
    severity: Severity = one.claim(one.facts.versions_of("auto_calls")) if one.tools else "note"
    yield Finding(severity, message, fix, one.facts.source_of("auto_calls"), where)


def thinking_switch(one: Subject) -> Iterator[Finding]:
    """The key that switches thinking differs by family."""
    family = one.family
    if family is None or not one.chats:
        return
    kwargs = one.flags.get("default-chat-template-kwargs")
    written = [key for key in ("enable_thinking", "thinking") if isinstance(kwargs, Mapping) and key in kwargs]
    places: list[tuple[str, Path | None]] = [(key, None) for key in written]
    if one.backend.thinking_switch is not None:
        places.append((one.backend.thinking_switch, ("thinking_switch",)))
    for key, where in places:
        if family.switch is None:
            message = (
                f"{family.name} {'always' if family.thinking == 'always' else 'never'} thinks: '{key}' does nothing"
            )
            yield Finding("warning", message, f"take out {key}", "vLLM's table of parsers", where)
        elif key != family.switch:
            message = f"{family.name} is switched by '{family.switch}': '{key}' does nothing"
            yield Finding("warning", message, family.switch, "vLLM's table of parsers", where)


def thinking_declared(one: Subject) -> Iterator[Finding]:
    """`thinking` as declared, against the family."""
    stated, family = one.backend.thinking, one.family
    if stated is None or family is None or family.thinking == stated or one.profile is not None:
        return
    really = {"optional": "can be switched", "always": "always thinks", "never": "never thinks"}[family.thinking]
    severity: Severity = "note" if stated == "never" and family.thinking == "optional" else "warning"
    yield Finding(severity, f"{family.name} {really}", f"thinking: {family.thinking}", "its model card", ("thinking",))


def _named_parsers(one: Subject) -> tuple[str, ...]:
    if one.family is None or one.family.tool_parser is None:
        return ()
    return (one.family.tool_parser, *one.family.older_tool_parsers)


def _best_parser(one: Subject) -> str | None:
    known = one.facts.tool_parsers if one.facts.tool_parsers is not None else _named_parsers(one)
    known = known or one.facts.likely_parsers
    return known[0] if known else None


def _fix(one: Subject, flag: str, value: str) -> str:
    if one.launched:
        return f"--{flag} {value}"
    return f"start it with --{flag} {value}, and write {DECLARED_BY[flag]}: {value}"
