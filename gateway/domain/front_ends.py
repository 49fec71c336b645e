"""The API servers that one engine can be started behind, as data: one row per front end.

vLLM brings two. `VLLM_USE_RUST_FRONTEND=1` puts `vllm-rs` before the engine instead of the Python server: the model
and its speed stay, but what is served, refused and reported is another server's. What differs from the engine's row of
traits is here; the front end in force is `BackendState.reported.front_end`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from gateway.domain.engine_traits import TRAITS, EngineTraits


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """One front end of an engine. `owned_by`: of the entries of its model list. `version_key`: a key that only its
    answer about its version has; None = it has none of its own. `traits`: the engine's row, as this front end serves
    it."""

    owned_by: str
    version_key: str | None
    traits: EngineTraits


_VLLM = TRAITS["vllm"]

# Server (a row of TRAITS) -> name of the front end -> its row. Not listed: the server has one front end.
FRONT_ENDS: Mapping[str, Mapping[str, FrontEnd]] = MappingProxyType(
    {
        "vllm": MappingProxyType(
            {
                # vllm-rs 0.33.0, seen running.
                "rust": FrontEnd(
                    "vllm-frontend-rs",
                    "rust_frontend_version",
                    replace(
                        _VLLM,
                        endpoints=frozenset({"chat", "completions"}),
                        many_choices=False,
                        list_prompts=False,
                        token_prompts=True,
                        responses=None,
                        leaves_calls_unread=True,
                        silent_parsers=frozenset({"mistral"}),
                        always_answers=True,
                    ),
                ),
                "python": FrontEnd("vllm", None, _VLLM),
            }
        )
    }
)


def front_end_of(server: str, owners: Collection[str], version: Any) -> str | None:
    """The front end that a server shows; None = not known, or it has only one. `owners`: `owned_by` of the entries of
    its model list; `version`: its decoded answer about its version, which is untrusted."""
    told = version if isinstance(version, dict) else {}
    for name, row in FRONT_ENDS.get(server, {}).items():
        if row.owned_by in owners or (row.version_key is not None and isinstance(told.get(row.version_key), str)):
            return name
    return None


def row_of(server: str, front_end: str | None) -> EngineTraits:
    """The row of a server behind a front end; None = which one is not known."""
    found = FRONT_ENDS.get(server, {}).get(front_end or "")
    return TRAITS[server] if found is None else found.traits
