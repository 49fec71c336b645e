"""The score in a judge's answer: by a JSON path, by a pattern, or where answers usually have it; and the answers of two
or more judges to the same lines compared: agreement, distribution, and what a human should read first.

Only the scores are held in memory; the texts of the lines that are shown are read in a second pass."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from gateway.apps.judging.runs import INPUT, FolderError, JudgeState, answer_of, judges_in, question_of, rows_of
from gateway.config.units import number_of

FindScore = Callable[[str], float | None]

TEXT_MOST = 100_000  # characters of an answer in which a score is looked for
_FENCED = re.compile(r"```(?:json)?\s*(.*?)```", re.S)
_NAMED = re.compile(
    r"\b(?:score|rating|grade|points?)\b"
    r"(?:\s*[(\[][^()\[\]\n]{1,40}[)\]](?=[\s*_|]*[:=|]))?"  # a scale: `Score (1-5): 4`
    r"\W{0,5}?((?:(?<!\w)[-\u2212])?(?:\d+(?:\.\d+)?|(?<!\.)\.\d+))"
    r"(?!\d|\.\d|[-\u2013\u2014]\d|\s+to\s+\d)",  # no number of a scale: `points 1-5`
    re.I,
)
_ALONE = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*(?:/\s*\d+|out of \d+)?\s*[.!]?\s*", re.I)
_KEYS = ("score", "rating", "grade", "points")
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(-?\d+)\]")


def usual_score(text: str) -> float | None:
    """A JSON object's `score`, `rating`, `grade` or `points`; a number behind one of these words, the last one, because
    judges reason first; or an answer that is nothing but a number."""
    text = text[-TEXT_MOST:]
    value = _json_in(text)
    if isinstance(value, dict):
        for key in _KEYS:
            if (found := number_of(value.get(key))) is not None:
                return found
    named = _NAMED.findall(text)
    if named:
        return number_of(named[-1].replace("\u2212", "-"))  # a minus as in print
    alone = _ALONE.fullmatch(text)
    return number_of(alone[1]) if alone is not None else None


def by_path(path: str) -> FindScore:
    """`scores.overall`, `$.criteria[0].score`: a path into the JSON of the answer. Raises ValueError for any other
    text."""
    steps: list[str | int] = []
    rest = path.removeprefix("$").removeprefix(".")
    while step := _STEP.match(rest):
        steps.append(step[1] if step[1] is not None else int(step[2]))
        rest = rest[step.end() :]
    if rest or not steps:
        raise ValueError(f"'{path}' is no path: write keys and indexes, such as scores.overall or criteria[0].score")

    def find(text: str) -> float | None:
        value = _json_in(text[-TEXT_MOST:])
        for step in steps:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return None
        return number_of(value)

    return find


def by_pattern(pattern: str) -> FindScore:
    """A regular expression whose first group is the score; the last match counts. Raises ValueError."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"'{pattern}' is no regular expression: {error}") from None
    if not compiled.groups:
        raise ValueError(f"'{pattern}' has no group: put the number in brackets, as in Score: (\\d+)")

    def find(text: str) -> float | None:
        found = None
        for found in compiled.finditer(text[-TEXT_MOST:]):  # noqa: B007
            pass
        return number_of(found[1]) if found is not None else None

    return find


def _json_in(text: str) -> Any:
    """The JSON of an answer: all of it, or in a fence, or its last object; None without JSON."""
    candidates = [text, *reversed(_FENCED.findall(text))]
    at = text.rfind("{")
    if at >= 0:
        candidates += [text[text.find("{") : text.rfind("}") + 1], text[at : text.rfind("}") + 1]]
    for candidate in candidates:
        try:
            value = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict | list):
            return value
    return None


