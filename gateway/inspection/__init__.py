"""Inspection of backends' answers: they are checked, and tool calls and thoughts that leaked into the text are
mended."""
