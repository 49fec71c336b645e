"""Step 3: `<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="..."><steptml:parameter name="...">...` in
`<｜tool_calls_begin｜>`."""

from __future__ import annotations

from gateway.inspection.cursor import Cursor
from gateway.inspection.formats.base import SPACED, ParsedCall, literal, several
from gateway.inspection.formats.dsml import Dsml
from gateway.inspection.offered_tools import OfferedTools

CALLS, CALLS_END = "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"
CALL, CALL_END, SEPARATOR = "<｜tool_call_begin｜>", "<｜tool_call_end｜>", "<｜tool_sep｜>"


class Step3(Dsml):
    """DeepSeek's DSML with a prefix of its own, in wrappers that look like DeepSeek V3's. Each of these may be
    missing."""

    def __init__(self) -> None:
        super().__init__("step3", "invokes", prefix="steptml:", arguments=())
        self.markers = (CALLS, CALL, self._invoke)
        self.closers = (CALLS_END, CALL_END, self._invoke_end)

    def follow(self, marker: str) -> str:
        invoke = SPACED + literal(self._invoke) + self._invoked
        function = SPACED + literal("function") + SPACED + literal(SEPARATOR) + invoke
        if marker == CALLS:
            return f"{SPACED}(?:{literal(CALL)}{function}|{literal(self._invoke)}{self._invoked})"
        return function if marker == CALL else self._invoked

    def read(self, cursor: Cursor, tools: OfferedTools) -> list[ParsedCall]:
        if not cursor.skip(CALLS):
            return [self._wrapped(cursor, tools)]
        cursor.space()
        return several(cursor, lambda: self._wrapped(cursor, tools), lambda: cursor.close(CALLS_END))

    def _wrapped(self, cursor: Cursor, tools: OfferedTools) -> ParsedCall:
        wrapped = cursor.skip(CALL)
        if wrapped:
            cursor.space()
            cursor.expect("function")
            cursor.space()
            cursor.expect(SEPARATOR)
            cursor.space()
        call = self._call(cursor, tools)
        if wrapped:
            cursor.close(CALL_END)
        return call
