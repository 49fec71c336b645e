"""The order of the members of one step that can serve: by health, free slots, and the step's `balance`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b

from gateway.config.snapshot import Balance
from gateway.domain.backend import BackendState
from gateway.domain.health_state import SUSPECT
from gateway.routing.placements import Session

STAY_TIMES, STAY_SECONDS = 2.0, 0.25  # a session moves when its own backend takes longer than so many times, and more
IDLE_TIMES = 3.0  # a backend is idle beside one that was asked so many times as often lately, for what each can do
SPARED = 0.75  # part of what a move computes that does not count then: later turns gain by it
RATE_PRIOR = 2000.0  # prompt tokens per second where no backend has shown any
SEAT = 0.02  # seconds by which each sequence that runs delays a first token
RECENT = 0.3  # part of what was computed lately that counts for a new session
EQUAL = 0.02  # seconds that make no difference


def order(
    members: Sequence[BackendState], balance: Balance, turn: int, session: Callable[[], Session], now: float = 0.0
) -> Sequence[BackendState]:
    """Best first. `turn` counts this alias' requests; `session` gives it, and is only called when there is a
    choice to make."""
    if len(members) < 2:
        return members
    if balance == "affinity":
        ordered = _by_affinity(members, session(), now)
    else:
        ordered = [members[(turn + i) % len(members)] for i in range(len(members))]
        if balance == "least_busy":
            ordered.sort(key=lambda m: m.under_way)
    for member in members:
        if not _only_balanced(member):
            break
    else:
        return ordered
    # Stable: health first (one that is due for a trial gets this request), then one whose model is loaded, then a free
    # slot, then the balancing above.
    ordered.sort(key=lambda m: (_doubt(m, now), m.reported.loaded is False, m.under_way >= m.slots))
    return ordered


def best(
    members: Sequence[BackendState], balance: Balance, turn: int, session: Callable[[], Session], now: float
) -> BackendState:
    """The first of `order`."""
    if balance == "affinity" and len(members) > 1 and (home := _sure_home(members, session())) is not None:
        return home
    return order(members, balance, turn, session, now)[0]


def _sure_home(members: Sequence[BackendState], session: Session) -> BackendState | None:
    """The session's own backend, where no other one can be better: its answer begins sooner than a move has to gain
    (`_home_or_better`: every other price is at least STAY_SECONDS). None: the members have to be compared."""
    if session.home is None or session.yields:
        return None
    home = None
    for member in members:
        if member.health.state is SUSPECT:  # one that is due for a trial comes first
            return None
        if member.name == session.home:
            home = member
    if home is None or not _only_balanced(home):
        return None
    usual = home.prefill.rate or usual_rate([m.prefill.rate for m in members])
    return home if seconds_until_answer(home, session, usual) <= STAY_SECONDS else None


def _only_balanced(member: BackendState) -> bool:
    """Does nothing but the balancing decide its place?"""
    return (
        member.health.state is not SUSPECT
        and member.reported.loaded is not False
        and (member.under_way if member.siblings else member.inflight + member.shared.elsewhere) < member.slots
    )


def _doubt(member: BackendState, now: float) -> int:
    if member.health.state is not SUSPECT:
        return 1
    return 0 if member.health.due(now) else 2


def _by_affinity(members: Sequence[BackendState], session: Session, now: float) -> list[BackendState]:
    """The backend of the session first, unless another one is clearly better, although it has to compute more of the
    prompt. A new session begins where that takes the least time, what was computed lately counting too. Among equals,
    and where nothing is known, rendezvous hashing over names decides, which is the same at every gateway."""
    ordered = _by_name(members, session.key)
    usual = usual_rate([m.prefill.rate for m in members])
    costs = {m.name: seconds_until_answer(m, session, usual) for m in members}
    home = next((m for m in ordered if m.name == session.home), None)
    if home is not None and not session.yields:
        home = _home_or_better(home, ordered, session, costs, usual, now)
        ordered.sort(key=lambda m: (m is not home, costs[m.name]))
        return ordered
    for m in members:
        costs[m.name] += RECENT * _lately(m, usual, now)
    if session.yields:
        ordered.sort(key=lambda m: (_cache_used(m), costs[m.name]))
        return ordered
    first = next(m for m in ordered if costs[m.name] <= min(costs.values()) + EQUAL)
    ordered.sort(key=lambda m: (m is not first, costs[m.name]))
    return ordered


def _home_or_better(
    home: BackendState,
    ordered: Sequence[BackendState],
    session: Session,
    costs: Mapping[str, float],
    usual: float,
    now: float,
) -> BackendState:
    """Where another backend was seldom asked while this one was busy, and prompts wait here now, a move is worth more
    than this turn. Requests count, not their tokens: the first sessions that move bring whole prompts, and the other
    backend would seem as busy after a few of them."""

    def asked(m: BackendState) -> float:
        return m.prefill.prompts(now) / (m.prefill.rate or usual)

    busy = asked(home) if home.prefill.tokens else 0.0

    def price(m: BackendState) -> float:
        if m is home:
            return costs[m.name]
        if IDLE_TIMES * asked(m) < busy:
            return costs[m.name] + STAY_SECONDS - SPARED * missing_tokens(m, session) / (m.prefill.rate or usual)
        return STAY_TIMES * costs[m.name] + STAY_SECONDS

    return min((home, *ordered), key=price)


def _lately(member: BackendState, usual: float, now: float) -> float:
    """Seconds in which it has computed prompts lately."""
    return member.prefill.lately(now) / (member.prefill.rate or usual)


def _cache_used(member: BackendState) -> int:
    """Steps of a twentieth of its KV cache that are in use; 0 where it does not tell."""
    last = member.progress.last
    return 0 if last is None else round(last.kv * 20)


def usual_rate(known: Sequence[float | None]) -> float:
    """Prompt tokens per second of a backend that has not shown its own yet: the mean of the others."""
    rates = [rate for rate in known if rate is not None]
    return sum(rates) / len(rates) if rates else RATE_PRIOR


def seconds_until_answer(member: BackendState, session: Session, usual: float) -> float:
    """The expected time to the first token: the prompts that are computed there already, what is not cached of this
    one, and the sequences that take their part of each step."""
    missing = missing_tokens(member, session)
    running = member.under_way + member.foreign
    return (member.prefill.tokens + missing) / (member.prefill.rate or usual) + running * SEAT


def missing_tokens(member: BackendState, session: Session) -> int:
    """Tokens of the prompt that this backend probably has to compute."""
    return member.ratio.probably(max(0, session.size - session.cached.get(member.name, 0)))


def _by_name(members: Sequence[BackendState], key: bytes) -> list[BackendState]:
    begun = blake2b(key, digest_size=8)  # the key may be long: it is hashed once for all members

    def score(member: BackendState) -> bytes:
        hashed = begun.copy()
        hashed.update(member.name.encode())
        return hashed.digest()

    return sorted(members, key=score, reverse=True)
