"""vLLM plugin: the reasoning parser that a request's `chat_template_kwargs` name (`reasoner`), else none. For an engine
that several front ends share: it has to know where thoughts end, because a grammar begins only there."""

# Runs in vLLM's environment, not in ours.
# mypy: disable-error-code="import-not-found,misc"
from __future__ import annotations

from typing import Any

from vllm.reasoning import ReasoningParser, ReasoningParserManager
from vllm.reasoning.identity_reasoning_parser import IdentityReasoningParser


@ReasoningParserManager.register_module("as_told")
class AsTold(ReasoningParser):
    def __new__(cls, tokenizer: Any, *args: Any, **kwargs: Any) -> Any:
        name = (kwargs.get("chat_template_kwargs") or {}).get("reasoner")
        parser = IdentityReasoningParser if name is None else ReasoningParserManager.get_reasoning_parser(name)
        return parser(tokenizer, *args, **kwargs)
