"""All samples of a benchmark, grouped as they are shown: by prompt length, by concurrency, by target. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gateway.apps.bench import stats
from gateway.apps.bench.sample import RequestSample
from gateway.apps.bench.stats import PrefillLine, Spread

GATEWAY, DIRECT = "gateway", "direct"  # names of the two targets that are compared

T = TypeVar("T")
Value = Callable[[RequestSample], float | None]


def ttft(sample: RequestSample) -> float | None:
    return sample.ttft


def decode_rate(sample: RequestSample) -> float | None:
    return sample.decode_rate


# -- groups of samples ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SingleRequests:
    """One prompt length, one request at a time. Failed samples give no figure; rates are tokens/s."""

    via: str
    backend: str | None
    asked: int  # tokens of the prompt
    samples: tuple[RequestSample, ...]

    @property
    def good(self) -> list[RequestSample]:
        return [sample for sample in self.samples if sample.ok]

    @property
    def failed(self) -> int:
        return len(self.samples) - len(self.good)

    def of(self, value: Value) -> Spread | None:
        return stats.spread(value(sample) for sample in self.good)


@dataclass(frozen=True, slots=True)
class Block:
    """Several streams at a time, for a while. When one request fails, the load was lower than stated: the block gives
    no figure."""

    samples: tuple[RequestSample, ...]

    @property
    def failed(self) -> int:
        return sum(not sample.ok for sample in self.samples)

    @property
    def ok(self) -> bool:
        return bool(self.samples) and not self.failed

    @property
    def seconds(self) -> float:
        """From the first request's start to the last one's end, including the time in which streams run out."""
        return max(sample.ended for sample in self.samples) - min(sample.started for sample in self.samples)

    @property
    def output_rate(self) -> float | None:
        """Answer tokens per second, all streams together."""
        if not self.ok or any(sample.completion is None for sample in self.samples) or self.seconds <= 0:
            return None
        return sum(sample.completion or 0 for sample in self.samples) / self.seconds

    @property
    def request_rate(self) -> float | None:
        return len(self.samples) / self.seconds if self.ok and self.seconds > 0 else None


@dataclass(frozen=True, slots=True)
class Level:
    """One concurrency, measured several times."""

    via: str
    concurrency: int
    blocks: tuple[Block, ...]

    @property
    def samples(self) -> list[RequestSample]:
        """Those of the blocks in which nothing failed."""
        return [sample for block in self.blocks if block.ok for sample in block.samples]

    @property
    def failed(self) -> int:
        return sum(block.failed for block in self.blocks)

    @property
    def blocks_failed(self) -> int:
        return sum(not block.ok for block in self.blocks)

    @property
    def output_rate(self) -> Spread | None:
        return stats.spread(block.output_rate for block in self.blocks)

    @property
    def request_rate(self) -> Spread | None:
        return stats.spread(block.request_rate for block in self.blocks)

    def at(self, value: Value, share: float) -> float | None:
        """A quantile over all requests."""
        values = [known for sample in self.samples if (known := value(sample)) is not None]
        return stats.quantile(values, share) if values else None


def pairs(
    one: Sequence[RequestSample], other: Sequence[RequestSample], value: Value
) -> list[tuple[float | None, float | None]]:
    """Sample by sample in the order they were taken; a pair of which one failed is left out."""
    return [(value(a), value(b)) for a, b in zip(one, other, strict=False) if a.ok and b.ok]


def fit_prefill(samples: Iterable[RequestSample]) -> PrefillLine | None:
    """The time to the first text over the prompt length. The slope leaves out the fixed cost of a request, however
    short its prompt."""
    return stats.fit([(s.prompt, s.ttft) for s in samples if s.ok and s.prompt and s.ttft and s.is_fresh])


# -- everything -------------------------------------------------------------------------------------------------------


@dataclass
class Results:
    """`tokens`: of an answer, as asked for. `expected`: the backend that both targets lead to; None where there is one
    target, or the answering backend is not reported."""

    tokens: int
    expected: str | None = None
    notes: list[str] = field(default_factory=list)
    warm_up: list[tuple[str, RequestSample]] = field(default_factory=list)
    # (target, tokens of the prompt) -> samples; (target, concurrency) -> blocks
    single: defaultdict[tuple[str, int], list[RequestSample]] = field(default_factory=lambda: defaultdict(list))
    sweep: defaultdict[tuple[str, int], list[Block]] = field(default_factory=lambda: defaultdict(list))
    stopped: bool = False  # by the user, before everything was measured

    @property
    def samples(self) -> list[tuple[str, RequestSample]]:
        """(target, sample) of all but the warm-up."""
        one = [(target, sample) for (target, _), samples in self.single.items() for sample in samples]
        return one + [
            (target, s) for (target, _), blocks in self.sweep.items() for block in blocks for s in block.samples
        ]

    @property
    def ok(self) -> bool:
        """Everything was measured, and nothing failed."""
        return bool(self.samples) and not self.stopped and all(sample.ok for _, sample in self.samples)

    def errors(self) -> dict[tuple[str, str], int]:
        """(target, error) -> how often; the most frequent first."""
        return dict(Counter((target, s.error) for target, s in self.samples if s.error is not None).most_common())

    # -- rows ---------------------------------------------------------------------------------------------------------

    def singles(self) -> list[SingleRequests]:
        """A row for each length, target and answering backend: two backends do not make one figure. Failed samples are
        in the row of the expected backend."""
        rows = []
        for (target, length), samples in sorted(self.single.items(), key=_by_size):
            usual = self.expected or next((sample.backend for sample in samples if sample.ok), None)
            by_backend: dict[str | None, list[RequestSample]] = {}
            for sample in samples:
                by_backend.setdefault((sample.backend or usual) if sample.ok else usual, []).append(sample)
            rows += [SingleRequests(target, backend, length, tuple(them)) for backend, them in by_backend.items()]
        return rows

    def levels(self) -> list[Level]:
        ordered = sorted(self.sweep.items(), key=_by_size)
        return [Level(target, concurrency, tuple(blocks)) for (target, concurrency), blocks in ordered]

    def fits(self) -> dict[str, PrefillLine]:
        """Target -> prefill by the slope over all lengths, where there is one."""
        by_target: dict[str, list[RequestSample]] = {}
        for (target, _), samples in self.single.items():
            by_target.setdefault(target, []).extend(sample for sample in samples if self._is_comparable(sample))
        lines = {target: fit_prefill(samples) for target, samples in by_target.items()}
        return {target: line for target, line in lines.items() if line is not None}

    # -- the gateway beside its backend -------------------------------------------------------------------------------

    def added(self) -> list[tuple[int, Spread | None, Spread | None]]:
        """For each length measured at both targets: (the length, seconds until the first text through the gateway less
        direct, decode rate through the gateway over the direct one)."""
        found = []
        for length, through, straight in _compared(self.single):
            both = [(a, b) for a, b in zip(through, straight, strict=False) if self._is_comparable(a)]
            one, other = [a for a, _ in both], [b for _, b in both]
            found.append((length, stats.gap(pairs(one, other, ttft)), stats.ratio(pairs(one, other, decode_rate))))
        return found

    def added_sweep(self) -> list[tuple[int, Spread | None]]:
        """(concurrency, output rate through the gateway over the direct one), of blocks that one backend served."""
        found = []
        for level, through, straight in _compared(self.sweep):
            both = [
                (a.output_rate, b.output_rate)
                for a, b in zip(through, straight, strict=False)
                if all(self._is_comparable(sample) for sample in a.samples)
            ]
            found.append((level, stats.ratio(both)))
        return found

    def _is_comparable(self, sample: RequestSample) -> bool:
        return self.expected is None or sample.backend is None or sample.backend == self.expected


def _compared(groups: Mapping[tuple[str, int], list[T]]) -> Iterator[tuple[int, list[T], list[T]]]:
    """(size, through the gateway, direct) for each size measured at both targets."""
    for (target, size), through in sorted(groups.items(), key=_by_size):
        if target == GATEWAY and (DIRECT, size) in groups:
            yield size, through, groups[DIRECT, size]


def _by_size(item: tuple[tuple[str, int], Any]) -> tuple[int, bool]:
    """Small before large; of one size the gateway before its backend."""
    (target, size), _ = item
    return size, target == DIRECT
