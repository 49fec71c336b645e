"""The lines of a batch's input, and the rows that it writes."""

from __future__ import annotations

import io
import itertools
import json

import pytest

from gateway.apps.batches.lines import GROUP_BYTES, BatchLine, LineError, answered_row, in_groups, read_line, read_lines
from tests.apps.batches.filed import CHAT, line

MOST = 300


def line_of(name: str, size: int) -> bytes:
    """A line of so many bytes, without its end."""
    bare = json.dumps(line(name, "")).encode()
    return json.dumps(line(name, "x" * (size - len(bare)))).encode()


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [b"", b"\n"])
@pytest.mark.parametrize("sizes", list(itertools.product((MOST - 1, MOST, MOST + 1, MOST + 2, 2 * MOST + 2), repeat=2)))
def test_a_line_at_the_limit_takes_no_other_line_with_it(sizes: tuple[int, int], last: bytes, end: bytes) -> None:
    given = [line_of("first", sizes[0]), line_of("second", sizes[1]), line_of("third", 250)]
    content = end.join(given) + last
    found = list(read_lines(io.BytesIO(content), CHAT, MOST))
    assert [number for number, _, _, _ in found] == [0, 1, 2]
    assert [content[at : at + size].rstrip(b"\r\n") for _, at, size, _ in found] == given
    fits = [isinstance(read, BatchLine) for _, _, _, read in found]
    assert fits == [len(one) <= MOST for one in given]  # the end of a line does not count
    assert {read.code for _, _, _, read in found if isinstance(read, LineError)} <= {"line_too_large"}


@pytest.mark.parametrize(("size", "count"), [(10, 5000), (300_000, 60), (GROUP_BYTES + 1, 3)])
def test_no_more_than_a_few_mib_of_the_lines_are_held_at_a_time(size: int, count: int) -> None:
    lines = [(n, n * size, size, LineError("x", "x")) for n in range(count)]
    groups = list(in_groups(lines, 1000))
    assert [line for group in groups for line in group] == lines
    assert max(len(group) for group in groups) <= 1000
    assert all((len(group) - 1) * size <= GROUP_BYTES for group in groups)
    assert len(groups) <= 1 + max(count // 1000, 2 * count * size // GROUP_BYTES)


def test_an_answer_on_several_lines_is_one_row() -> None:
    row = answered_row("batch_x", 0, "r", 200, "id", b'{\r\n  "id": "a",\r  "text": "b"\n}')
    assert row.decode().splitlines(keepends=True) == [row.decode()]
    assert json.loads(row)["response"]["body"] == {"id": "a", "text": "b"}


LINE = '{"custom_id": "%s", "method": "POST", "url": "/v1/chat/completions", "body": %s}'


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ((LINE % ("r1", '{"model": "m", "temperature": NaN}')).encode(), "r1"),
        ((LINE % ("r1", '{"model": "m", "text": "\\ud83d"}')).encode(), "r1"),
        ('{"custom_id": "r1", "method": "\xe4"}'.encode("latin-1"), "r1"),
        (b"\xef\xbb\xbf" + (LINE % ("r1", "NaN")).encode(), "r1"),
        ((LINE % ("\xe4", "{}")).encode("latin-1"), ""),
        ((LINE % ("\\ud83d", "{}")).encode(), ""),
        ((LINE % ("x" * 600, "NaN")).encode(), ""),
        (b'{"custom_id": 5, "x": NaN}', ""),
        (b'["custom_id", NaN]', ""),
        (b'{"custom_id": "r1", "body": {', ""),
        (b"[" * 100_000, ""),
    ],
)
def test_a_line_that_is_almost_json_keeps_its_name(text: bytes, name: str) -> None:
    with pytest.raises(LineError) as wrong:
        read_line(text, CHAT)
    assert (wrong.value.code, wrong.value.custom_id) == ("invalid_json_line", name)
