"""What upstream answers, put where it belongs: tool calls and thoughts that leaked into the text. No I/O in here."""
