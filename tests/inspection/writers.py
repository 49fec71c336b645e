"""Tool calls written as the models of each format write them: texts for tests, and what must be read from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Call = tuple[str, dict[str, Any]]
DSML = "｜DSML｜"


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def as_text(value: Any) -> str:
    """A value between tags: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else as_json(value)


def named(call: Call, arguments: str = "arguments") -> dict[str, Any]:
    return {"name": call[0], arguments: call[1]}


def each(write: Callable[[Call], str], between: str = "\n") -> Callable[[Sequence[Call]], str]:
    return lambda calls: between.join(map(write, calls))


def tagged(opening: str, closing: str) -> Callable[[Sequence[Call]], str]:
    """JSON objects, each in a tag."""
    return each(lambda call: f"{opening}\n{as_json(named(call))}\n{closing}")


def xml(tag: str) -> Callable[[Sequence[Call]], str]:
    def write(call: Call) -> str:
        parts = [f"<parameter={key}>\n{as_text(value)}\n</parameter>\n" for key, value in call[1].items()]
        return f"<{tag}>\n<function={call[0]}>\n{''.join(parts)}</function>\n</{tag}>"

    return each(write)


def python(value: Any) -> str:
    return repr(value)


def python_call(call: Call) -> str:
    return f"{call[0]}({', '.join(f'{key}={python(value)}' for key, value in call[1].items())})"


def gemma(quote: str) -> Callable[[Any], str]:
    def value_of(value: Any) -> str:
        if isinstance(value, str):
            return f"{quote}{value}{quote}"
        if isinstance(value, dict):
            return "{" + ",".join(f"{key}:{value_of(item)}" for key, item in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(value_of, value)) + "]"
        return as_json(value)

    return value_of


def gemma_call(opening: str, closing: str, quote: str) -> Callable[[Sequence[Call]], str]:
    return each(lambda call: f"{opening}call:{call[0]}{gemma(quote)(call[1])}{closing}", "")


def deepseek(head: Callable[[Call], str], tail: str = "") -> Callable[[Sequence[Call]], str]:
    def write(calls: Sequence[Call]) -> str:
        parts = [f"<｜tool▁call▁begin｜>{head(call)}{as_json(call[1])}{tail}<｜tool▁call▁end｜>" for call in calls]
        return f"<｜tool▁calls▁begin｜>{''.join(parts)}<｜tool▁calls▁end｜>"

    return write


def invokes(wrapper: str, prefix: str = "", told: bool = False) -> Callable[[Sequence[Call]], str]:
    def argument(key: str, value: Any) -> str:
        string = f' string="{"true" if isinstance(value, str) else "false"}"' if told else ""
        return f'<{prefix}parameter name="{key}"{string}>{as_text(value)}</{prefix}parameter>\n'

    def invoke(call: Call) -> str:
        arguments = "".join(argument(*item) for item in call[1].items())
        return f'<{prefix}invoke name="{call[0]}">\n{arguments}</{prefix}invoke>\n'

    return lambda calls: f"<{prefix}{wrapper}>\n{''.join(map(invoke, calls))}</{prefix}{wrapper}>"


def glm(call: Call) -> str:
    parts = [f"<arg_key>{k}</arg_key>\n<arg_value>{as_text(v)}</arg_value>\n" for k, v in call[1].items()]
    return f"<tool_call>{call[0]}\n{''.join(parts)}</tool_call>"


def kimi(calls: Sequence[Call]) -> str:
    parts = [
        f"<|tool_call_begin|>functions.{name}:{i}<|tool_call_argument_begin|>{as_json(arguments)}<|tool_call_end|>"
        for i, (name, arguments) in enumerate(calls)
    ]
    return f"<|tool_calls_section_begin|>{''.join(parts)}<|tool_calls_section_end|>"


def minimax_m3(calls: Sequence[Call]) -> str:
    sign = "]<]minimax[>["
    parts = []
    for name, arguments in calls:
        inner = "".join(f"{sign}<{key}>{as_text(value)}{sign}</{key}>" for key, value in arguments.items())
        parts.append(f'{sign}<invoke name="{name}">{inner}{sign}</invoke>')
    return f"{sign}<tool_call>{''.join(parts)}{sign}</tool_call>"


