"""LiteLLM's proxy config: `model_list` with its router, module and server settings.

Several entries of one `model_name` stand side by side in a step, `order` makes steps of them, and fallbacks are later
steps. Facts about the format: docs.litellm.ai, `docs/proxy/configs` and `docs/proxy/reliability`.
"""

from __future__ import annotations

from typing import Any

from gateway.apps.importing.draft import Draft, DraftEntry, Notes, alias_name, check_further_names, short_steps, unique
from gateway.apps.importing.litellm_backends import Deployment, DeploymentReader, entries_of, is_glob
from gateway.apps.importing.source import (
    SourceFile,
    count_of,
    is_true,
    listed,
    mapping,
    note_unread,
    text_of,
)
from gateway.apps.importing.source_values import Secrets, is_no_key
from gateway.config.problems import Path
from gateway.config.snapshot import Balance

Steps = list[list[str]]

_BALANCE: dict[str, Balance] = {
    "least-busy": "least_busy",
    "latency-based-routing": "least_busy",
    "usage-based-routing": "least_busy",
    "usage-based-routing-v2": "least_busy",
}
_FALLBACK_KEYS = ("fallbacks", "context_window_fallbacks", "default_fallbacks")
_MASTER = "LITELLM_MASTER_KEY"


def convert(source: SourceFile) -> Draft:
    """The draft with its notes. It may have no backend: then nothing of `model_list` could be used."""
    notes = source.notes()
    keys = Secrets(notes)
    deployments = DeploymentReader(source, notes, keys).deployments()
    draft = Draft(backends=entries_of(deployments, source))
    _Aliases(source, notes, draft, deployments).build()
    _general(source, notes, keys, draft)
    _note_settings(source, notes)
    check_further_names(draft, notes)
    draft.notes = notes.in_order()
    return draft


