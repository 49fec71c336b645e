"""Writes gateway/launch/vllm_flags.json: the flags of `vllm serve`, read off the parser of an installed vLLM.

Run with the Python of an environment that has vLLM (tests/vllm/install.sh makes one): `make vllm-flags`. The names of
its parsers of calls and thoughts are in gateway/config/suggest.py. vLLM hides the type of many flags behind wrappers:
a flag's type is found out by giving its reader sample values. The numbers that a flag takes stand in the classes of
vLLM's settings, which check them after the parser.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from typing import Any

_NEGATED = ("BooleanOptionalAction", "EnableDisableAction")  # have a --no- form
SWITCHES = ("_StoreTrueAction", "_StoreFalseAction", *_NEGATED)
_OPPOSITES = {"enable-": "disable-", "disable-": "enable-"}
_PARSER_AT = (  # it moved between versions, the newest first
    "vllm.entrypoints.common.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.openai.cli_args",
)


_BOUNDS = {"ge": "least", "gt": "above", "le": "most", "lt": "below"}  # pydantic's names -> those of `Flag`


def main() -> None:
    vllm = import_module("vllm")
    settings = _recorded_settings()
    actions = [action for action in _actions() if _is_flag(action)]
    rows = ",\n".join(json.dumps({**_flag(action), **_bounds(action, settings)}) for action in actions)
    sys.stdout.write(f'{{"version": "{vllm.__version__}", "flags": [\n{rows}\n]}}\n')


def _actions() -> list[argparse.Action]:
    parser_class = import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
    for name in _PARSER_AT:
        try:
            made = import_module(name).make_arg_parser(parser_class(prog="vllm serve"))
        except ModuleNotFoundError:
            continue
        return list(made._actions)
    raise SystemExit("this vLLM keeps its argument parser elsewhere: add its module to _PARSER_AT")


def _recorded_settings() -> list[type]:
    """The classes of vLLM's settings in the order in which its parser asks them for flags; filled when the parser is
    made."""
    module = import_module("vllm.engine.arg_utils")
    found: list[type] = []
    original = module.get_kwargs

    def recorded(settings: type) -> Any:
        found.append(settings)
        return original(settings)

    setattr(module, "get_kwargs", recorded)  # noqa: B010  (a module of vLLM, of which mypy knows nothing)
    return found


def _bounds(action: argparse.Action, settings: list[type]) -> dict[str, float]:
    """The numbers that the flag takes. Where several classes have a field of its name, the first one is the engine's:
    that of speculative decoding, which repeats some names, comes last."""
    fields = (getattr(one, "__pydantic_fields__", {}).get(action.dest) for one in settings)
    field = next((field for field in fields if field is not None and field.metadata), None)
    found: dict[str, float] = {}
    for limit in field.metadata if field is not None else ():
        found |= {name: bound for key, name in _BOUNDS.items() if (bound := getattr(limit, key, None)) is not None}
    if "above" in found and _kind(action) != "number":
        found["least"] = found.pop("above") + 1
    if _kind(action) == "count or auto":  # -1 stands for auto, and vLLM refuses 0 when it has found the model's window
        found["least"] = 1
    return found


def _is_flag(action: argparse.Action) -> bool:
    return bool(action.option_strings) and "--help" not in action.option_strings


def _flag(action: argparse.Action) -> dict[str, Any]:
    """The fields of `Flag` (gateway/launch/flags.py) that differ from their defaults."""
    long = [name for name in action.option_strings if name.startswith("--")]
    short = [name for name in action.option_strings if not name.startswith("--")]
    row: dict[str, Any] = {"name": long[0].removeprefix("--"), "kind": _kind(action)}
    if short:
        row["short"] = short
    if type(action).__name__ in _NEGATED:
        row["negated"] = True
    elif also := [name.removeprefix("--") for name in long[1:]]:
        row["also"] = also
    for prefix, other in _OPPOSITES.items():
        opposite = other + row["name"].removeprefix(prefix)
        if f"--{opposite}" in long[1:]:
            row["opposite"] = opposite
    choices = [choice for choice in _choices(action) if choice is not None]
    if choices:
        row["choices"] = sorted(choices, key=str)
        if (
            callable(action.type)
            and isinstance(choices[0], str)
            and _reads(action.type, str(choices[0]).upper().replace("_", "-")) == choices[0]
        ):
            row["folded"] = True  # capitals and dashes are read as small letters and underscores
    if action.nargs in ("+", "*"):
        row["many"] = True
    if type(action).__name__ == "_AppendAction":
        row["repeated"] = True
    if action.nargs == "?":
        row["optional"] = True
    return row


def _choices(action: argparse.Action) -> list[Any]:
    """The values that the flag takes; empty = any. Those of the cache's type are checked behind the parser, because
    platforms add theirs. One way to exchange tokens between experts is known to the settings, and taken out of the
    parser's choices: no error is made of it."""
    if action.dest == "all2all_backend":
        return sorted({*(action.choices or ()), "passthrough"})
    if action.dest == "kv_cache_dtype" and not action.choices:
        return list(getattr(import_module("vllm.config.cache"), "KV_CACHE_DTYPES", ()))
    return list(action.choices or ())


def _kind(action: argparse.Action) -> str:
    if type(action).__name__ in SWITCHES:
        return "switch"
    read = action.type
    if not callable(read) or (action.choices and not isinstance(next(iter(action.choices)), int)):
        return "text"
    if isinstance(_reads(read, '{"a": 1}'), dict) or isinstance(_reads(read, '["a"]'), list):
        return "json or text" if _reads(read, "some-word") == "some-word" else "json"
    if _reads(read, "some-word") == "some-word":
        return "text"
    if _reads(read, "auto") == -1:
        return "count or auto"
    if _reads(read, "1.5") == 1.5:
        return "number"
    if _reads(read, "7") == 7:
        return "count" if _reads(read, "2k") == 2000 else "integer"
    return "json"


def _reads(read: Any, text: str) -> Any:
    """What the flag's reader makes of the text; None when it refuses."""
    try:
        return read(text)
    except Exception:
        return None


if __name__ == "__main__":
    main()
