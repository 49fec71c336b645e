"""How far two judges agree: Cohen's kappa, plain and weighted, and where their scores lie. Pure.

Cohen (1960), "A coefficient of agreement for nominal scales"; Cohen (1968) for the weighted form, here with the squares
of the distances as weights, so that 1 against 5 counts sixteen times as much as 1 against 2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of two judges, over the lines that both have scored. `same`: the share with equal scores. `kappa`, `weighted`:
    1 = always alike, 0 = as by chance, None if not defined (no line, or both gave one and the same score to all).
    `difference`: the mean of the second's scores less the first's."""

    first: str
    second: str
    lines: int
    same: float | None
    kappa: float | None
    weighted: float | None
    difference: float | None

    def as_json(self) -> dict[str, Any]:
        return {
            "judges": [self.first, self.second],
            "lines": self.lines,
            "same": self.same,
            "kappa": self.kappa,
            "weighted_kappa": self.weighted,
            "mean_difference": self.difference,
        }


def agreement(first: str, second: str, pairs: Sequence[tuple[float, float]]) -> Agreement:
    """`pairs`: the scores of both for each line that both have scored."""
    if not pairs:
        return Agreement(first, second, 0, None, None, None, None)
    same = sum(a == b for a, b in pairs) / len(pairs)
    difference = sum(b - a for a, b in pairs) / len(pairs)
    return Agreement(first, second, len(pairs), same, kappa(pairs), kappa(pairs, weighted=True), difference)


def kappa(pairs: Sequence[tuple[float, float]], *, weighted: bool = False) -> float | None:
    """Cohen's kappa; `weighted` by squared distance. None where chance alone would give full agreement."""
    count = len(pairs)
    if not count:
        return None
    ones, others = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)

    def weight(a: float, b: float) -> float:
        return (a - b) ** 2 if weighted else float(a != b)

    observed = sum(weight(a, b) for a, b in pairs) / count
    expected = sum(weight(a, b) * m * n for a, m in ones.items() for b, n in others.items()) / count**2
    return None if expected == 0 else 1 - observed / expected


def distribution(scores: Mapping[str, float]) -> dict[str, Any]:
    """`{lines, mean, counts: [[score, lines], ...]}` of one judge's scores."""
    counts = Counter(scores.values())
    mean = sum(scores.values()) / len(scores) if scores else None
    return {"lines": len(scores), "mean": mean, "counts": [[score, counts[score]] for score in sorted(counts)]}