class _Aliases:
    def __init__(self, source: SourceFile, notes: Notes, draft: Draft, deployments: list[Deployment]) -> None:
        self.source, self.notes, self.draft = source, notes, draft
        self.groups: dict[str, list[Deployment]] = {}
        for one in deployments:
            self.groups.setdefault(one.group, []).append(one)
        self.names = self._names()

    def _names(self) -> dict[str, str]:
        """Group -> name of its alias. Invalid names are changed; a glob becomes a further name of an alias."""
        names: dict[str, str] = {}
        for group in sorted(self.groups, key=is_glob):  # plain names first, so that they stay unchanged
            wanted = alias_name(group.split("*")[0].rstrip("-/_.") or self.groups[group][0].backend)
            names[group] = unique(wanted if is_glob(group) else alias_name(group), names.values())
        return names

    def build(self) -> None:
        strategy = text_of(self.source.section("router_settings").get("routing_strategy"))
        balance = _BALANCE.get(strategy or "")
        for group, members in self.groups.items():
            entry = DraftEntry({"use": short_steps(self._chain(group))})
            if is_glob(group):
                entry.keys["also"] = [group]
                entry.origins[group] = (*members[0].path, "model_name")
            elif self.names[group] != group:
                self.notes.changed(
                    members[0].path, f"an alias cannot be called '{group}'", f"it is {self.names[group]}"
                )
            if balance is not None and any(len(s) > 1 for s in self._steps(group)):
                entry.keys["balance"] = balance
            if params := self._params(members):
                entry.keys["params"] = params
            self.draft.aliases[self.names[group]] = entry
        self._join_globs()
        self._further_names()

    # -- steps ----------------------------------------------------------------------------------------------------

    def _steps(self, group: str) -> Steps:
        """The group's own backends: one step for each `order`."""
        members = self.groups[group]
        steps = []
        for order in sorted({one.order for one in members}):
            steps.append(list(dict.fromkeys(one.backend for one in members if one.order == order)))
        return steps

    def _chain(self, group: str) -> Steps:
        """The group's steps and those of its fallbacks. A backend is listed once; one that serves other requests than
        the first, or embeds with another model, is left out: with a note unless it is a fallback of every group."""
        own, declared = self._steps(group), self._declared_fallbacks(group)
        meant = own + [step for other in declared for step in self._steps(other)]
        general = [] if declared else [step for other in self._default_fallbacks(group) for step in self._steps(other)]
        seen: set[str] = set()
        chain: Steps = []
        for i, step in enumerate(meant + general):
            fresh = [name for name in step if name not in seen]
            seen.update(fresh)
            misfits = {name: why for name in fresh if (why := self._misfit(name, own[0][0])) is not None}
            for name, why in misfits.items() if i < len(meant) else ():
                path = next((one.path for one in self.groups[group] if one.backend == name), self.groups[group][0].path)
                message = f"alias '{self.names[group]}' has no step on '{name}': {why}"
                self.notes.changed(path, message, "write an alias of its own for it")
            fitting = [name for name in fresh if name not in misfits]
            chain += [fitting] if fitting else []
        if any(self._is_cloud(name) for step in chain[1:] for name in step) and not self._is_cloud(chain[0][0]):
            path = self.groups[group][0].path
            message = f"alias '{self.names[group]}' goes to its cloud only when everything before is down"
            self.notes.changed(path, message, "more: cloud_when: [down, too_long, incapable, busy]")
        return chain

    def _is_cloud(self, backend: str) -> bool:
        keys = self.draft.backends[backend].keys
        return bool(keys.get("cloud")) or keys.get("engine") == "litellm"

    def _misfit(self, backend: str, first: str) -> str | None:
        """Why the backend may not stand in a chain that begins with `first`; None if it may."""
        mine, its = self.draft.backends[backend].keys, self.draft.backends[first].keys
        serves, wanted = set(mine.get("serves", ())), set(its.get("serves", ()))
        if serves.isdisjoint(wanted) and (serves or wanted):
            return f"it serves {_words(serves)}, and '{first}' {_words(wanted)}"
        if "embeddings" in serves & wanted and mine.get("model") != its.get("model"):
            return f"it embeds with another model than '{first}', and their vectors cannot be compared"
        return None

    def _declared_fallbacks(self, group: str) -> list[str]:
        """The fallback groups in order: those declared for the group, else for `*`."""
        found: list[str] = []
        for section in ("litellm_settings", "router_settings"):
            settings = self.source.section(section)
            for key in _FALLBACK_KEYS[:2]:
                tables = list(enumerate(listed(settings.get(key))))
                named = [(i, mapping(table)[group]) for i, table in tables if group in mapping(table)]
                named = named or [(i, mapping(table)["*"]) for i, table in tables if "*" in mapping(table)]
                for i, groups in named:
                    found += self._known(groups, (section, key, i))
                if named and key == "context_window_fallbacks":
                    hint = "a step with a larger window gets what does not fit; the order is yours to change"
                    self.notes.changed(
                        (section, key), "these are steps like others, also used when a backend is down", hint
                    )
        return [name for name in dict.fromkeys(found) if name != group]

    def _default_fallbacks(self, group: str) -> list[str]:
        found: list[str] = []
        for section in ("litellm_settings", "router_settings"):
            path: Path = (section, "default_fallbacks")
            found += self._known(self.source.section(section).get("default_fallbacks"), path)
        return [name for name in dict.fromkeys(found) if name != group]

    def _known(self, groups: Any, path: Path) -> list[str]:
        aliases = mapping(self.source.section("router_settings").get("model_group_alias"))
        found = []
        for name in listed(groups):
            given = _model_of(name) or ""
            if isinstance(name, dict) and len(name) > 1:
                self.notes.left_out(path, "a fallback cannot change the request", "write an alias with params for it")
            target = _model_of(aliases.get(given)) or given
            if target in self.groups:
                found.append(target)
            elif given:
                self.notes.left_out(path, f"'{given}' is not among the models that were imported")
        return found

    # -- the rest of an alias -------------------------------------------------------------------------------------

    def _params(self, members: list[Deployment]) -> dict[str, Any]:
        """The parameters that all deployments of the group share: aliases have parameters, backends have none."""
        first, *others = members
        agreed = {key: value for key, value in first.params.items() if all(o.params.get(key) == value for o in others)}
        for one in members:
            for key in one.params:
                if key not in agreed:
                    message = "not all deployments of this name say the same"
                    hint = "parameters belong to an alias: write them under its params"
                    self.notes.left_out((*one.path, "litellm_params", key), message, hint)
        return agreed

    def _join_globs(self) -> None:
        """A glob with the same target as another alias becomes a further name of that alias."""
        aliases = self.draft.aliases
        for group in [group for group in self.groups if is_glob(group)]:
            mine = aliases[self.names[group]]
            same = (n for n, e in aliases.items() if n != self.names[group] and _without_also(e) == _without_also(mine))
            if (target := next(same, None)) is not None:
                aliases[target].keys.setdefault("also", []).extend(mine.keys["also"])
                aliases[target].origins |= mine.origins
                del aliases[self.names[group]]
                self.names[group] = target

    def _further_names(self) -> None:
        path: Path = ("router_settings", "model_group_alias")
        for name, value in mapping(self.source.section("router_settings").get("model_group_alias")).items():
            target = _model_of(value)
            if target not in self.groups:
                self.notes.left_out((*path, name), f"'{target}' is not among the models that were imported")
            elif name in self.groups or name in self.draft.aliases:
                message = f"'{name}' is also a model_name, which wins here"
                self.notes.changed((*path, name), message, f"delete the alias '{name}' if '{target}' is meant")
            else:
                entry = self.draft.aliases[self.names[target]]
                entry.keys.setdefault("also", []).append(name)
                entry.origins[name] = (*path, name)


