"""Held against what vLLM's own parsers make of the same text, format by format: `tests/data/oracle/formats.jsonl` has
texts of all shapes, `types.jsonl` one argument of every declared type in every way of writing it. Both name the version
of vLLM. Where ours differs, the row says why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.inspection.offered_tools import OfferedTools
from tests.inspection.mending import ORACLE, TOOLS, Mended, cut, mender, run
from tests.inspection.writers import WRITERS

Row = dict[str, Any]


def lines(name: str) -> Iterator[Any]:
    return map(json.loads, (ORACLE / name).read_text().strip().split("\n"))


ROWS: list[Row] = list(lines("formats.jsonl"))
HEAD, *TYPED = lines("types.jsonl")
OFFERED, BOOKING = OfferedTools(TOOLS), OfferedTools(HEAD["tools"])
PARSERS = sorted({row["parser"] for row in ROWS})
TYPED_PARSERS = sorted({parser for parser, *_ in TYPED})


def mended(parser: str, text: str, tools: OfferedTools) -> Mended:
    """After making sure that nothing is lost, and that cuts make no difference."""
    whole = run(mender(parser, tools=tools), [text])
    assert whole.raw == text
    assert run(mender(parser, tools=tools), cut(text, 3)) == whole
    return whole


def exact(value: Any) -> str:
    """Tells 1 from True and 1.0."""
    return json.dumps(value, sort_keys=True)


def decoded(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def is_same(row: Row, found: Mended) -> bool:
    if "error" in row:
        return False
    calls = [[name, decoded(arguments)] for name, arguments in row["calls"]]
    same = exact(calls) == exact([list(call) for call in found.calls])
    return same and found.content.strip() == row["content"].strip()


@pytest.mark.parametrize("parser", PARSERS)
def test_what_is_read_is_what_vllm_reads_but_for_the_rows_that_say_why(parser: str) -> None:
    for row in ROWS:
        if row["parser"] == parser:
            found = mended(parser, row["text"], OFFERED)
            assert is_same(row, found) == ("why" not in row), (row["name"], found.calls, found.content)


@pytest.mark.parametrize("parser", PARSERS)
def test_no_whole_call_that_vllm_reads_is_missing(parser: str) -> None:
    """But for one that was cut: vLLM makes whole what was not."""
    for row in ROWS:
        if row["parser"] == parser and not row["name"].startswith("cut-"):
            offered = [given for name, given in row.get("calls", ()) if name in OFFERED]
            whole = [given for given in offered if isinstance(decoded(given), dict)]
            assert len(mended(parser, row["text"], OFFERED).calls) >= len(whole), row["name"]


def fits(value: Any, types: frozenset[str]) -> bool:
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    kind = kinds.get(type(value), "null")
    whole = isinstance(value, float) and value.is_integer()
    return not types or kind in types or (kind == "integer" and "number" in types) or (whole and "integer" in types)


def is_close(ours: Any, theirs: Any) -> bool:
    """3 and 3.0 are one number, and vLLM rounds large ones."""
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (ours, theirs))
    return exact(ours) == exact(theirs) or (numbers and float(ours) == float(theirs))


@pytest.mark.parametrize("parser", TYPED_PARSERS)
def test_an_argument_has_a_declared_type_wherever_vllms_has(parser: str) -> None:
    for other, key, text, theirs in TYPED:
        if other != parser or not theirs or key not in theirs:
            continue  # vLLM's functiongemma loses what is not quoted
        types = BOOKING.types("book", key)
        ((name, arguments),) = mended(parser, text, BOOKING).calls
        assert (name, [*arguments]) == ("book", [key])
        ours = arguments[key]
        # A null stays one: "null" is not what was written.
        assert ours is None or fits(ours, types) or not fits(theirs[key], types), text
        if fits(theirs[key], types) and types and "string" not in types and isinstance(ours, (int, float)):
            assert is_close(ours, theirs[key]), text


@pytest.mark.parametrize("parser", sorted({*TYPED_PARSERS} - {"hermes"}))
@pytest.mark.parametrize(
    ("key", "text", "value"), [("i", "3", 3), ("n", "3.5", 3.5), ("u", "null", None), ("tn", "3", 3), ("r", "3", 3)]
)
def test_the_schema_decides_in_formats_whose_text_has_no_types(parser: str, key: str, text: str, value: Any) -> None:
    """`r` is a reference, which vLLM does not follow."""
    (call,) = mended(parser, WRITERS[parser]([("book", {key: text})]), BOOKING).calls
    assert exact(call) == exact(["book", {key: value}])
