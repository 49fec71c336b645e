"""Every tool-call format that the gateway knows, as a model of the family writes it: get_weather for Oslo."""

from __future__ import annotations

from dataclasses import dataclass

ARGUMENTS = {"city": "Oslo"}
_JSON = '{"city": "Oslo"}'
_ARGUMENTS = f'{{"name": "get_weather", "arguments": {_JSON}}}'


@dataclass(frozen=True)
class Written:
    """`text`: one call. `model`: a name by which its family is known. `parser`: vLLM's `--tool-call-parser` for it;
    `also`: others that read it."""

    model: str
    parser: str
    text: str
    also: tuple[str, ...] = ()


_XML = "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"


def _dsml(section: str) -> str:
    parameter = '<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>'
    invoke = f'<｜DSML｜invoke name="get_weather">\n{parameter}\n</｜DSML｜invoke>'
    return f"<｜DSML｜{section}>\n{invoke}\n</｜DSML｜{section}>"


def _deepseek(call: str) -> str:
    return f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"


def _kimi(call: str) -> str:
    inside = f"<|tool_call_begin|>functions.{call}:0<|tool_call_argument_begin|>{_JSON}<|tool_call_end|>"
    return f"<|tool_calls_section_begin|>{inside}<|tool_calls_section_end|>"


WRITTEN: dict[str, Written] = {
    "hermes": Written("Qwen3-32B", "hermes", f"<tool_call>\n{_ARGUMENTS}\n</tool_call>"),
    "qwen3_xml": Written("Qwen3.6-35B-A3B", "qwen3_xml", _XML, also=("qwen3_coder", "step3p5")),
    "qwen3_coder": Written("Qwen3-Coder-30B-A3B-Instruct", "qwen3_coder", _XML, also=("qwen3_xml",)),
    "pythonic": Written("gemma-4-26B-A4B-it", "pythonic", "[get_weather(city='Oslo')]"),
    "llama3_json": Written("Llama-3.3-70B", "llama3_json", '{"name": "get_weather", "parameters": {"city": "Oslo"}}'),
    "mistral": Written("Mistral-Small-3.2-24B", "mistral", "[TOOL_CALLS]get_weather[ARGS]" + _JSON),
    "gemma4": Written("gemma-4-31B-it", "gemma4", '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>}<tool_call|>'),
    "functiongemma": Written(
        "functiongemma-270m-it",
        "functiongemma",
        "<start_function_call>call:get_weather{city:<escape>Oslo<escape>}<end_function_call>",
    ),
    "deepseek_v3": Written(
        "DeepSeek-V3-0324", "deepseek_v3", _deepseek(f"function<｜tool▁sep｜>get_weather\n```json\n{_JSON}\n```")
    ),
    "deepseek_v31": Written("DeepSeek-V3.1", "deepseek_v31", _deepseek("get_weather<｜tool▁sep｜>" + _JSON)),
    "deepseek_v32": Written("DeepSeek-V3.2", "deepseek_v32", _dsml("function_calls")),
    "deepseek_v4": Written("DeepSeek-V4-Flash", "deepseek_v4", _dsml("tool_calls")),
    "glm45": Written(  # GLM-4.5 writes newlines in it, but vLLM 0.32 forces this on all of them, with auto too
        "GLM-4.5-Air",
        "glm45",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>",
        also=("glm47",),
    ),
    "kimi_k2": Written("Kimi-K2-Instruct", "kimi_k2", _kimi("get_weather")),
    "minimax_m2": Written(
        "MiniMax-M2",
        "minimax_m2",
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Oslo</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
    ),
    "phi4_mini_json": Written("Phi-4-mini-instruct", "phi4_mini_json", f"functools[{_ARGUMENTS}]"),
}

THINKERS = {
    "qwen3": "Qwen3-8B",
    "deepseek_r1": "DeepSeek-R1-0528",
    "deepseek_v4": "DeepSeek-V4-Flash",
    "gemma4": "gemma-4-31B-it",
    "mistral": "Magistral-Small-2509",
}
"""By `--reasoning-parser`: a model of a family that marks its thoughts so."""

MODELS = ("tiny", *dict.fromkeys([*(written.model for written in WRITTEN.values()), *THINKERS.values()]))
"""The names that the front ends serve: by its name the gateway knows how a model writes."""
