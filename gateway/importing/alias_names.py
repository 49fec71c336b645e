"""Further names of aliases: no two aliases may claim one, and not every word can be one."""

from __future__ import annotations

from gateway.config.names import is_further_name
from gateway.importing.draft import Draft, Notes


def settle_further_names(draft: Draft, notes: Notes) -> None:
    """Leave out (with a note) what cannot be a further name, or is the name of another alias already."""
    claimed = {name: name for name in draft.aliases}
    for name, entry in draft.aliases.items():
        kept = []
        for word in entry.keys.get("also", ()):
            if not is_further_name(word):
                notes.left_out((), f"'{word}' cannot be a further name of alias '{name}'", "no spaces or quotes")
            elif (owner := claimed.setdefault(word, name)) != name:
                notes.left_out((), f"'{word}' is alias '{owner}' already, and no further name of '{name}'")
            elif word != name and word not in kept:
                kept.append(word)
        if kept:
            entry.keys["also"] = kept
        else:
            entry.keys.pop("also", None)
