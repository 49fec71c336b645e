"""What each field and item of the three chat APIs is (fields.toml): a demand, a form or a preference.

A demand (tools, a schema, a picture, a window) is routed, adapted or refused. A form (a role, a name, an item's type)
is translated to what the server reads, and back. A preference (effort, cache key, tier) is mapped to what the server
knows, or left out: it never costs an answer. Types of tools and items that are not there are new: what is offered is
left out, and the client told so; what stands in the history becomes text.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

_DATA = tomllib.loads(Path(__file__).with_name("fields.toml").read_text(encoding="utf-8"))
TABLES: Mapping[str, Mapping[str, str]] = {
    where: {name: kind for kind, names in kinds.items() for name in names.split()} for where, kinds in _DATA.items()
}
"""Where it stands -> name -> "demand", "form" or "preference"."""
CHAT_PREFERENCES = frozenset(name for name, kind in TABLES["chat"].items() if kind == "preference")
