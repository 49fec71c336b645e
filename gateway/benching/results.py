"""All that was measured, grouped as it is shown. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from gateway.benching import figures
from gateway.benching.figures import Block, Fit, Gap, Level, Single, Spread
from gateway.benching.measured import Run

GATEWAY, DIRECT = "gateway", "direct"
FEW_TOKENS = 64  # an answer of fewer tells little about the rate
RESTLESS, RESTLESS_FROM = 0.25, 3  # a spread as a share of its median, of so many values
WHOLE_FROM = 0.8  # of the length that was asked for: a prompt of which less was counted was not read whole


@dataclass
class Results:
    """`expected`: the backend that both ways lead to; None where there is one way, or nobody tells who answers.
    `tokens`: of an answer, as asked for."""

    tokens: int
    expected: str | None = None
    notes: list[str] = field(default_factory=list)
    warm_up: list[tuple[str, Run]] = field(default_factory=list)
    single: dict[tuple[str, int], list[Run]] = field(default_factory=dict)  # (way, tokens of the prompt)
    sweep: dict[tuple[str, int], list[Block]] = field(default_factory=dict)  # (way, concurrency)
    stopped: bool = False  # by the user, before all was measured

    def add_single(self, way: str, length: int, run: Run) -> None:
        self.single.setdefault((way, length), []).append(run)

    def add_block(self, way: str, concurrency: int, block: Block) -> None:
        self.sweep.setdefault((way, concurrency), []).append(block)

    @property
    def runs(self) -> list[tuple[str, Run]]:
        """All but the warm-up."""
        one = [(way, run) for (way, _), runs in self.single.items() for run in runs]
        return one + [(way, run) for (way, _), blocks in self.sweep.items() for b in blocks for run in b.runs]

    @property
    def ok(self) -> bool:
        """Everything was measured, and nothing failed."""
        return bool(self.runs) and not self.stopped and all(run.ok for _, run in self.runs)

    def errors(self) -> dict[tuple[str, str], int]:
        """(way, what went wrong) -> how often; the most frequent first."""
        return dict(Counter((way, run.error) for way, run in self.runs if run.error is not None).most_common())

    # -- rows ---------------------------------------------------------------------------------------------------------

    def singles(self) -> list[tuple[Single, str | None]]:
        """A row for each length, way and backend that answered: what two backends did is not one figure. Runs that
        failed stand with the one that was expected."""
        rows = []
        for (way, length), runs in sorted(self.single.items(), key=_by_size):
            usual = self.expected or next((run.backend for run in runs if run.ok), None)
            by: dict[str | None, list[Run]] = {}
            for run in runs:
                by.setdefault((run.backend or usual) if run.ok else usual, []).append(run)
            rows += [(Single(way, length, tuple(theirs)), backend) for backend, theirs in by.items()]
        return rows

    def levels(self) -> list[Level]:
        ordered = sorted(self.sweep.items(), key=_by_size)
        return [Level(way, concurrency, tuple(blocks)) for (way, concurrency), blocks in ordered]

    def fits(self) -> dict[str, Fit]:
        """Prefill by the slope over all lengths, for each way."""
        ways = dict.fromkeys(way for way, _ in self.single)
        found = {
            way: figures.fit_prefill(
                run for (name, _), runs in self.single.items() if name == way for run in runs if self._comparable(run)
            )
            for way in ways
        }
        return {way: line for way, line in found.items() if line is not None}

    # -- the two ways beside each other -------------------------------------------------------------------------------

    def added(self) -> list[Added]:
        """What the gateway adds, for each length that was measured both ways."""
        found = []
        for (way, length), through in sorted(self.single.items(), key=_by_size):
            straight = self.single.get((DIRECT, length))
            if way != GATEWAY or straight is None:
                continue
            both = [(a, b) for a, b in zip(through, straight, strict=False) if self._comparable(a)]
            one, other = [a for a, _ in both], [b for _, b in both]
            ttft = figures.gap(figures.pairs(one, other, _ttft))
            decode = figures.ratio(figures.pairs(one, other, _decode))
            found.append(Added(length, ttft, decode))
        return found

    def added_sweep(self) -> list[tuple[int, Spread | None]]:
        """(concurrency, output rate through the gateway over the direct one), for what one backend served both ways."""
        found = []
        for (way, level), through in sorted(self.sweep.items(), key=_by_size):
            straight = self.sweep.get((DIRECT, level))
            if way != GATEWAY or straight is None:
                continue
            both = [
                (a.output_rate, b.output_rate)
                for a, b in zip(through, straight, strict=False)
                if all(self._comparable(run) for run in a.runs)
            ]
            found.append((level, figures.ratio(both)))
        return found

    def _comparable(self, run: Run) -> bool:
        return self.expected is None or run.backend is None or run.backend == self.expected

    # -- what has to be said ------------------------------------------------------------------------------------------

    def remarks(self) -> list[str]:
        """What a reader must know before believing the figures: the notes, and what the runs themselves show."""
        good = [run for _, run in self.runs if run.ok]
        told = list(self.notes)
        if good and all(run.completion is None for run in good):
            told.append("the server reports no usage, so no rate is claimed: tokens are not guessed from chunks")
        counts = [run.completion for run in good if run.completion is not None]
        if short := sum(count < self.tokens for count in counts):
            told.append(
                f"{short} of {len(counts)} answers have fewer than {self.tokens} tokens (the shortest {min(counts)}): "
                "nothing made this engine go on"
            )
        if longer := sum(count > self.tokens for count in counts):
            told.append(f"{longer} of {len(counts)} answers have more tokens than the {self.tokens} asked for")
        if counts and min(counts) < FEW_TOKENS:
            told.append(f"answers of fewer than {FEW_TOKENS} tokens say little about decode: --tokens 256")
        rows = [row for row, _ in self.singles()]
        found = [row.of(value) for row in rows for value in (_ttft, _decode)] + [lv.output_rate for lv in self.levels()]
        if any(each is not None and each.n >= RESTLESS_FROM and each.share > RESTLESS for each in found):
            told.append(
                f"some figures vary by more than ±{RESTLESS:.0%}: something else was at work there, or here; read the "
                "medians with care, and measure again when it is quiet"
            )
        if heaps := sum(not run.is_steady for run in good if run.completion):
            told.append(
                f"in {heaps} of {len(good)} answers the text came in heaps (a parser that holds thoughts back?): their "
                "decode rate is not claimed; --thinking off, or more --tokens"
            )
        if cached := sum(not run.is_fresh for run in good):
            told.append(f"{cached} prompts came partly out of the prefix cache: their prefill rate is not claimed")
        cut = [(length, run.prompt) for (_, length), runs in self.single.items() for run in runs if run.ok]
        if less := [(length, count) for length, count in cut if count is not None and count < WHOLE_FROM * length]:
            length, count = less[-1]
            told.append(
                f"of a prompt of about {length:,} tokens the server counted {count:,}: it may have cut it without a "
                "word, as Ollama's /v1 does beyond the window that the model was loaded with"
            )
        if thoughts := sum((run.reasoning or 0) > 0 for run in good):
            told.append(f"{thoughts} of {len(good)} answers hold thoughts, which count as tokens like any other")
        return told


def _ttft(run: Run) -> float | None:
    return run.ttft


def _decode(run: Run) -> float | None:
    return run.decode_rate


def _by_size(item: tuple[tuple[str, int], Any]) -> tuple[int, bool]:
    """Small before large; of one size the gateway before what it is held against."""
    (way, size), _ = item
    return size, way == DIRECT


@dataclass(frozen=True, slots=True)
class Added:
    """`ttft`: seconds until the first text, through the gateway less direct. `decode`: rate over rate."""

    asked: int
    ttft: Gap | None
    decode: Spread | None
