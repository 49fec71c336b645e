"""The health machine alone, in the states that tests begin with."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings

from gateway.config.snapshot import HealthSettings
from gateway.domain.health_machine import Health
from gateway.domain.health_state import State, Transition

unhurried = settings(deadline=None)  # the machine may be busy

SETTINGS = HealthSettings(every=5.0, fail_after=3, recover_after=2, start_grace=900.0)
NEVER_PROBED = HealthSettings(every=None, fail_after=3, recover_after=2)


def ready(settings: HealthSettings = SETTINGS, *, on_demand: bool = False) -> Health:
    health = Health("a", settings, on_demand)
    health.alive(0.0)
    assert state(health) is State.READY
    return health


def state(health: Health) -> State:
    """`health.state`, of which the type checker assumes that no call changes it."""
    return health.state


def down_by_requests(settings: HealthSettings = SETTINGS) -> Health:
    health = ready(settings)
    for _ in range(settings.fail_after):
        health.failed("500", 1.0)
    assert state(health) is State.DOWN
    return health


def canaried(settings: HealthSettings = SETTINGS) -> Health:
    health = ready(settings)
    health.canaried = True
    return health


EVENTS: dict[str, Callable[[Health, float], Transition | None]] = {
    "alive": lambda h, t: h.alive(t),
    "dead": lambda h, t: h.dead("refused", t),
    "succeeded": lambda h, t: h.succeeded(t),
    "failed": lambda h, t: h.failed("500", t),
    "disputed": lambda h, t: h.failed("500", t, disputed=True),
    "unanswered": lambda h, t: h.unanswered("500 again", t),
    "cleared": lambda h, t: h.cleared(t),
    "misconfigured": lambda h, t: h.misconfigured("401", t),
    "configured": lambda h, t: h.configured(t),
    "gone": lambda h, t: h.dead("refused", t, refused=True),
    "ill": lambda h, t: h.dead("503", t, answered=True),
    "stalled": lambda h, t: h.stalled("stood still", t),
    "full": lambda h, t: h.load(True, t),
    "free": lambda h, t: h.load(False, t),
    "proved": lambda h, t: h.proved(t),
    "disproved": lambda h, t: h.disproved("silence", t),
    "doubted": lambda h, t: h.doubted("garbage", t),
}
OPERATOR: dict[str, Callable[[Health, float], Transition | None]] = {
    "drain": lambda h, t: h.drain(t),
    "resume": lambda h, t: h.resume(t),
}
UNLESS_TOLD = (State.DOWN, State.SUSPECT, State.MISCONFIGURED)  # not left for ready by good checks alone
