"""Which server speaks OpenAI's API, and behind which front end its engine is, by what it shows of itself: the signs in
the rows of traits. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gateway.domain.engine_traits import FRONT_ENDS, TRAITS, EngineTraits, Signs

OWNERS_MOST = 100  # entries of a model list that are looked at


def recognise(owners: Collection[str], headers: Mapping[str, str], answers: Mapping[str, Any]) -> str | None:
    """The name of the row whose signs are all there; None = no row's are. `owners`: `owned_by` of the entries of its
    model list; `headers`: of that answer, with names in lower case; `answers`: path of a sign -> its decoded answer,
    where that was a 200."""
    for name, signs in _signs():
        if _seen_in_list(signs, owners, headers) and (signs.path is None or _has(answers.get(signs.path), signs.keys)):
            return name
    return None


def paths_to_look(owners: Collection[str], headers: Mapping[str, str]) -> list[str]:
    """The paths whose answers can still tell which server it is, where its model list alone does not; each once."""
    open_signs = [signs for _, signs in _signs() if _seen_in_list(signs, owners, headers)]
    return list(dict.fromkeys(signs.path for signs in open_signs if signs.path is not None))


def owners_of(model_list: Any) -> frozenset[str]:
    """`owned_by` of the entries of a decoded model list, which is untrusted."""
    cards = model_list.get("data") if isinstance(model_list, dict) else None
    found = cards[:OWNERS_MOST] if isinstance(cards, list) else []
    owners = (card.get("owned_by") for card in found if isinstance(card, dict))
    return frozenset(owner for owner in owners if isinstance(owner, str))


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


def value_at(answer: Any, path: str) -> Any:
    """The value at a path as the traits write it ("a.b" = `b` inside `a`); None = there is none."""
    for key in path.split("."):
        answer = answer.get(key) if isinstance(answer, dict) else None
    return answer


def _signs() -> list[tuple[str, Signs]]:
    return [(name, traits.signs) for name, traits in TRAITS.items() if traits.signs is not None]


def _seen_in_list(signs: Signs, owners: Collection[str], headers: Mapping[str, str]) -> bool:
    if signs.owned_by and not any(owner in owners for owner in signs.owned_by):
        return False
    return signs.header is None or headers.get(signs.header[0], "").startswith(signs.header[1])


def _has(answer: Any, keys: tuple[str, ...]) -> bool:
    return isinstance(answer, dict) and all(value_at(answer, key) is not None for key in keys)
