"""Every tool-call format, by the names of vLLM's `--tool-call-parser`.

To add a format: add a line with an instance of `Format`, and its aliases, to `_ALL` below: of a class that is there,
with other tags, or of a new subclass (base.py says what it must define; `KimiK2` in named.py is a short example). No
other code has to change: the patterns that find its markers are built from `Format.markers`. A format is tried if a
backend's `tool_parser` or a family of gateway/launch/families.py names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gateway.inspection.formats.base import Format, Parsed
from gateway.inspection.formats.dsml import Dsml, Step3
from gateway.inspection.formats.fenced import Fenced
from gateway.inspection.formats.gemma4 import Gemma4
from gateway.inspection.formats.json_calls import PYTHON_TAG, JsonCalls, Phi4MiniJson
from gateway.inspection.formats.minimax_m3 import MinimaxM3
from gateway.inspection.formats.named import DeepSeek, KimiK2, Mistral, OpenAi, OpenAiBare
from gateway.inspection.formats.pythonic import Lfm2, Olmo3, Pythonic
from gateway.inspection.formats.tagged import Glm45, KimiK3, Qwen3Xml

__all__ = ["FORMATS", "Format", "Parsed"]

_ALL: tuple[tuple[Format, tuple[str, ...]], ...] = (
    (JsonCalls("hermes", ("<tool_call>",), "</tool_call>"), ("qwen3_json", "granite4")),
    (JsonCalls("longcat", ("<longcat_tool_call>",), "</longcat_tool_call>"), ()),
    (JsonCalls("granite", ("<|tool_call|>", "<tool_call>"), "", fit=True), ()),
    (JsonCalls("internlm", ("<|action_start|><|plugin|>",), "<|action_end|>"), ()),
    (JsonCalls("jamba", ("<tool_calls>",), "</tool_calls>"), ("hunyuan_a13b",)),
    (Qwen3Xml("qwen3_xml", "tool_call"), ("qwen3_coder", "step3p5", "step5", "mimo")),
    (Qwen3Xml("seed_oss", "seed:tool_call"), ()),
    (Pythonic(), ("llama4_pythonic",)),
    (Olmo3(), ()),
    (Lfm2(), ()),
    (JsonCalls("llama3_json", (PYTHON_TAG,), bare=True, separators=";"), ("llama4_json",)),
    (Mistral(), ()),
    (Gemma4("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>'), ()),
    (Gemma4("functiongemma", "<start_function_call>", "<end_function_call>", "<escape>"), ()),
    (DeepSeek("deepseek_v3", names_type=True), ()),
    (DeepSeek("deepseek_v31", names_type=False), ()),
    (Dsml("deepseek_v32", "function_calls"), ()),
    (Dsml("deepseek_v4", "tool_calls", also=("toolcalls", "tool", "tool_use")), ()),  # it writes the others at times
    (Dsml("deepseek_v41", "calls", prefix="｜DSML｜ "), ()),
    (Glm45(), ("glm47", "ling3", "poolside_v1")),
    (KimiK2(), ()),
    (KimiK3(), ()),
    (JsonCalls("cohere_command4", ("<|START_ACTION|>",), "<|END_ACTION|>"), ("cohere_command3",)),
    (Dsml("minimax_m2", "minimax:tool_call", prefix="", arguments=()), ()),
    (MinimaxM3(), ()),
    (OpenAi(), ()),
    (OpenAiBare(), ()),
    (Dsml("invoke", "function_calls", prefix="", also=("tool_calls", "tool_call"), arguments=()), ()),  # Anthropic's
    (Dsml("antml", "function_calls", prefix="antml:", arguments=()), ()),
    (JsonCalls("tools", ("<tools>",), "</tools>"), ()),
    (JsonCalls("function_call", ("<function_call>",), "</function_call>"), ()),
    (JsonCalls("tool_request", ("[TOOL_REQUEST]",), "[END_TOOL_REQUEST]"), ()),  # LM Studio's default
    (Fenced("fenced", ("json", ""), only_at_start=True), ()),
    (Fenced("fenced_call", ("tool_call", "tool_calls", "tool_code", "function_call"), only_at_start=False), ()),
    (Phi4MiniJson(), ()),
    (Step3(), ()),
)

FORMATS: Mapping[str, Format] = MappingProxyType(
    {name: format_ for format_, aliases in _ALL for name in (format_.name, *aliases)}
)
"""Parser name → its format; aliases share one. Formats are stateless."""
