"""A minute of texts that no model has written yet: whole and cut calls of all formats, markers, code, quotations.

`FUZZ_SECONDS` (60) is how long it takes in all, `FUZZ_SEED` (a number, or `random`) where it begins. What fails names
the seed of its text: `FUZZ_SEED=that FUZZ_SECONDS=1` makes it again, as the first."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable

from gateway.inspection.formats import FORMATS
from gateway.inspection.mender import Call, OfferedTools
from gateway.inspection.reasoning import REASONING, THINK, Thoughts
from tests.inspection.mending import CASES, TOOLS, Mended, cut, mender, run, torn
from tests.inspection.writers import WRITERS
from tests.inspection.writers import Call as Written
from tests.limits import slowness

SECONDS = float(os.environ.get("FUZZ_SECONDS", "60"))
SEED = os.environ.get("FUZZ_SEED", "1")
MILLION = 1_000_000

ALL = sorted(WRITERS)
OFFERED = OfferedTools(TOOLS)
MARKERS = sorted({marker for format_ in FORMATS.values() for marker in format_.markers})
CLOSERS = sorted({closer for format_ in FORMATS.values() for closer in format_.closers})
LEAKED = [case["text"] for case in CASES]
NOISE = [
    *("`", "``", "```", "```xml\n", "\n```\n", "````", '"', "“", "”", "'", "\n", "\n\n", " ", "\t", "\u2028", "\u00a0"),
    *(
        "\\",
        '\\"',
        "{",
        "}",
        "[",
        "]",
        "<",
        ">",
        "(",
        ")",
        ",",
        ":",
        ";",
        "=",
        "|",
        "｜",
        "nul",
        "1e",
        "NaN",
        "{}",
        "[]",
    ),
    *("Here is my thought process:", "Here's my response:", "Here is ", "<answer>", "\n</answer>", "</answer>"),
    *("<think>", "</think>", "[THINK]", "[/THINK]", "<|channel>", "<|channel>thought\n", "<channel|>", "<seed:think>"),
    *("<parameter=city>", "</parameter>", "<arg_key>", "</arg_value>", '<|"|>', "<escape>", "[ARGS]", "name", '"name"'),
    *("ping", "get_weather", "write_file", "city", "Oslo", "東京", "🌧️", "é", "a", "The tag ", "It's 15\" wide. "),
]
WORDS = ["Let ", "me ", "look.", " So ", "x < y", " a[0]", "{k: v}", " naïve", "\n- ", "\n", "5%", "“q”", " (see)"]
THOUGHTS: list[Thoughts | None] = [
    *(None, None, None, THINK, THINK.with_opener_implied(), REASONING["mistral"]),
    *(REASONING["gemma4"], REASONING["gemma4"].with_opener_implied()),
    *(REASONING["granite"], REASONING["hunyuan_a13b"]),
]


def value(dice: random.Random, depth: int = 2) -> object:
    kinds: list[Callable[[], object]] = [
        lambda: dice.randint(-1000, 1000),
        lambda: dice.choice([True, False, None, 0.5]),
        lambda: dice.choice(["", "x", "7", "null", "a b", "ü\n", "say \"hi\" and 'so'", "</x>", "[1]", "`c`", "\\n"]),
        lambda: "".join(dice.choices(NOISE, k=dice.randint(1, 4))),
    ]
    if depth:
        kinds.append(lambda: [value(dice, depth - 1) for _ in range(dice.randint(0, 3))])
        kinds.append(
            lambda: {key: value(dice, depth - 1) for key in dice.sample(["a", "b", "c_d"], dice.randint(0, 3))}
        )
    return dice.choice(kinds)()


def a_call(dice: random.Random) -> Written:
    names = ["ping", "get_weather", "write_file", "ping", "rm_rf", "Ping", "get_weather2"]
    keys = ["city", "days", "path", "content", "meta", "tags", "ratio", "x"]
    return dice.choice(names), {key: value(dice) for key in dice.sample(keys, dice.randint(0, 3))}


def calls(dice: random.Random) -> str:
    return WRITERS[dice.choice(ALL)]([a_call(dice) for _ in range(dice.choice((1, 1, 1, 2, 3)))])


def cut_call(dice: random.Random) -> str:
    text = calls(dice)
    start = dice.choice((0, 0, 0, dice.randint(0, len(text))))
    return text[start : dice.randint(start, len(text))]


def bent_call(dice: random.Random) -> str:
    """One with something in it that does not belong there."""
    text = calls(dice)
    at = dice.randint(0, len(text))
    return text[:at] + dice.choice(NOISE + MARKERS) + text[at + dice.choice((0, 0, 1, 5)) :]


def a_text(dice: random.Random) -> str:
    parts: list[Callable[[], str]] = [
        lambda: calls(dice),
        lambda: calls(dice),
        lambda: cut_call(dice),
        lambda: bent_call(dice),
        lambda: dice.choice(MARKERS),
        lambda: dice.choice(CLOSERS),
        lambda: "".join(dice.choices(NOISE, k=dice.randint(1, 5))),
        lambda: "".join(dice.choices(WORDS, k=dice.randint(1, 9))),
        lambda: dice.choice(LEAKED),
        lambda: f"{dice.choice(['`', '``', '```', '“', chr(34)])}{calls(dice)}",
        lambda: dice.choice(MARKERS) * dice.randint(2, 20),
        lambda: dice.choice(NOISE) * dice.randint(2, 60),
    ]
    return "".join(dice.choice(parts)() for _ in range(dice.randint(1, 6)))


def check(seed: int) -> None:
    dice = random.Random(seed)
    text, thoughts = a_text(dice), dice.choice(THOUGHTS)
    armed = dice.sample(ALL, dice.choice((0, 1, 2, 3, len(ALL), len(ALL))))
    limit = dice.choice((60, 400, 1 << 20, 1 << 20))
    whole = run(mender(armed, thoughts, limit, OFFERED), [text])
    assert whole.raw == text
    for pieces in (torn(text, seed), torn(text, -seed), cut(text, dice.choice((1, 2, 5, 10)))):
        assert run(mender(armed, thoughts, limit, OFFERED), pieces) == whole
    judge(whole)


def judge(mended: Mended) -> None:
    found = [piece for piece in mended.pieces if isinstance(piece, Call)]
    for call in found:
        assert call.name in OFFERED
        assert isinstance(json.loads(call.arguments), dict)
        call.arguments.encode()
    if not found and not mended.reasoning:
        tags = ("think>", "THINK]", "hannel", "answer>", "my response:", "my thought process:")
        assert mended.content == mended.raw or any(tag in mended.raw for tag in tags)


def first_seed() -> int:
    return random.SystemRandom().randrange(1 << 40) if SEED == "random" else int(SEED)


def test_whatever_comes_nothing_is_lost_and_cuts_make_no_difference() -> None:
    """Every text is mended whole and in pieces of three kinds; calls are of offered tools, arguments JSON objects."""
    seed, end = first_seed(), time.monotonic() + SECONDS * 0.6
    while time.monotonic() < end:
        try:
            check(seed)
        except Exception as error:
            raise AssertionError(f"FUZZ_SEED={seed} FUZZ_SECONDS=1 makes this text again") from error
        seed += 1


def malice(dice: random.Random) -> str:
    """A million characters that a mender likes least: much that begins and nothing that ends."""
    written = WRITERS[dice.choice(ALL)]([a_call(dice) for _ in range(dice.choice((1, 2)))])
    opening = written[: dice.randint(1, len(written))]
    unit = dice.choice([opening, opening, written, dice.choice(MARKERS), dice.choice(NOISE), cut_call(dice) or "x"])
    unit += dice.choice(["", "", "", " ", "\n", '"', "`", "x", "{", "["])
    head = dice.choice(["", "", opening, "```\nx\n", '"x '])
    text = (head + unit * (MILLION // len(unit) + 1))[:MILLION]
    return text[:-100] + dice.choice([written[-100:], "", "```", "\n"])


def seconds_for(pieces: list[str], armed: list[str]) -> float:
    """CPU seconds that it takes to mend them, on the machine that the limits are for."""
    slower, machine = slowness(), mender(armed, tools=OFFERED)
    started = time.process_time()
    size = sum(len(out.raw) for piece in pieces for out in machine.feed(piece))
    size += sum(len(out.raw) for out in machine.finish())
    took = time.process_time() - started
    assert size == sum(map(len, pieces))
    return took / max(slower, slowness())


def test_a_megabyte_takes_less_than_a_second_whatever_is_in_it() -> None:
    seed, end = first_seed(), time.monotonic() + SECONDS * 0.4
    while time.monotonic() < end:
        dice = random.Random(seed)
        text, armed = malice(dice), dice.choice((ALL, ALL, [dice.choice(ALL)]))
        pieces = list(cut(text, dice.choice((10, 10, 4096, MILLION))))
        # Neighbours on the machine only ever add to it: what counts is the best of a few runs.
        took = next((took for took in (seconds_for(pieces, armed) for _ in range(5)) if took < 1), None)
        assert took is not None, f"FUZZ_SEED={seed} FUZZ_SECONDS=1: five times over a second for {text[:100]!r}..."
        seed += 1