def _model_of(value: Any) -> str | None:
    """A name, or a mapping's `model`."""
    return text_of(value) or text_of(mapping(value).get("model"))


def _words(serves: set[str]) -> str:
    return ", ".join(sorted(serves)) or "chat"


def _without_also(entry: DraftEntry) -> dict[str, Any]:
    return {key: value for key, value in entry.keys.items() if key != "also"}


# -- the server -------------------------------------------------------------------------------------------------------


def _general(source: SourceFile, notes: Notes, keys: Secrets, draft: Draft) -> None:
    general = source.section("general_settings")
    path: Path = ("general_settings", "master_key")
    master = text_of(general.get("master_key"))
    if master is not None and not is_true(general.get("disable_key_check")):
        key = "${" + _MASTER + "}" if is_no_key(master) else keys.key(master, path, _MASTER)
        draft.clients["master"] = DraftEntry(
            {"key": key, "admin": True}, remarks={"admin": "may drain, resume, probe and reload"}
        )
        message = "keys that LiteLLM has given out are in its database, not in this file"
        hint = 'write each as a client, key: "sha256:<64 hex digits>": its database keeps exactly that of a key'
        notes.to_do(path, message, hint)
    if (megabytes := count_of(general.get("max_request_size_mb"))) is not None:
        draft.server["max_body"] = f"{megabytes}MiB"


def _note_settings(source: SourceFile, notes: Notes) -> None:
    for name in ("router_settings", "litellm_settings", "general_settings"):
        note_unread(notes, (name,), source.section(name), "litellm", name)
    _note_strategy(source, notes)
    for name in mapping(source.data.get("environment_variables")):
        where = f"put {name}=... into .env, where routes.yaml needs it"
        notes.to_do(("environment_variables", name), "variables are not taken over", where)
    if source.data.get("include") is not None:
        notes.to_do(("include",), "other files are not read", "join them to one and import that")
    note_unread(notes, (), source.data, "litellm", "top")


def _note_strategy(source: SourceFile, notes: Notes) -> None:
    strategy = text_of(source.section("router_settings").get("routing_strategy"))
    path: Path = ("router_settings", "routing_strategy")
    if strategy is None or strategy == "least-busy":
        return
    if strategy == "simple-shuffle":
        notes.changed(path, "sessions stay where their prefix is cached", "see aliases.*.balance")
    elif strategy in _BALANCE:
        notes.changed(path, f"'{strategy}' is least_busy here: the backend with the most room is taken")
    else:
        notes.left_out(path, f"'{strategy}' has no counterpart here", "see aliases.*.balance")
