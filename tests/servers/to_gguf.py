"""A model of Hugging Face's format as GGUF, by llama.cpp's own converter. usage: to_gguf.py LLAMA_CPP MODEL OUT.gguf

The converter tells pre-tokenizers by a hash, which it cannot know of a tokenizer that was trained here: it is GPT-2's.
"""

# Runs in the environment of the real servers, not in ours.
# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import importlib
import runpy
import sys


def main(llama_cpp: str, model: str, out: str) -> None:
    sys.path[:0] = [llama_cpp, llama_cpp + "/gguf-py"]
    base = importlib.import_module("conversion.base")
    for converter in vars(base).values():
        if isinstance(converter, type) and "get_vocab_base_pre" in vars(converter):
            converter.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"  # type: ignore[attr-defined]
    sys.argv = ["convert_hf_to_gguf.py", model, "--outfile", out, "--outtype", "f16"]
    runpy.run_path(llama_cpp + "/convert_hf_to_gguf.py", run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
