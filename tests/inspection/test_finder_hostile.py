"""Text that a mender likes least: much that begins and nothing that ends. The work grows with the text, not with its
square, and nothing comes of it that was not offered."""

from __future__ import annotations

import time

import pytest

from gateway.inspection.formats import FORMATS
from gateway.inspection.mender import Call, OfferedTools
from gateway.inspection.reasoning import REASONING, Thoughts
from tests.inspection.mending import TOOLS, cut, mender
from tests.inspection.writers import WRITERS

ALL = sorted(WRITERS)
OFFERED = OfferedTools(TOOLS)
SMALL, LARGE = 1 << 14, 1 << 17
LITTLE = 0.15  # CPU seconds below which nothing can be told


def hostile(format_: str) -> dict[str, tuple[str, str]]:
    """Kind of text -> how it begins, and what it goes on with."""
    written = WRITERS[format_]([("write_file", {"path": "a", "content": "X"})])
    opened, named = written[: written.index("X")], written[: written.index("write_file") + 10]
    found = {f"marker {marker!r}": ("", marker) for marker in FORMATS[format_].markers[:3]}
    found |= {f"closer {closer!r} in a text": (opened, closer) for closer in FORMATS[format_].closers[:3]}
    found |= {f"{part!r} in a text": (opened, part) for part in ("y", "\\", '"', "'", "<", " ", "\n", "]<]minimax[>[")}
    found |= {
        f"{part!r} behind the name": (named, part) for part in ("[", "{", '{"a":', "(a=[", "(a={'b':", " ", "{a:")
    }
    return found | {"calls in a text": (opened, written), "half calls": ("", opened), "calls": ("", written + "\n")}


def seconds_for(text: str, format_: str, thoughts: Thoughts | None = None) -> float:
    """CPU seconds to mend it in small pieces; nothing of it is lost, and no call but an offered one comes."""
    took = float("inf")
    for _ in range(3):  # neighbours on the machine only ever add to it: the best run counts
        machine = mender(format_, thoughts, tools=OFFERED)
        started = time.process_time()
        pieces = [piece for part in cut(text, 64) for piece in machine.feed(part)] + machine.finish()
        took = min(took, time.process_time() - started)
        if took <= LITTLE:
            break
    assert "".join(piece.raw for piece in pieces) == text
    assert all(piece.name in OFFERED for piece in pieces if isinstance(piece, Call))
    return took


def filled(begin: str, unit: str, size: int) -> str:
    return (begin + unit * (size // len(unit) + 1))[:size]


@pytest.mark.parametrize("format_", ALL)
def test_the_work_grows_with_the_text_and_not_with_its_square(format_: str) -> None:
    for kind, (begin, unit) in hostile(format_).items():
        took = seconds_for(filled(begin, unit, LARGE), format_)
        if took > LITTLE:  # then eight times as much text takes about eight times as long, and not sixty-four
            assert took < 24 * seconds_for(filled(begin, unit, SMALL), format_), kind


@pytest.mark.parametrize("style", ["granite", "hunyuan_a13b", "gemma4", "qwen3"])
def test_so_it_does_for_thoughts(style: str) -> None:
    thoughts = REASONING[style]
    tags = [tag for tag in thoughts.tags if tag]
    units = [*tags, *(tag[:-1] for tag in tags), " ", "\n", "x\n"]
    for begin in ("", thoughts.openers[0], thoughts.openers[0] + thoughts.closer + (thoughts.answer or ("",))[0]):
        for unit in units:
            took = seconds_for(filled(begin, unit, LARGE), "hermes", thoughts)
            if took > LITTLE:
                assert took < 24 * seconds_for(filled(begin, unit, SMALL), "hermes", thoughts), (begin, unit)
