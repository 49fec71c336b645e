"""What is followed by the form of an earlier stream comes to what a `StreamTrack` comes to, and where it goes another
way a `StreamTrack` can go on."""

from __future__ import annotations

import json
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.request import CHAT, InferenceRequest
from gateway.inspection.plain_stream import DONE, ENDING, READ_MOST, TRIES, Example, Forms, PlainStream, StreamForm
from gateway.inspection.rewrite import Identity
from gateway.inspection.stream_track import REPEATS, StreamTrack
from gateway.transport.sse import Framer
from tests.proxy.streams.stage import captured
from tests.routing.parts import request

USAGE = {"prompt_tokens": 12, "completion_tokens": 8, "prompt_tokens_details": None}
ASKED = request(stream=True)
WANTS = request(stream=True, stream_options={"include_usage": True})
# Servers put their fields in different orders.
ORDERS = (
    ("id", "object", "created", "model", "choices", "usage", "x%"),
    ("choices", "created", "id", "model", "usage", "object"),
    ("created", "model", "id", "usage", "choices"),
)


def event(order: int = 0, **fields: Any) -> bytes:
    given_fields = {"id": "up-1", "object": "chunk", "created": 77, "model": "served/model", "x%": "50% \\d", **fields}
    ordered = {name: given_fields[name] for name in ORDERS[order] if name in given_fields}
    return b"data: " + json.dumps(ordered, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def said(delta: dict[str, Any], end: str | None = None, order: int = 0, **more: Any) -> bytes:
    return event(order, choices=[{"index": 0, "delta": delta, "finish_reason": end}], **more)


def stream(
    *texts: str, order: int = 0, end: str = "stop", last: str = "", usage: object = USAGE, **more: Any
) -> list[bytes]:
    events = [said({"role": "assistant", "content": ""}, order=order, **more)]
    events += [said({"content": text}, order=order, **more) for text in texts]
    events.append(said({"content": last}, end, order=order, **more))
    if usage is not None:
        events.append(event(order, choices=[], usage=usage, **more))
    return [*events, DONE]


def example_of(reads: list[bytes]) -> Example:
    example = Example()
    for read in reads:
        example.add(read)
    return example


def form_of(events: list[bytes], asked: InferenceRequest = ASKED) -> StreamForm | None:
    forms = Forms()
    forms.learn(example_of(events), lambda: StreamTrack(asked, Identity()), None, wants_usage=asked.wants_usage)
    return forms.form


FORMS = {
    (order, asked is WANTS): form_of(stream("Hello", " you", order=order), asked)
    for order in range(len(ORDERS))
    for asked in (ASKED, WANTS)
}


def usually(value: object, *others: object) -> st.SearchStrategy[Any]:
    return st.sampled_from([value] * 8 + list(others))


ids = usually("up-22", "chatcmpl-0a:b.c", "77", "a b", 'quo"te', "", "größer", "x" * 90, None, 5)
times = usually(1795222392, 77, 0, -1, 2.5, None, "77", 10**17)
starts = st.sampled_from(
    ["Hello", "Hello", "H", "HH", "  H", "H ", " ", "", "!!!!!!!!", "<think>", "</think>", "\n</think>\n"]
)
texts = st.sampled_from(
    [
        " you",
        'He said "no"\n\\',
        "größer",
        "H",
        "\n</think>\n",
        "<think>",
        "!!!!!!!!",
        "",
        '"id":"up-1"',
        "up-1 77",
        "%",
    ]
)
lasts = usually("", "!", "</think>", "\n</think>\n", 'a "quote"', "H")
usages = usually(USAGE, {}, {"a": {"b": [1, '"usage":']}}, None, 7, [1], {"id": "up-1"})
ODD = [
    b": a comment\n\n",
    b'data: {"error":{"message":"boom"}}\n\n',
    b"data: {nonsense\n\n",
    b"data:[DONE]\n\n",
    DONE,
    b"\n\n",
    b"event: x\ndata: {}\n\n",
    said({"reasoning": "Hm"}),
    said({"content": "x"}, "abort"),
    said({"content": "x", "tool_calls": [{"index": 0}]}),
    said({"content": "other"}, model="served/other"),
    said({"content": "x"}, id="up-9"),
    said({"content": "x"}).replace(b"\n\n", b"\r\n\r\n"),
]


@st.composite
def reads(draw: st.DrawFn, order: int) -> list[bytes]:
    """The reads of a stream that goes much as the example, in pieces of whole events or of anything."""
    said_texts = [draw(starts), *draw(st.lists(texts, max_size=8))]
    values = {"id": draw(ids), "created": draw(times), "usage": draw(usages), "last": draw(lasts)}
    events = stream(*said_texts, order=order, end=draw(usually("stop", "length", "tool_calls")), **values)
    if draw(usually(False, True, True)):
        events.insert(draw(st.integers(0, len(events))), draw(st.sampled_from(ODD)))
    if draw(usually(False, True)):
        del events[draw(st.integers(0, len(events) - 1))]
    found: list[bytes] = []
    for size in draw(st.lists(st.integers(1, 3), max_size=8)):
        found.append(b"".join(events[:size]))
        events = events[size:]
    found.append(b"".join(events))
    if draw(usually(False, True)):
        found = b"".join(piece[:9] + b"|" + piece[9:] for piece in found).split(b"|")
    return [read for read in found if read]


cases = st.integers(0, len(ORDERS) - 1).flatmap(lambda order: st.tuples(reads(order), st.just(order)))


def state(track: StreamTrack) -> tuple[object, ...]:
    track.conclude()
    found = track.violations, track.mended, track.usage, track.content, track.done, track.whole, track.failure
    closed = [answer.closed_alone for answer in track._answers.values()]
    return (*found, track.stray_close, track.empty, bool(track.held), any(closed))


def followed(pieces: list[bytes], order: int = 0, *, wants: bool = False, ends: bool = False) -> int:
    """Follow these reads by the form and, from where it does not fit, by a track; and by a track alone. Both must come
    to the same. Returns the reads that the form was enough for."""
    form, asked = FORMS[order, wants], WANTS if wants else ASKED
    assert form is not None
    general, framer = StreamTrack(asked, Identity()), Framer()
    plain: PlainStream | None = PlainStream(form, None)
    track, its_framer = StreamTrack(asked, Identity()), Framer()
    enough = 0
    for number, piece in enumerate(pieces):
        before = general.content, general._last, general._same
        expected = general.feed(framer.feed(piece))
        last, sent = ends and number == len(pieces) - 1, None
        if plain is not None:
            sent = plain.pass_event(piece) if not last else None
            sent = plain.feed(piece, last=last) if sent is None else sent
        enough += sent is not None
        if sent is None:
            if plain is not None:
                plain.replay(track, its_framer)
                assert (plain.content, track._last, track._same) == before
                plain = None
            sent = track.feed(its_framer.feed(piece))
        assert sent == expected
        if general.failure is not None:
            break
    if plain is None or not plain.done:
        if plain is not None:
            plain.replay(track, its_framer)
        assert state(track) == state(general)
        return enough
    assert (plain.content, plain.done) == (general.content, general.done)
    assert state(general) == (set(), set(), plain.usage, True, True, True, None, False, False, False, False)
    return len(pieces)


@settings(max_examples=1500)
@given(cases, st.booleans(), st.booleans())
def test_a_stream_followed_by_its_form_comes_to_what_it_comes_to_event_by_event(
    case: tuple[list[bytes], int], wants: bool, ends: bool
) -> None:
    followed(*case, wants=wants, ends=ends)


ROLE, HELLO, END, USED, _ = stream("Hello")
YOU = said({"content": " you"})
TEXTS = [said({"content": f" word {number}"}) for number in range(5)]  # enough for a pattern
MORE = b'"50% \\\\d"'  # a field that nobody knows


@pytest.mark.parametrize(
    ("pieces", "enough"),
    [
        ([ROLE, HELLO, YOU, END, USED, DONE], 6),
        ([ROLE + HELLO + YOU, END + USED + DONE], 2),
        ([ROLE, HELLO, END, DONE], 4),
        ([ROLE, HELLO, *TEXTS, said({"content": "\n</think>\n"}), YOU, END, DONE], 7),
        ([ROLE, HELLO, *TEXTS, said({"content": "</think>"}), YOU, END, DONE], 7),
        ([ROLE, HELLO, *TEXTS, said({"content": 'a "quote"\n'}), YOU, END, USED, DONE], 12),
        ([ROLE, HELLO, *TEXTS, YOU.replace(b" you", b" y\n\nou"), YOU, END, DONE], 7),
        ([ROLE, HELLO, *TEXTS, END, YOU, DONE], 8),
        ([ROLE, said({"content": "H"}), said({"content": "H"}), YOU, END, DONE], 6),
        ([ROLE, said({"content": " H"}), HELLO, END, DONE], 5),
        ([ROLE, *[said({"content": "H"})] * REPEATS, said({"content": "H"}), END, DONE], REPEATS + 1),
        ([ROLE, said({"content": "!!"}), said({"content": "!!!"}), YOU, END, DONE], 2),
        ([ROLE, said({"content": "!!!!!!"}), END, DONE], 1),
        ([ROLE, said({"content": "  "}), YOU, END, DONE], 1),
        ([ROLE, said({"content": "<think>"}), YOU, said({"content": "</think>"}), HELLO, END, DONE], 1),
        ([ROLE, said({"content": "Hm\n</think>\n"}), YOU, END, DONE], 1),
        ([ROLE, said({"content": "H"}), said({"content": "\n</think>\n"}), YOU, END, DONE], 2),
        ([ROLE, HELLO, said({"content": "\n</think>\n"}), YOU, END, DONE], 2),
        ([ROLE, HELLO, said({"content": "\n</think>\n"}, "stop"), DONE], 2),
        ([ROLE, HELLO, said({"content": "other"}, model="served/other"), YOU, END, DONE], 2),
        ([ROLE, HELLO, said({"content": "abort"}, "abort"), DONE], 2),
        ([ROLE, HELLO, said({}, "stop"), DONE], 2),
        ([ROLE, HELLO, YOU.replace(b"\n\n", b"\r\n\r\n"), YOU, END, DONE], 2),
        ([ROLE, HELLO, b": a comment\n\n", YOU, END, DONE], 2),
        ([ROLE, HELLO, YOU + b": a comment\n\n", YOU, END, DONE], 2),
        ([ROLE, HELLO, YOU + END + b": a comment\n\n", YOU, DONE], 2),
        ([ROLE, HELLO + b": a comment\n\n", YOU, END, DONE], 1),
        ([ROLE, said({"content": "H"}), said({"content": "H"}) + b": x\n\n", YOU, END, DONE], 2),
        ([ROLE, HELLO, YOU[:20], YOU[20:], END, DONE], 2),
        ([ROLE, HELLO, END, event(choices=[], usage=7), DONE], 3),
        ([ROLE, HELLO, END, event(choices=[], usage={}) + b": x\n\n", DONE], 3),
        ([ROLE, HELLO, END, USED, USED, DONE], 4),
        ([ROLE, HELLO, DONE], 2),
        ([ROLE, DONE], 1),
        ([ROLE, HELLO, END, YOU, DONE], 3),
        ([ROLE, HELLO, END.replace(b'"content":""', b'"content":"'), DONE], 2),
        ([ROLE, HELLO.replace(b'"Hello"', b'"'), YOU, END, DONE], 1),
        ([ROLE, ROLE, HELLO, END, DONE], 1),
        ([HELLO, YOU, END, DONE], 0),
        ([ROLE, b'data: {"id":"up-1","object":"chunk","created":77,"model":"served/model","choices":[]}\n\n'], 1),
    ],
)
@pytest.mark.parametrize("wants", [False, True])
def test_where_a_stream_goes_another_way_a_track_goes_on(pieces: list[bytes], enough: int, wants: bool) -> None:
    assert followed(pieces, wants=wants) == enough


def test_an_answer_that_ends_without_done_is_left_to_the_track() -> None:
    assert followed([ROLE, HELLO, END, USED, DONE], ends=True) == 5
    assert followed([ROLE, HELLO, END, USED], ends=True) == 3
    assert followed([ROLE, HELLO], ends=True) == 1


@pytest.mark.parametrize("order", range(len(ORDERS)))
@pytest.mark.parametrize("asked", [ASKED, WANTS], ids=["usage dropped", "usage sent"])
def test_a_stream_with_another_id_time_text_and_usage_is_followed_to_its_end(
    order: int, asked: InferenceRequest
) -> None:
    form = FORMS[order, asked is WANTS]
    assert form is not None
    plain, track = PlainStream(form, None), StreamTrack(asked, Identity())
    usage = {"prompt_tokens": 3}
    events = stream("50 %", ' "so"\n', "", "größer", order=order, id="up-9", created=78, last="!", usage=usage)
    for one in events:
        assert plain.feed(one, last=one == DONE) == track.feed([one])
    assert (plain.done, plain.usage) == (True, usage)
    together = PlainStream(form, None).feed(b"".join(events), last=True)
    assert together == StreamTrack(asked, Identity()).feed(events)


@pytest.mark.parametrize(
    "example",
    [
        stream("Hello", usage=None),
        stream("Hello", last=" you"),
        stream("Hello", end="length"),
        [*stream("Hello")[:-3], said({"content": None}, "stop"), *stream("Hello")[-2:]],
    ],
    ids=["without usage", "an end with text", "cut off", "an end with null"],
)
def test_what_servers_send_has_a_form_if_its_end_is_one_of_text(example: list[bytes]) -> None:
    form = form_of(example)
    assert (form is not None) == (b'"content":null' not in b"".join(example))


@pytest.mark.parametrize(
    "example",
    [
        stream(),
        stream("<think>Hm", "</think>", "Yes"),
        stream("!!!!!!!!!!"),
        stream("Hello", end="tool_calls"),
        stream("Hello", id=5),
        stream("Hello", created="now"),
        stream("Hello")[:-1],
        [*stream("Hello")[:-1], b": a comment\n\n", DONE],
        [b": a comment\n\n", *stream("Hello")],
        [ROLE, HELLO.replace(MORE, b'{"content":"Hello"}'), END, USED, DONE],
        [
            ROLE,
            HELLO,
            END,
            USED.replace(MORE, b'{"usage":%s}' % json.dumps(USAGE, separators=(",", ":")).encode()),
            DONE,
        ],
        [ROLE, HELLO.replace(MORE, b'{"id":"up-1"}'), END, USED, DONE],
        [said({"role": "assistant", "reasoning": "Hm"}), *stream("Hello")[1:]],
        [one.replace(b'"created":77', b'"created": 77') for one in stream("Hello")],
    ],
)
def test_what_a_stream_track_has_more_to_do_with_has_no_form(example: list[bytes]) -> None:
    assert form_of(example) is None


def test_a_long_stream_has_the_form_of_a_short_one() -> None:
    form = form_of(stream(*[f" word {number}" for number in range(1000)]))
    assert form is not None
    assert PlainStream(form, None).feed(b"".join(stream("Hello")), last=True) is not None


@pytest.mark.parametrize(
    "reads",
    [
        [b"".join(stream("Hello" * READ_MOST))],
        [*stream("Hello", *[" x" * 99] * 40)[:-3], b"".join(stream("x" * READ_MOST)[1:])],
        [read[at : at + 5] for read in stream(*[" word"] * 60) for at in range(0, len(read), 5)],
    ],
    ids=["one read", "a large last read", "an end in many reads"],
)
def test_a_stream_whose_beginning_or_end_is_not_kept_has_no_form(reads: list[bytes]) -> None:
    assert form_of(reads) is None


def test_of_a_stream_not_more_is_kept_than_its_beginning_and_its_end() -> None:
    example = example_of([HELLO] * 10_000)
    assert len(b"".join(example.events())) < 2 * 4096 + ENDING * len(HELLO)


def test_after_some_streams_without_a_form_none_is_looked_at() -> None:
    forms = Forms()
    for _ in range(TRIES):
        assert forms.wanted
        forms.learn(example_of(stream()), lambda: StreamTrack(ASKED, Identity()), None, wants_usage=False)
    assert not forms.wanted


def test_one_token_again_and_again_is_left_to_the_track() -> None:
    form = FORMS[0, False]
    assert form is not None
    plain, events = PlainStream(form, None), stream("Well", *["again"] * (REPEATS + 2))
    fed = list(takewhile(lambda sent: sent is not None, (plain.feed(one, last=False) for one in events)))
    assert len(fed) == REPEATS + 2
    track, framer = StreamTrack(ASKED, Identity()), Framer()
    plain.replay(track, framer)
    track.feed(events[REPEATS + 2 :])
    assert track.violations == {"garbage"}


@pytest.mark.parametrize("name", ["chat_stream", "chat_stream_usage"])
def test_vllm_s_own_streams_have_a_form(name: str) -> None:
    events = Framer().feed(b"".join(captured(name)))
    form = form_of(events)
    assert form is not None
    assert CHAT.name == "chat"
    plain = PlainStream(form, None)
    assert plain.feed(b"".join(events), last=True) == StreamTrack(ASKED, Identity()).feed(events)


def test_the_text_of_a_stream_that_goes_on_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    form = FORMS[0, False]
    assert form is not None
    plain = PlainStream(form, None)
    for one in (ROLE, HELLO, *TEXTS):
        plain.feed(one, last=False)
    monkeypatch.setattr("gateway.inspection.plain_stream.is_plain", lambda _: False)
    assert plain.pass_event(YOU) == YOU.replace(b"served/model", b"alias")