SHOWN_MOST = 20_000  # characters of one text that the page shows


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of two judges, over the lines that both have scored. `same`: the share with equal scores. `kappa`,
    `weighted_kappa`: 1 = always alike, 0 = as by chance, None if not defined (no line, or both gave one and the same
    score to all). `mean_difference`: of the second's scores less the first's."""

    judges: tuple[str, str]
    lines: int
    same: float | None = None
    kappa: float | None = None
    weighted_kappa: float | None = None
    mean_difference: float | None = None


def agreement(first: str, second: str, pairs: Sequence[tuple[float, float]]) -> Agreement:
    """`pairs`: the scores of both for each line that both have scored."""
    if not pairs:
        return Agreement((first, second), 0)
    same = sum(a == b for a, b in pairs) / len(pairs)
    difference = sum(b - a for a, b in pairs) / len(pairs)
    return Agreement((first, second), len(pairs), same, kappa(pairs), kappa(pairs, weighted=True), difference)


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


@dataclass(slots=True)
class Judge:
    """One judge's results. `scores`: custom_id -> score; `unscored`: lines whose answer has none; `failed`: without an
    answer."""

    state: JudgeState
    scores: dict[str, float] = field(default_factory=dict)
    unscored: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        return self.state.alias


@dataclass(frozen=True, slots=True)
class ScoredLine:
    """One line on which the judges differ by `spread`, or (None) one has no score. `scores` by judge."""

    custom_id: str
    scores: Mapping[str, float | None]
    spread: float | None


@dataclass(frozen=True, slots=True)
class JudgeComparison:
    """`lines`: all, the ones to read first at the top."""

    folder: Path
    judges: Sequence[Judge]
    agreements: Sequence[Agreement]
    lines: Sequence[ScoredLine]

    def as_json(self, most: int) -> dict[str, Any]:
        """With the first `most` lines."""
        return {
            "judges": {
                judge.name: {
                    **distribution(judge.scores),
                    "unscored": len(judge.unscored),
                    "failed": len(judge.failed),
                }
                for judge in self.judges
            },
            "agreement": [asdict(one) for one in self.agreements],
            "read_first": [
                {"custom_id": line.custom_id, "scores": dict(line.scores), "spread": line.spread}
                for line in self.lines[:most]
            ],
        }

    def write_csv(self, path: Path) -> None:
        """One row for each line: custom_id, the score of each judge, spread."""
        with path.open("w", newline="", encoding="utf-8", errors="replace") as file:
            writer = csv.writer(file)
            writer.writerow(["custom_id", *(judge.name for judge in self.judges), "spread"])
            for line in self.lines:
                writer.writerow(
                    [_csv_cell(line.custom_id), *(_cell(value) for value in line.scores.values()), _cell(line.spread)]
                )

    def shown(self, most: int) -> list[dict[str, Any]]:
        """`{line, question, answers}` of the first `most` lines; `answers` by judge. Raises FolderError."""
        wanted = {line.custom_id: line for line in self.lines[:most]}
        questions = {
            name: question_of(row)
            for row in rows_of(self.folder / INPUT)
            if isinstance(name := row.get("custom_id"), str) and name in wanted
        }
        answers: dict[str, dict[str, str]] = {name: {} for name in wanted}
        for judge in self.judges:
            for row in rows_of(judge.state.output(self.folder)):
                if (name := row.get("custom_id")) in answers:
                    answers[name][judge.name] = answer_of(row) or ""
        return [
            {"line": line, "question": questions.get(name, ""), "answers": answers[name]}
            for name, line in wanted.items()
        ]


def compare(folder: Path, find: FindScore) -> JudgeComparison:
    """Raises FolderError when there are not at least two judges whose batches have ended."""
    ready = [state for state in judges_in(folder) if state.output(folder).exists()]
    if len(ready) < 2:
        names = ", ".join(state.alias for state in ready) or "none"
        raise FolderError(
            f"{folder} has the answers of {len(ready)} judge(s) ({names}): two are needed, see `batch run`"
        )
    judges = [_judge(state, folder, find) for state in ready]
    agreements = []
    for one, other in combinations(judges, 2):
        both = [(score, other.scores[name]) for name, score in one.scores.items() if name in other.scores]
        agreements.append(agreement(one.name, other.name, both))
    lines_of = dict.fromkeys(
        name for judge in judges for name in (*judge.scores, *sorted(judge.unscored | judge.failed))
    )
    lines = sorted((_line(name, judges) for name in lines_of), key=_first_read)
    return JudgeComparison(folder, judges, agreements, lines)


def _judge(state: JudgeState, folder: Path, find: FindScore) -> Judge:
    judge = Judge(state)
    for row in rows_of(state.output(folder)):
        name, text = row.get("custom_id"), answer_of(row)
        if not isinstance(name, str):
            continue
        score = find(text) if text is not None else None
        if score is None:
            judge.unscored.add(name)
        else:
            judge.scores[name] = score
    if state.errors(folder).exists():
        names = (row.get("custom_id") for row in rows_of(state.errors(folder)))
        judge.failed |= {name for name in names if isinstance(name, str) and name}
    return judge


def _line(name: str, judges: Sequence[Judge]) -> ScoredLine:
    scores = {judge.name: judge.scores.get(name) for judge in judges}
    known = [score for score in scores.values() if score is not None]
    spread = max(known) - min(known) if len(known) == len(judges) else None
    return ScoredLine(name, scores, spread)


def _first_read(line: ScoredLine) -> tuple[bool, float, str]:
    """The largest differences first, then lines without a score of one judge, at last those of one opinion."""
    if line.spread is None:
        return False, 0.0, line.custom_id
    return line.spread == 0, -line.spread, line.custom_id


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _csv_cell(text: str) -> str:
    """A cell that no spreadsheet takes for a formula."""
    return "'" + text if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def render(comparison: JudgeComparison, shown: Sequence[Mapping[str, Any]]) -> str:
    """The comparison as one HTML page that needs nothing else."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    loader = FileSystemLoader(Path(__file__).parent)
    templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return templates.get_template("comparison_page.html.j2").render(
        comparison=comparison,
        shown=shown,
        distribution=distribution,
        text_most=SHOWN_MOST,
        no_answer=Markup("<i>no answer</i>"),
    )
