"""Every tool-call format, by the names of vLLM's `--tool-call-parser`.

To add a format: write a subclass of `Format` in a file of its own here (base.py describes what it must define;
hermes.py and kimi_k2.py are short examples), and add a line with an instance of it, and its aliases, to `_ALL` below.
No other code has to change: the patterns that find its markers are built from `Format.markers`. A format is tried if a
backend's `tool_parser` or a family of gateway/launch/families.py names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gateway.inspection.formats.base import Format, Parsed, ParsedCall
from gateway.inspection.formats.deepseek_v3 import DeepSeekV3
from gateway.inspection.formats.deepseek_v4 import DeepSeekV4, DeepSeekV41
from gateway.inspection.formats.deepseek_v31 import DeepSeekV31
from gateway.inspection.formats.deepseek_v32 import DeepSeekV32
from gateway.inspection.formats.functiongemma import FunctionGemma
from gateway.inspection.formats.gemma4 import Gemma4
from gateway.inspection.formats.glm45 import Glm45
from gateway.inspection.formats.hermes import Hermes
from gateway.inspection.formats.kimi_k2 import KimiK2
from gateway.inspection.formats.kimi_k3 import KimiK3
from gateway.inspection.formats.llama3_json import Llama3Json
from gateway.inspection.formats.minimax_m2 import MinimaxM2
from gateway.inspection.formats.minimax_m3 import MinimaxM3
from gateway.inspection.formats.mistral import Mistral
from gateway.inspection.formats.olmo3 import Olmo3
from gateway.inspection.formats.openai import OpenAi
from gateway.inspection.formats.phi4_mini_json import Phi4MiniJson
from gateway.inspection.formats.pythonic import Pythonic
from gateway.inspection.formats.qwen3_xml import Qwen3Xml
from gateway.inspection.formats.step3 import Step3

__all__ = ["FORMATS", "Format", "Parsed", "ParsedCall"]

_ALL: tuple[tuple[Format, tuple[str, ...]], ...] = (
    (Hermes(), ("qwen3_json", "granite4")),
    (Hermes("longcat", ("<longcat_tool_call>",), "</longcat_tool_call>"), ()),
    (Hermes("granite", ("<|tool_call|>", "<tool_call>"), "", fit=True), ()),
    (Hermes("internlm", ("<|action_start|><|plugin|>",), "<|action_end|>"), ()),
    (Hermes("jamba", ("<tool_calls>",), "</tool_calls>"), ("hunyuan_a13b",)),
    (Qwen3Xml(), ("qwen3_coder", "step3p5", "step5", "mimo")),
    (Qwen3Xml("seed_oss", tag="seed:tool_call"), ()),
    (Pythonic(), ("llama4_pythonic",)),
    (Olmo3(), ()),
    (Llama3Json(), ("llama4_json",)),
    (Mistral(), ()),
    (Gemma4(), ()),
    (FunctionGemma(), ()),
    (DeepSeekV3(), ()),
    (DeepSeekV31(), ()),
    (DeepSeekV32(), ()),
    (DeepSeekV4(), ()),
    (DeepSeekV41(), ()),
    (Glm45(), ("glm47", "ling3", "poolside_v1")),
    (KimiK2(), ()),
    (KimiK3(), ()),
    (Hermes("cohere_command4", ("<|START_ACTION|>",), "<|END_ACTION|>"), ("cohere_command3",)),
    (MinimaxM2(), ()),
    (MinimaxM3(), ()),
    (OpenAi(), ()),
    (Phi4MiniJson(), ()),
    (Step3(), ()),
)

FORMATS: Mapping[str, Format] = MappingProxyType(
    {name: format_ for format_, aliases in _ALL for name in (format_.name, *aliases)}
)
"""Parser name → its format; aliases share one. Formats are stateless."""
