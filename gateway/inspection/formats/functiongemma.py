"""FunctionGemma, as Gemma 4 but for the tags:
`<start_function_call>call:NAME{key:<escape>text<escape>}<end_function_call>`."""

from __future__ import annotations

from gateway.inspection.formats.gemma4 import Gemma4


class FunctionGemma(Gemma4):
    name = "functiongemma"
    opening, closing, quote = "<start_function_call>", "<end_function_call>", "<escape>"
