"""What is checked in a stream is checked until nothing more can be found, and not again; no chunk makes it fail."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.endpoints import CHAT
from gateway.domain.request import InferenceRequest
from gateway.inspection.answer import ChoiceAnswer
from gateway.inspection.formats import FORMATS
from gateway.inspection.offered_tools import OfferedTools
from gateway.inspection.policy import InspectionPolicy
from gateway.inspection.reasoning import THINK
from gateway.inspection.rewrite import ReplyIdentity
from gateway.inspection.stream_track import REPEATS, StreamTrack
from gateway.transport.sse import Choice

REQUEST = InferenceRequest(CHAT, {}, "alias", stream=True)
TOOLS = [{"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}]
CALL = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
TOOLS_OFFERED = InspectionPolicy(tools=OfferedTools(TOOLS), formats=(FORMATS["hermes"],))
# Its calls begin with no "<", so nothing but the tags of thoughts does.
LATER = InspectionPolicy(tools=OfferedTools(TOOLS), formats=(FORMATS["mistral"],), thoughts=THINK)
EVERYTHING = InspectionPolicy(
    tools=OfferedTools(TOOLS),
    formats=tuple(FORMATS.values()),
    thoughts=THINK.with_opener_implied(),
    reasoning_field="both",
    call="named",
    name="ping",
    hold=True,
)


def event(delta: dict[str, Any] | None, finish: str | None = None, *, index: object = 0) -> bytes:
    """As an engine writes it that puts spaces into its JSON: every event of it is parsed."""
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return (
        b"data: " + json.dumps({"id": "up-1", "created": 2, "model": "served", "choices": [choice]}).encode() + b"\n\n"
    )


def compact(spaced: bytes) -> bytes:
    return b"data: " + msgspec.json.encode(json.loads(spaced.removeprefix(b"data: "))) + b"\n\n"


def test_after_the_thoughts_were_split_off_no_text_is_taken_for_the_beginning() -> None:
    """A line of a table is no garbage in the middle of an answer."""
    expected = InspectionPolicy(thoughts=THINK.with_opener_implied())
    track = StreamTrack(REQUEST, ReplyIdentity(), expected)
    for text in ("hm", "\n</think>\n", "A table:\n", "-" * 30, "\n"):
        track.feed([event({"content": text})])
    track.feed([event({}, "stop"), b"data: [DONE]\n\n"])
    track.conclude()
    assert (track.reasoning, track.content, track.whole) == (True, True, True)
    assert track.violations == {"reasoning_as_text"}, "that of the thoughts"


def test_the_end_of_thoughts_that_never_began_is_noticed_however_the_json_is_written() -> None:
    begins, ends = event({"content": "hm"}), event({"content": "\n</think>\n"})
    for first, last in ((begins, ends), (compact(begins), ends), (compact(begins), compact(ends))):
        track = StreamTrack(REQUEST, ReplyIdentity(), thoughts=THINK)
        track.feed([first])
        assert not track.stray_close
        track.feed([last])
        track.conclude()
        assert track.stray_close
        assert track.violations == {"reasoning_as_text"}


# -- odd chunks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [[0], {"a": 1}, "0", None])
def test_a_choice_whose_index_is_no_number_is_checked_as_the_first(index: object) -> None:
    track = StreamTrack(REQUEST, ReplyIdentity(), TOOLS_OFFERED)
    for text in ("Hi", CALL):
        track.feed([event({"content": text}, index=index)])
    out = track.feed([event({}, "stop", index=index)])
    track.conclude()
    assert track.whole
    assert track.mended == {"tool_calls"}
    [choice] = json.loads(out.removeprefix(b"data: "))["choices"]
    assert (choice["index"], choice["finish_reason"]) == (0, "tool_calls")


@pytest.mark.parametrize("index", [[0], {"a": 1}])
def test_a_call_whose_index_is_no_number_is_known_by_its_place(index: object) -> None:
    answer = ChoiceAnswer(TOOLS_OFFERED)
    first = {"index": index, "id": "up-1", "function": {"name": "ping", "arguments": "{"}}
    [delta] = answer.delta({"tool_calls": [first]})
    assert delta["tool_calls"][0]["index"] == 0
    answer.delta({"tool_calls": [{"index": index, "function": {"arguments": "}"}}]})
    assert answer.end("tool_calls") == ([], "tool_calls")
    assert answer.called
    assert not answer.violations


@pytest.mark.parametrize("checks", [None, TOOLS_OFFERED])
def test_an_empty_reason_to_finish_is_none(checks: InspectionPolicy | None) -> None:
    track = (
        StreamTrack(REQUEST, ReplyIdentity(), checks) if checks is not None else StreamTrack(REQUEST, ReplyIdentity())
    )
    out = b"".join(track.feed([event({"content": text}, "")]) for text in ("Hel", "lo"))
    assert not track.whole
    out += track.feed([event({}, "stop"), b"data: [DONE]\n\n"])
    track.conclude()
    assert (track.whole, track.failure, track.violations) == (True, None, set())
    found = [json.loads(line[6:])["choices"][0] for line in out.split(b"\n\n") if line.startswith(b"data: {")]
    assert "".join(choice["delta"].get("content") or "" for choice in found) == "Hello"


def test_a_delta_that_is_none_goes_on_as_it_is() -> None:
    track = StreamTrack(REQUEST, ReplyIdentity(), TOOLS_OFFERED)
    hello, odd = event({"content": "Hello"}), event(None)
    assert track.feed([hello, odd]).count(b"data: ") == 2
    assert track.failure is None


@pytest.mark.parametrize("value", [b'"\xf0\x9f"', b"1e999", b"1.10"])
def test_what_a_mended_choice_says_besides_keeps_its_bytes_whatever_they_are(value: bytes) -> None:
    """Half a character, say, as the bytes of a token may be."""
    track = StreamTrack(REQUEST, ReplyIdentity(), TOOLS_OFFERED)
    out = track.feed([event({"content": "Hi " + CALL}).replace(b'"index"', b'"more": %s, "index"' % value)])
    assert out.count(b'"more":' + value) == out.count(b"data: ") == 2, "the text, and the call"


odd = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "ping", "stop", CALL]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["content", "index"]), inner),
    max_leaves=4,
)
functions = st.fixed_dictionaries({}, optional={"name": odd, "arguments": odd})
calls = st.fixed_dictionaries({}, optional={"index": odd, "id": odd, "function": functions | odd})
deltas = st.fixed_dictionaries(
    {}, optional={"content": odd, "tool_calls": st.lists(calls | odd, max_size=2) | odd, "reasoning": odd}
)
choices = st.fixed_dictionaries(
    {}, optional={"index": odd, "delta": deltas | odd, "finish_reason": odd, "logprobs": odd}
)
chunks = st.fixed_dictionaries({"choices": st.lists(choices, max_size=2) | odd}, optional={"usage": odd, "model": odd})


@given(st.lists(chunks, max_size=4), st.sampled_from([TOOLS_OFFERED, EVERYTHING]), st.integers(1, 2))
def test_no_chunk_is_a_reason_to_fail_inside_a_checked_stream(
    odd_chunks: list[Any], expected: InspectionPolicy, asked: int
) -> None:
    track = StreamTrack(InferenceRequest(CHAT, {}, "alias", stream=True, choices=asked), ReplyIdentity(), expected)
    said = [event({"content": "Hello"}), *(b"data: " + json.dumps(one).encode() + b"\n\n" for one in odd_chunks)]
    for one in (*said, event({"content": CALL}), event({}, "stop")):
        track.feed([one])
    track.conclude()


said = st.sampled_from(
    [
        " so",
        "Hello",
        "",
        "</think>",
        "\n</think>\n",
        "a <",
        "größer",
        'a "quote"',
        CALL,
        CALL[:9],
        "\n<tool",
        "`",
        "!!!!",
        "a\n",
        "<think>",
        " and on it goes, past where a tag may begin",
    ]
)
thought = st.sampled_from(
    [" so", "Hm", "", "a\n\nb", 'a "quote"', "größer", "\\", "back\\\\slash", "\u2028", "\x01", "</think>", "!!!!!!!!"]
)
piece = st.sampled_from(
    ['{"city"', ': "Oslo"', "}", ': "größer\\n"', "", "\n", "{", '"', "\\u00e9", "\x01", ', "days": 3']
)


def call_piece(arguments: str, index: int = 0, **more: object) -> bytes:
    function = {"arguments": arguments, **({"name": more.pop("name")} if "name" in more else {})}
    return compact(event({"tool_calls": [{"index": index, **more, "function": function}]}))


begun_call = call_piece("", id="call-1", type="function", name="get_weather")
thinking_or_calling = st.one_of(
    st.tuples(
        thought, st.sampled_from(["reasoning", "reasoning", "reasoning_content"]), st.sampled_from([1, 1, 3, 60])
    ).map(lambda made: [compact(event({made[1]: made[0]}))] * made[2]),
    st.tuples(thought, thought).map(lambda made: [compact(event({"reasoning": one})) for one in made]),
    st.lists(piece, min_size=1, max_size=5).map(lambda pieces: [begun_call, *map(call_piece, pieces)]),
    st.tuples(piece, st.sampled_from([0, 0, 0, 1])).map(lambda made: [call_piece(made[0], made[1])]),
    st.sampled_from(
        [
            call_piece("", 1, name="get_weather"),
            call_piece("{}", 0, id="call-2", name="another"),
            compact(event({"tool_calls": [{"index": 0, "function": {"arguments": "x"}, "id": None}]})),
            b'data: {"choices":[{"index":0,"delta":{"reasoning":"\\ud83d"},"finish_reason":null}]}\n\n',
            compact(event({"reasoning": "both", "content": "both"})),
            compact(event({"reasoning": None, "content": " a text"})),
            b'data: {"id":"up-1","choices":[{"index":0,"delta":{"reasoning":"\xff"},"finish_reason":null}]}\n\n',
        ]
    ).map(lambda one: [one]),
)
going_on = st.one_of(
    st.tuples(said, st.sampled_from([1, 1, 1, 3, 60])).map(
        lambda made: [compact(event({"content": made[0]}))] * made[1]
    ),
    said.map(lambda text: [event({"content": text})]),
    st.sampled_from(
        [
            compact(event({"role": "assistant", "content": ""})),
            compact(event({"reasoning": "Hm"})),
            compact(event({}, "stop")),
            compact(event({"content": "the end"}, "stop")),
            compact(event({"content": "other"}, index=1)),
            b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n',
            b'data: {"error":{"message":"boom"},"finish_reason":null}\n\n',
            b": a comment\n\n",
            b"data: [DONE]\n\n",
        ]
    ).map(lambda one: [one]),
)


def without_ids(sent: bytes) -> bytes:
    """The ids of mended calls are made up."""
    return re.sub(rb'"id":"(?!up-1)[^"]*"', b"", sent)


@settings(max_examples=1500)
@given(
    st.lists(going_on, max_size=8).map(lambda lists: [one for events in lists for one in events]),
    st.sampled_from([None, TOOLS_OFFERED, LATER, InspectionPolicy(thoughts=THINK), EVERYTHING]),
    st.sampled_from(["Well", "Well", "Well, this is a line", CALL]),
)
def test_an_event_that_is_passed_on_is_followed_as_one_that_is_read(
    events: list[bytes], expected: InspectionPolicy | None, begins: str
) -> None:
    passing, reading = (StreamTrack(REQUEST, ReplyIdentity(), expected) for _ in range(2))
    for one in [compact(event({"role": "assistant", "content": ""})), compact(event({"content": begins})), *events]:
        passed = passing.pass_text(one) or passing.pass_event(one)
        sent = passing.feed([one]) if passed is None else passed
        assert without_ids(sent) == without_ids(reading.feed([one]))
        assert passing.failure == reading.failure
        if reading.failure is not None:
            break
    for track in (passing, reading):
        track.conclude()
    for name in ("violations", "mended", "content", "reasoning", "done", "whole", "disobeyed", "empty", "stray_close"):
        assert getattr(passing, name) == getattr(reading, name), name
    sizes = [
        [(answer.size, answer.has_content, answer.closed_alone) for answer in t._answers.values()]
        for t in (passing, reading)
    ]
    assert sizes[0] == sizes[1]


class ReadingTrack(StreamTrack):
    """Reads every event, as long as anything in it is inspected."""

    def _look_ahead(self, event: bytes, choice: Choice, *, changed: bool = False) -> None:
        self._raw = self._raw or (self.content and self.settled)


@settings(max_examples=1500)
@given(
    st.lists(st.one_of(thinking_or_calling, thinking_or_calling, going_on), max_size=10).map(
        lambda lists: [one for events in lists for one in events]
    ),
    st.sampled_from([None, TOOLS_OFFERED, LATER, InspectionPolicy(thoughts=THINK), EVERYTHING]),
    st.sampled_from([1, 2, 100]),
)
def test_thoughts_and_calls_that_are_passed_on_are_followed_as_those_that_are_read(
    events: list[bytes], expected: InspectionPolicy | None, together: int
) -> None:
    passing, reading = StreamTrack(REQUEST, ReplyIdentity(), expected), ReadingTrack(REQUEST, ReplyIdentity(), expected)
    role = compact(event({"role": "assistant", "content": ""}))
    for at in range(0, len(events) + 1, together):
        some = [role, *events][at : at + together]
        passed = passing.pass_text(some[0]) or passing.pass_event(some[0]) if len(some) == 1 else None
        sent = passing.feed(some) if passed is None else passed
        assert without_ids(sent) == without_ids(reading.feed(some))
        assert (passing.failure, passing.disobeyed) == (reading.failure, reading.disobeyed)
        if reading.failure is not None or reading.disobeyed:
            break
    for track in (passing, reading):
        track.conclude()
    for name in ("violations", "mended", "content", "reasoning", "done", "whole", "disobeyed", "empty", "called"):
        assert getattr(passing, name) == getattr(reading, name), name
    tools = expected is not None and expected.tools is not None  # without, the size is of no use
    sizes = [
        [(answer.size * tools, answer.has_content, answer.has_reasoning) for answer in t._answers.values()]
        for t in (passing, reading)
    ]
    assert sizes[0] == sizes[1]


def test_thoughts_and_pieces_of_arguments_are_not_read() -> None:
    for expected in (None, TOOLS_OFFERED):
        track = StreamTrack(REQUEST, ReplyIdentity(), expected)
        for text in ("Let", " me"):
            track.feed([compact(event({"reasoning": text}))])
        goes_on = compact(event({"reasoning": ' think:\n"so"'}))
        assert track.pass_text(goes_on) == goes_on.replace(b'"served"', b'"alias"')
    track.feed([begun_call, call_piece('{"city"')])
    goes_on = call_piece(': "Oslo"}')
    assert track.pass_text(goes_on) == goes_on.replace(b'"served"', b'"alias"')
    track.feed([compact(event({}, "tool_calls"))])
    track.conclude()
    assert track._answers[0]._calls._calls[0].text() == '{"city": "Oslo"}'


def test_an_event_that_goes_on_with_the_text_is_not_read() -> None:
    for expected in (None, TOOLS_OFFERED):
        track = StreamTrack(REQUEST, ReplyIdentity(), expected)
        for text in ("Hello", " there"):
            track.feed([compact(event({"content": text}))])
        goes_on = compact(event({"content": " and so on"}))
        assert track.pass_text(goes_on) == goes_on.replace(b'"served"', b'"alias"')


@pytest.mark.parametrize("policy", [None, TOOLS_OFFERED], ids=["not inspected", "inspected"])
def test_one_text_again_and_again_is_garbage_however_it_is_recognised(policy: InspectionPolicy | None) -> None:
    track = StreamTrack(REQUEST, ReplyIdentity(), policy)
    track.feed([compact(event({"content": "Hello"})), compact(event({"content": " there"}))])
    same = compact(event({"content": "x"}))
    for _ in range(REPEATS):
        assert track.pass_text(same) is not None
    assert track.pass_text(same) is None
    track.feed([same])
    assert "garbage" in track.violations


def test_a_closing_tag_in_text_that_is_not_inspected_is_left_to_be_noted() -> None:
    track = StreamTrack(REQUEST, ReplyIdentity(), None)
    track.feed([compact(event({"content": "Hello"})), compact(event({"content": " there"}))])
    assert track.pass_text(compact(event({"content": "</think>"}))) is None


def test_text_of_a_choice_that_nobody_asked_for_is_no_pattern() -> None:
    track = StreamTrack(REQUEST, ReplyIdentity(), TOOLS_OFFERED)
    other = compact(event({"content": "Hello"}, index=1))
    track.feed([compact(event({"content": "Hello"})).replace(b"null", b"null "), other, other])
    assert track.pass_text(other) is None


def test_the_usage_of_an_event_that_differs_only_in_its_text_counts() -> None:
    """As of a server that names a usage in each event, and goes back to an earlier one."""
    track = StreamTrack(REQUEST, ReplyIdentity(), TOOLS_OFFERED)

    def used(text: str, tokens: int) -> bytes:
        return compact(event({"content": text})).replace(
            b'"choices"', b'"usage":{"total_tokens":%d},"choices"' % tokens
        )

    for one in (used("Hello", 1), used(" there", 2), used(" again", 1)):
        if track.pass_text(one) is None:
            track.feed([one])
    assert track.usage == {"total_tokens": 1}


def test_an_event_with_another_content_beside_its_text_is_no_pattern() -> None:
    """As of a server that writes a space behind one colon, and none behind the other."""
    track = StreamTrack(REQUEST, ReplyIdentity(), TOOLS_OFFERED)

    def odd(note: str) -> bytes:
        one = compact(event({"content": "Hello"})).replace(b'"content":"', b'"content": "')
        return one.replace(b'"choices"', b'"note":{"content":"%s"},"choices"' % note.encode())

    track.feed([odd("Hello"), odd("Hello")])
    assert track.pass_text(odd("other")) is None
