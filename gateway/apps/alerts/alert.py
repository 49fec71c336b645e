"""An alert, and what alerts follow: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gateway.routing.alias_status import AliasView, BackendView
from gateway.shortage import Kind as Shortage

Kind = Literal[
    "backend_down", "backend_misconfigured", "backend_back", "alias_fallback", "alias_cloud", "alias_nothing",
    "alias_back", "drift", "draft_acceptance", "draft_acceptance_back", "budget", "invalid_edit", "valid_edit",
    "start_failed", "start_works", "engine_restarted", "internal_failure", "shortage", "shortage_over", "test",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Alert:
    """`name`: the backend, alias, budget, part of the gateway, resource or file. `good`: trouble is over. `at`:
    seconds of the caller's clock. `do`: the command that helps; "" = none is known. `cause`: what the alerts of one
    cause have in common, a host or backend; "" = none. `view`: the backend or alias as it was then. `host`: the
    backend's, and how many backends should run there. `took`: seconds that the trouble has lasted; None = it is
    new. `served`: who served an alias meanwhile, and for how much, in words. `usd`: what an alias that is on a
    cloud has cost so far. `still_out`: backends of the same cause that are not back."""

    kind: Kind
    name: str
    text: str
    at: float
    good: bool = False
    do: str = ""
    cause: str = ""
    view: BackendView | AliasView | None = None
    host: tuple[str, int] = ("", 0)
    took: float | None = None
    served: str = ""
    usd: float = 0.0
    still_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetPicture:
    """Everything that alerts follow. `budgets`: name -> share that is spent, 1 = all of it. `refused_edit`: the
    mistakes of the present routes.yaml; None if it is in force. `failed`: part of the gateway -> number of
    failures. `short`: resources that the gateway process has lately lacked. `acceptance`: backend -> share of its
    draft tokens that were accepted lately, only of those that draft; `acceptance_least`: the share below which that
    is trouble. `unstarted`: backend that could not be started for a request -> why. `recovered`: backend that hangs
    -> its last restart by the gateway, in words."""

    backends: tuple[BackendView, ...] = ()
    aliases: tuple[AliasView, ...] = ()
    budgets: Mapping[str, float] = field(default_factory=dict)
    refused_edit: str | None = None
    failed: Mapping[str, int] = field(default_factory=dict)
    short: tuple[Shortage, ...] = ()
    acceptance: Mapping[str, float] = field(default_factory=dict)
    acceptance_least: float = 0.0
    unstarted: Mapping[str, str] = field(default_factory=dict)
    recovered: Mapping[str, str] = field(default_factory=dict)
    hosts: Mapping[str, str] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)
    before: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    mends: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    usd: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. `down_for`: how long a backend must be out to be alerted as down. `settle`: how long any other
    trouble must last; also how long a cause is waited with while more backends fall. `cloud_again`,
    `nothing_again`: until an alias is alerted again. `drift_quiet`: a difference that was not seen for so long is
    alerted when it comes back. `rejected_for`: how long a backend's drafts must be rejected. `failed_again`:
    between two alerts of a part that keeps failing."""

    down_for: float = 60.0
    settle: float = 10.0
    cloud_again: float = 3600.0
    nothing_again: float = 900.0
    drift_quiet: float = 6 * 3600.0
    rejected_for: float = 600.0
    failed_again: float = 3600.0


def duration_text(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