def step3(calls: Sequence[Call]) -> str:
    parts = []
    for name, arguments in calls:
        inner = "".join(
            f'<steptml:parameter name="{key}">{as_text(value)}</steptml:parameter>' for key, value in arguments.items()
        )
        invoke = f'<steptml:invoke name="{name}">{inner}</steptml:invoke>'
        parts.append(f"<｜tool_call_begin｜>function<｜tool_sep｜>{invoke}<｜tool_call_end｜>")
    return f"<｜tool_calls_begin｜>{''.join(parts)}<｜tool_calls_end｜>"


def kimi_k3(call: Call) -> str:
    def argument(key: str, value: Any) -> str:
        kind = "string" if isinstance(value, str) else "object"
        return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{as_text(value)}<|close|>argument<|sep|>'

    parts = "".join(argument(key, value) for key, value in call[1].items())
    return f'<|open|>call tool="{call[0]}" index="1"<|sep|>{parts}<|close|>call<|sep|>'


def cohere(calls: Sequence[Call]) -> str:
    made = [{"tool_call_id": str(i), "tool_name": name, "parameters": given} for i, (name, given) in enumerate(calls)]
    return f"<|START_ACTION|>{as_json(made)}<|END_ACTION|>"


WRITERS: Mapping[str, Callable[[Sequence[Call]], str]] = {
    "hermes": tagged("<tool_call>", "</tool_call>"),
    "longcat": tagged("<longcat_tool_call>", "</longcat_tool_call>"),
    "granite": lambda calls: f"<|tool_call|>{as_json([named(call) for call in calls])}",
    "internlm": each(
        lambda call: f"<|action_start|><|plugin|>\n{as_json(named(call, 'parameters'))}<|action_end|>\n", ""
    ),
    "jamba": lambda calls: f"<tool_calls>{as_json([named(call) for call in calls])}</tool_calls>",
    "olmo3": lambda calls: "<function_calls>" + "\n".join(map(python_call, calls)) + "</function_calls>",
    "lfm2": lambda calls: f"<|tool_call_start|>[{', '.join(map(python_call, calls))}]<|tool_call_end|>",
    "openai": each(
        lambda call: (
            f"<|start|>assistant<|channel|>commentary to=functions.{call[0]} <|constrain|>json<|message|>"
            f"{as_json(call[1])}<|call|>"
        ),
        "",
    ),
    "openai_bare": each(lambda call: f"commentary to=functions.{call[0]} json{as_json(call[1])}", ""),
    "invoke": invokes("function_calls"),
    "antml": invokes("function_calls", "antml:"),
    "tools": tagged("<tools>", "</tools>"),
    "function_call": tagged("<function_call>", "</function_call>"),
    "tool_request": tagged("[TOOL_REQUEST]", "[END_TOOL_REQUEST]"),
    "fenced": tagged("```json", "```"),
    "fenced_call": tagged("```tool_call", "```"),
    "qwen3_xml": xml("tool_call"),
    "seed_oss": xml("seed:tool_call"),
    "pythonic": lambda calls: f"[{', '.join(map(python_call, calls))}]",
    "llama3_json": each(lambda call: as_json(named(call, "parameters")), "; "),
    "mistral": each(lambda call: f"[TOOL_CALLS]{call[0]}[ARGS]{as_json(call[1])}", ""),
    "gemma4": gemma_call("<|tool_call>", "<tool_call|>", '<|"|>'),
    "functiongemma": gemma_call("<start_function_call>", "<end_function_call>", "<escape>"),
    "deepseek_v3": deepseek(lambda call: f"function<｜tool▁sep｜>{call[0]}\n```json\n", "\n```"),
    "deepseek_v31": deepseek(lambda call: f"{call[0]}<｜tool▁sep｜>"),
    "deepseek_v32": invokes("function_calls", DSML, told=True),
    "deepseek_v4": invokes("tool_calls", DSML, told=True),
    "deepseek_v41": invokes("calls", f"{DSML} ", told=True),
    "glm45": each(glm),
    "kimi_k2": kimi,
    "kimi_k3": lambda calls: f"<|open|>tools<|sep|>{''.join(map(kimi_k3, calls))}<|close|>tools<|sep|>",
    "cohere_command4": cohere,
    "minimax_m2": invokes("minimax:tool_call"),
    "minimax_m3": minimax_m3,
    "step3": step3,
    "phi4_mini_json": lambda calls: f"functools{as_json([named(call) for call in calls])}",
}
"""By a format's name: one or more calls, in one wrapper where the format has one for several."""
