"""What backends answer, judged and mended: tool calls and thoughts that leaked into the text."""
