"""The tokens of a prompt, and the text of tokens: `/tokenize` and `/detokenize`."""

PATHS = frozenset({"tokenize", "detokenize"})
