"""Decides which alerts are sent when: a state machine, with time passed in and no effects.

Alerts follow state, not traffic. Trouble is alerted once when it has lasted, and once when it is over. Backends that
are out and the aliases that they take with them are in incidents.py; the rest is here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gateway.apps.alerts.alert import Alert, FleetPicture, Timing, duration_text
from gateway.apps.alerts.incidents import Incidents
from gateway.domain.health_state import WELL
from gateway.routing.alias_status import BackendView
from gateway.shortage import WORDS
from gateway.shortage import Kind as Shortage

THRESHOLDS = (1.0, 0.8)  # shares of a budget that are alerted, the largest first


class AlertState(Incidents):
    """The alerts of one gateway so far; call `step` at every check."""

    def __init__(self, timing: Timing | None = None) -> None:
        super().__init__(timing or Timing())
        self._drift: dict[tuple[str, str], float] = {}  # (backend, key of routes.yaml) -> when it was last seen
        self._drafts: dict[str, tuple[float, bool]] = {}  # backend whose drafts are rejected -> since when, if alerted
        self._budgets: dict[str, float] = {}  # name -> the threshold that was alerted
        self._refused: str | None = None
        self._failed: dict[str, tuple[int, float]] = {}  # part of the gateway -> failures at its last alert, and when
        self._short: set[Shortage] = set()
        self._unstarted: set[str] = set()  # backends
        self._recovered: Mapping[str, str] = {}

    def step(self, now: float, picture: FleetPicture) -> list[Alert]:
        """The alerts that are due at `now` (monotonic seconds), each of them once. A trouble of a backend or alias that
        is no longer in the picture is forgotten without an alert."""
        names = {view.name for view in picture.backends}
        self._drift = {key: seen for key, seen in self._drift.items() if key[0] in names}
        self._drafts = {name: since for name, since in self._drafts.items() if name in names}
        found = super().step(now, picture)
        for backend in picture.backends:
            found += self._differences(backend, now)
            found += self._drafting(backend.name, picture, now)
        found += self._budget(picture, now)
        found += self._edit(picture.refused_edit, now)
        found += self._failures(picture, now)
        found += self._shortages(picture, now)
        found += self._starts(picture, now)
        news = [(name, text) for name, text in picture.recovered.items() if self._recovered.get(name) != text]
        found += [Alert("engine_restarted", name, text, now, do=f"gateway fleet logs {name}") for name, text in news]
        self._recovered = dict(picture.recovered)
        return found

    # -- backends -------------------------------------------------------------------------------------------------

    def _differences(self, view: BackendView, now: float) -> Iterator[Alert]:
        """One alert for each key of routes.yaml: the text behind the key changes with every answer of the model."""
        for line in view.drift:
            key = (view.name, line.partition(":")[0])
            if key not in self._drift:
                yield Alert("drift", view.name, f"{view.name} is not what routes.yaml says: {line}", now)
            self._drift[key] = now
        if view.state not in WELL:  # its observations are dropped meanwhile, which proves nothing
            for key in [key for key in self._drift if key[0] == view.name]:
                self._drift[key] = now
        over = [k for k, seen in self._drift.items() if k[0] == view.name and now - seen >= self.timing.drift_quiet]
        for key in over:
            del self._drift[key]

    def _drafting(self, name: str, picture: FleetPicture, now: float) -> Iterator[Alert]:
        """A backend that does not draft proves nothing: an alert stays, a trouble not yet alerted starts over."""
        share = picture.acceptance.get(name)
        since, alerted = self._drafts.get(name, (now, False))
        lasted = duration_text(now - since)
        if share is not None and share < picture.acceptance_least:
            due = not alerted and now - since >= self.timing.rejected_for
            self._drafts[name] = since, alerted or due
            if due:
                text = f"{name} accepts only {share:.0%} of its draft tokens, for {lasted}: its"
                yield Alert("draft_acceptance", name, f"{text} speculative decoding may cost more than it gives", now)
        elif share is not None or not alerted:
            self._drafts.pop(name, None)
            if alerted:
                text = f"{name} accepts {share:.0%} of its draft tokens again, after {lasted}"
                yield Alert("draft_acceptance_back", name, text, now, good=True)

    # -- the rest -------------------------------------------------------------------------------------------------

    def _budget(self, picture: FleetPicture, now: float) -> Iterator[Alert]:
        for name, share in picture.budgets.items():
            reached = next((threshold for threshold in THRESHOLDS if share >= threshold), 0.0)
            if reached > self._budgets.get(name, 0.0):
                rest = "; nothing more is spent until the next period" if reached >= 1 else ""
                yield Alert("budget", name, f"{name} has used {reached:.0%} of its budget{rest}", now)
            self._budgets[name] = reached  # less than before: a new period has begun

    def _edit(self, problem: str | None, now: float) -> Iterator[Alert]:
        if problem == self._refused:
            return
        before, self._refused = self._refused, problem
        if problem is not None:
            text = f"routes.yaml was edited and is not valid; what was before stays in force: {problem}"
            yield Alert("invalid_edit", "routes.yaml", text, now)
        elif before is not None:
            yield Alert("valid_edit", "routes.yaml", "routes.yaml is valid again, and in force", now, good=True)

    def _failures(self, picture: FleetPicture, now: float) -> Iterator[Alert]:
        for part, count in picture.failed.items():
            before, at = self._failed.get(part, (0, float("-inf")))
            if count > before and now - at >= self.timing.failed_again:
                self._failed[part] = count, now
                times = "" if count - before == 1 else f" {count - before} times"
                text = f"a part of the gateway itself has failed{times} ({part}); it goes on, its log says why"
                yield Alert("internal_failure", part, text, now)

    def _shortages(self, picture: FleetPicture, now: float) -> Iterator[Alert]:
        for kind in picture.short:
            if kind not in self._short:
                text = f"the gateway itself is short of {WORDS[kind]}; requests fail because of it"
                yield Alert("shortage", kind, text, now)
        for kind in sorted(self._short.difference(picture.short)):
            yield Alert("shortage_over", kind, f"the gateway has enough {kind} again", now, good=True)
        self._short = set(picture.short)

    def _starts(self, picture: FleetPicture, now: float) -> Iterator[Alert]:
        for name, why in picture.unstarted.items():
            if name not in self._unstarted:
                text = f"{name} could not be started for a request: {why}"
                yield Alert("start_failed", name, text, now)
        for name in sorted(
            self._unstarted.difference(picture.unstarted).intersection(view.name for view in picture.backends)
        ):
            yield Alert("start_works", name, f"{name} can be started for requests again", now, good=True)
        self._unstarted = set(picture.unstarted)
