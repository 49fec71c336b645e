"""The agents of a measurement, and the replicas before which they stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType

from bench.agents.hashing import by_hash

AGENTS, TURNS = 48, 12
SHARED, NEW, ANSWER = 6000, 1500, 24  # tokens: of the system prompt of all, of each turn, of each answer
THINKS = 0.2  # seconds between an answer and the next turn
CACHE = 486_000  # tokens of one replica
PREFILL, DECODE, CROWDING = 40_000.0, 400.0, 0.011  # tokens per second; part of a step that each further stream adds
DIES, RETURNS = 3.0, 8.0  # seconds after the beginning


@dataclass(frozen=True)
class Agent:
    """One conversation of an agent. `words`: of its texts. `begun`: how many turns of `parent` it has had already."""

    name: str
    turns: int
    new: int = NEW
    parent: str | None = None
    begun: int = 0


@dataclass(frozen=True)
class Scenario:
    """`speeds`: of the replicas, as parts of the usual. `ids`: do the agents send a session's id? `dies`: the first
    replica does, and comes back later with an empty cache. `branches`: turns after which each agent has two sub-agents
    go on from there."""

    name: str
    speeds: Sequence[float]
    ids: bool = True
    skewed: bool = False
    dies: bool = False
    branches: Sequence[int] = ()

    def agents(self, seed: int, agents: int = AGENTS, turns: int = TURNS) -> list[Agent]:
        """The agents of one run."""
        draw, count = Random(seed), len(self.speeds)
        made: list[Agent] = []
        while len(made) < agents:
            name = f"{draw.getrandbits(64):016x}"
            if self.skewed and (by_hash(name, count)[0] == 0) != (len(made) % 4 < 3):
                continue  # three of four belong to the first replica
            made.append(Agent(name, turns))
        return made


def _sized(replicas: int) -> list[Scenario]:
    equal = Scenario(f"equal-{replicas}", [1.0] * replicas)
    return [
        equal,
        replace(equal, name=f"skewed-{replicas}", skewed=True),
        replace(equal, name=f"slow-{replicas}", speeds=[0.5, *[1.0] * (replicas - 1)]),
        replace(equal, name=f"dying-{replicas}", dies=True),
        replace(equal, name=f"no-ids-{replicas}", ids=False),
        replace(equal, name=f"branching-{replicas}", branches=(4, 8)),
    ]


SCENARIOS: Mapping[str, Scenario] = MappingProxyType({s.name: s for n in (2, 4) for s in _sized(n)})
