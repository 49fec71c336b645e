"""Events that the page, `/events` and alerts show: what happened to backends and to routes.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KEPT = 1000  # events that are kept


@dataclass(frozen=True, slots=True)
class Event:
    """`at`: Unix seconds. `kind` state: `before` and `after` are values of `State`, `reason` the evidence. `kind`
    drift: the backend differs from what routes.yaml declares; `reason` says how, empty = it no longer does. `kind`
    config: routes.yaml was read again; `after` is "taken" or "refused", `reason` what changed or what is wrong. `kind`
    shared: this gateway joined the others or continues without them; `backend` is empty. `kind` mode: another mode is
    in force; `before` and `after` are names of modes ("" = routes.yaml has none), `backend` is empty. `kind` operation:
    a step of a switch, a start or a stop, or with an empty `backend` the whole of it; `after` is how far it is,
    `reason` what."""

    at: float
    kind: Literal["state", "drift", "config", "shared", "mode", "operation"]
    backend: str
    reason: str
    before: str = ""
    after: str = ""
