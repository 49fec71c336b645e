"""How each model family writes a tool call as raw text, and how a parser of that name reads it back.

Shapes from vLLM 0.32's own parsers. Simplified where a well-behaved model makes no difference on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from simulator.readers import (
    Arguments,
    Call,
    Reader,
    Schemas,
    dumps,
    gemma_reader,
    gemma_writer,
    parameter_reader,
    pattern_reader,
    plain,
    read_hermes,
    read_llama,
    read_mistral,
    read_phi,
    read_pythonic,
)


@dataclass(frozen=True, slots=True)
class Format:
    """`opening` starts a region of calls and `closing` ends it ("" = the rest of the text; an opening of one character
    counts only at the very start of the answer). What a parser makes of a region it can't read: `raw` = the text stays
    content without stream and is lost in a stream (hermes), `silent` = it is lost in both."""

    opening: str
    closing: str
    write: Callable[[str, Arguments], str]
    read: Reader
    joiner: str = "\n"
    prefix: str = ""
    suffix: str = ""
    unreadable: Literal["raw", "silent"] = "silent"
    one_delta: bool = False  # name and arguments in the first delta
    strips_content: bool = True  # white space around the content beside a call is lost
    null_content: bool = False  # `"content": null` beside tool-call deltas
    keeps_markup_on_none: bool = False  # tool_choice none leaves the markup in content
    enforced: bool = True  # tool_choice required / named is enforced by a grammar
    salvages_cut: bool = True  # a call cut by max_tokens comes out with the arguments it had

    def render(self, calls: list[tuple[str, Arguments]]) -> str:
        """The raw text of these calls, as the family writes it."""
        return self.prefix + self.joiner.join(self.write(n, a) for n, a in calls) + self.suffix


def _dsml(section: str) -> Format:
    def write(name: str, arguments: Arguments) -> str:
        lines = [f'<｜DSML｜invoke name="{name}">']
        for key, value in arguments.items():
            is_text = str(isinstance(value, str)).lower()
            lines.append(f'<｜DSML｜parameter name="{key}" string="{is_text}">{plain(value)}</｜DSML｜parameter>')
        return "\n".join([*lines, "</｜DSML｜invoke>"])

    return Format(
        opening=f"<｜DSML｜{section}>",
        strips_content=False,
        closing=f"</｜DSML｜{section}>",
        prefix=f"<｜DSML｜{section}>\n",
        suffix=f"\n</｜DSML｜{section}>",
        write=write,
        read=parameter_reader(
            r'<｜DSML｜invoke name="(?P<name>[^"]+)">(?P<body>.*?)(?P<end></｜DSML｜invoke>|\Z)',
            r'<｜DSML｜parameter name="(?P<key>[^"]+)"[^>]*>(?P<value>.*?)(?:</｜DSML｜parameter>|\Z)',
        ),
    )


_XML = Format(
    opening="<tool_call>",
    closing="</tool_call>",
    write=lambda name, arguments: (
        f"<tool_call>\n<function={name}>\n"
        + "".join(f"<parameter={k}>\n{plain(v)}\n</parameter>\n" for k, v in arguments.items())
        + "</function>\n</tool_call>"
    ),
    read=parameter_reader(
        r"<function=(?P<name>[^>]+)>(?P<body>.*?)(?P<end></function>|\Z)",
        r"<parameter=(?P<key>[^>]+)>\n?(?P<value>.*?)\n?(?:</parameter>|\Z)",
    ),
)
_HERMES = Format(
    opening="<tool_call>",
    closing="</tool_call>",
    write=lambda name, arguments: f"<tool_call>\n{dumps({'name': name, 'arguments': arguments})}\n</tool_call>",
    read=read_hermes,
    unreadable="raw",
    null_content=True,
    strips_content=False,
    keeps_markup_on_none=True,
    salvages_cut=False,
)
_GLM = Format(
    opening="<tool_call>",
    closing="</tool_call>",
    write=lambda name, arguments: (
        f"<tool_call>{name}\n"
        + "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{plain(v)}</arg_value>\n" for k, v in arguments.items())
        + "</tool_call>"
    ),
    read=parameter_reader(
        r"<tool_call>(?P<name>[\w.-]+)\s*(?P<body>.*?)(?P<end></tool_call>|\Z)",
        r"<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)(?:</arg_value>|\Z)",
    ),
)
_DEEPSEEK_V3 = Format(
    opening="<｜tool▁calls▁begin｜>",
    strips_content=False,
    closing="<｜tool▁calls▁end｜>",
    prefix="<｜tool▁calls▁begin｜>",
    suffix="<｜tool▁calls▁end｜>",
    write=lambda name, arguments: (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{dumps(arguments)}\n```<｜tool▁call▁end｜>"
    ),
    read=pattern_reader(
        r"<｜tool▁call▁begin｜>function<｜tool▁sep｜>(?P<name>[^\n]+)\n```json\n(?P<args>.*?)(?P<end>\n```<｜tool▁call▁end｜>|\Z)"
    ),
)
_DEEPSEEK_V31 = Format(
    opening="<｜tool▁calls▁begin｜>",
    strips_content=False,
    closing="<｜tool▁calls▁end｜>",
    prefix="<｜tool▁calls▁begin｜>",
    suffix="<｜tool▁calls▁end｜>",
    joiner="",
    write=lambda name, arguments: f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{dumps(arguments)}<｜tool▁call▁end｜>",
    read=pattern_reader(
        r"<｜tool▁call▁begin｜>(?P<name>[^<]+)<｜tool▁sep｜>(?P<args>.*?)(?P<end><｜tool▁call▁end｜>|\Z)"
    ),
)
_KIMI = Format(
    opening="<|tool_calls_section_begin|>",
    closing="<|tool_calls_section_end|>",
    prefix="<|tool_calls_section_begin|>",
    suffix="<|tool_calls_section_end|>",
    joiner="",
    write=lambda name, arguments: (
        f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{dumps(arguments)}<|tool_call_end|>"
    ),
    read=pattern_reader(
        r"<\|tool_call_begin\|>functions\.(?P<name>[\w.-]+):\d+<\|tool_call_argument_begin\|>"
        r"(?P<args>.*?)(?P<end><\|tool_call_end\|>|\Z)"
    ),
)
_MINIMAX = Format(
    opening="<minimax:tool_call>",
    closing="</minimax:tool_call>",
    prefix="<minimax:tool_call>\n",
    suffix="\n</minimax:tool_call>",
    write=lambda name, arguments: (
        f'<invoke name="{name}">\n'
        + "".join(f'<parameter name="{k}">{plain(v)}</parameter>\n' for k, v in arguments.items())
        + "</invoke>"
    ),
    read=parameter_reader(
        r'<invoke name="(?P<name>[^"]+)">(?P<body>.*?)(?P<end></invoke>|\Z)',
        r'<parameter name="(?P<key>[^"]+)">(?P<value>.*?)(?:</parameter>|\Z)',
    ),
)
_PYTHONIC = Format(
    opening="[",
    closing="",
    write=lambda name, arguments: f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})",
    prefix="[",
    suffix="]",
    joiner=", ",
    read=read_pythonic,
    unreadable="raw",
    one_delta=True,
    keeps_markup_on_none=True,
)
_LLAMA = Format(
    opening="{",
    closing="",
    write=lambda name, arguments: dumps({"name": name, "parameters": arguments}),
    joiner="; ",
    read=read_llama,
    unreadable="raw",
    one_delta=True,
    keeps_markup_on_none=True,
)
_PHI = Format(
    opening="functools",
    closing="",
    write=lambda name, arguments: dumps({"name": name, "arguments": arguments}),
    prefix="functools[",
    suffix="]",
    joiner=", ",
    read=read_phi,
    unreadable="raw",
    one_delta=True,
    keeps_markup_on_none=True,
)
_MISTRAL = Format(
    opening="[TOOL_CALLS]",
    closing="",
    write=lambda name, arguments: f"[TOOL_CALLS]{name}[ARGS]{dumps(arguments)}",
    joiner="",
    read=read_mistral,
    unreadable="raw",
)
_GEMMA = Format(
    opening="<|tool_call>",
    closing="<tool_call|>",
    write=gemma_writer("<|tool_call>", "<tool_call|>", '<|"|>'),
    read=gemma_reader("<|tool_call>", "<tool_call|>", '<|"|>'),
    joiner="",
    enforced=False,
)
_FUNCTIONGEMMA = Format(
    opening="<start_function_call>",
    closing="<end_function_call>",
    write=gemma_writer("<start_function_call>", "<end_function_call>", "<escape>"),
    read=gemma_reader("<start_function_call>", "<end_function_call>", "<escape>"),
    joiner="",
)

FORMATS: Mapping[str, Format] = {
    "hermes": _HERMES,
    "qwen3_json": _HERMES,
    "qwen3_xml": _XML,
    "qwen3_coder": _XML,
    "step3p5": _XML,
    "poolside_v1": Format(_XML.opening, _XML.closing, _XML.write, _XML.read, enforced=False),
    "glm45": _GLM,
    "glm47": _GLM,
    "pythonic": _PYTHONIC,
    "llama3_json": _LLAMA,
    "llama4_json": _LLAMA,
    "phi4_mini_json": _PHI,
    "mistral": _MISTRAL,
    "gemma4": _GEMMA,
    "functiongemma": _FUNCTIONGEMMA,
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseek_v31": _DEEPSEEK_V31,
    "deepseek_v32": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "kimi_k2": _KIMI,
    "minimax_m2": _MINIMAX,
}


def format_of(name: str) -> Format:
    """The format of a `--tool-call-parser` name. Raises ValueError with the known names."""
    try:
        return FORMATS[name]
    except KeyError:
        raise ValueError(f"unknown tool parser '{name}'; the simulator knows {', '.join(sorted(FORMATS))}") from None


__all__ = ["FORMATS", "Call", "Format", "Schemas", "format_of"]
