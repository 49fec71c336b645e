"""`gateway fleet check`: every rule over every launch block, and over what is declared without one. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gateway.apps.control.memory.model_files import ModelFiles
from gateway.apps.fleet.lint import (
    rules_container,
    rules_drafts,
    rules_environment,
    rules_front_end,
    rules_model,
    rules_nodes,
    rules_routes,
    rules_tools,
)
from gateway.apps.fleet.lint.catalog import Catalog
from gateway.apps.fleet.lint.subject import ORDER, Finding, Remark, Rule, Subject, subjects
from gateway.config.problems import Path, dotted
from gateway.config.snapshot import Snapshot

RULES: Mapping[str, Rule] = {
    **rules_tools.RULES,
    **rules_model.RULES,
    **rules_drafts.RULES,
    **rules_container.RULES,
    **rules_environment.RULES,
    **rules_front_end.RULES,
    **rules_nodes.RULES,
}
"""Rules over one backend, by name. Those over the whole file are in rules_routes.py."""

# Facts of the file, of docker, of the machines and of JSON, which hold for whatever build an image has.
_OF_THE_FILE = frozenset(
    (
        *("image-tag", "docker-flags", "docker-gpus", "listen-host", "port-mapping", "volumes", "shell-quotes"),
        *("parallel-size", "command-quotes", "command-container", "flag-json", "flag-value", "flag-range"),
        *rules_nodes.RULES,
    )
)

_Placed = tuple[str, Remark, Path]  # a rule, what it says, and where in the file


def rule_names() -> tuple[str, ...]:
    """Every rule but those of the command line itself, which `parse` names (gateway/launch/)."""
    return (*RULES, *rules_routes.RULES, rules_routes.MODE_CONFLICT)


def findings(
    snapshot: Snapshot,
    catalog: Catalog,
    lines: Mapping[Path, int] | None = None,
    *,
    in_container: bool = False,
    files: Mapping[str, ModelFiles] | None = None,
) -> list[Finding]:
    """The mistakes and oddities of a file, the errors first. `lines`: line of every path of the
    file (`LoadedFile.lines`). `in_container`: the gateway itself runs in one. `files`: the models on this machine."""
    every = list(subjects(snapshot, catalog, files))
    found = [one for subject in every for one in _of_subject(subject, catalog)]
    whole = {subject.backend.name: subject for subject in every if subject.profile is None}
    for rule, judge in rules_routes.RULES.items():
        found += [(rule, one, one.where) for one in judge(snapshot, whole, catalog, in_container)]
    conflicts = rules_routes.mode_conflict(snapshot, catalog, files or {})
    found += [(rules_routes.MODE_CONFLICT, one, one.where) for one in conflicts]
    place = _Lines(lines or {})
    kept = dict.fromkeys(place.finding(*one) for one in _without_repeats(found))
    return sorted(kept, key=lambda one: (ORDER.index(one.severity), one.line or 0))


def _of_subject(subject: Subject, catalog: Catalog) -> Iterator[_Placed]:
    root: Path = ("backends", subject.backend.name)
    for rule, judge in RULES.items():
        for one in judge(subject, catalog):
            yield rule, _as_far_as_known(subject, rule, one), (*root, *one.where)
    for mistake in subject.command.mistakes:
        remark = Remark(mistake.severity, mistake.message, mistake.fix or "")
        yield mistake.rule, _as_far_as_known(subject, mistake.rule, remark), (*root, *subject.place)


def _as_far_as_known(subject: Subject, rule: str, remark: Remark) -> Remark:
    """What is known of released builds may not hold for another image: it is no error there. Of the words behind a
    program that is not known nobody can say whose they are."""
    if remark.severity != "error" or subject.is_stock or rule in _OF_THE_FILE:
        return remark
    message = f"if {subject.image} is vLLM as it is released: {remark.message}"
    return replace(remark, severity="note" if rule == "command-words" else "warning", message=message)


def _without_repeats(found: list[_Placed]) -> Iterator[_Placed]:
    """A mistake that a profile repeats from its command is reported once, at the command."""
    stated = {(path[:2], rule, one.message) for rule, one, path in found if path[2:3] != ("profiles",)}
    for rule, one, path in found:
        if path[2:3] != ("profiles",) or (path[:2], rule, one.message) not in stated:
            yield rule, one, path


class _Lines:
    """Finds the line of a path, or of the nearest thing around it that is written."""

    def __init__(self, lines: Mapping[Path, int]) -> None:
        self.lines = lines

    def finding(self, rule: str, remark: Remark, path: Path) -> Finding:
        line = next((found for end in range(len(path), 0, -1) if (found := self.lines.get(path[:end]))), None)
        return Finding(remark.severity, rule, dotted(path), line, remark.message, remark.fix, remark.source)
