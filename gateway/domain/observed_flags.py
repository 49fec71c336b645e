"""The flags that an engine runs with, as far as its `/metrics` tell them (gateway/engines/vllm.py reads
them), and where they differ from the launch block of its backend. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isclose
from typing import Any

from gateway.config.snapshot import Backend
from gateway.launch.command import with_changes

FlagValue = bool | int | float | str | None

POSITIONS_MOST = 64  # positions of a draft that are counted apart
DRAFTED = "spec-tokens"  # tokens that are drafted at a time; 0 = none are
_SAME_DTYPE = {"fp8_e4m3": "fp8", "fp8_inc": "fp8", "bfloat16": "auto", "float16": "auto"}


@dataclass(frozen=True, slots=True)
class ObservedFlags:
    """What an engine reports of its own command line.

    `values`: name -> value, by the names of vLLM's flags without dashes; None = the engine runs without that flag.
    Some are no flags but what follows from them: `num-gpu-blocks`, `kv-cache-size-tokens`, `kv-cache-max-concurrency`.
    `settled`: flags whose value the engine may have settled itself, whatever its command line says."""

    values: Mapping[str, FlagValue] = field(default_factory=dict)
    settled: frozenset[str] = frozenset()


def flag_drift(backend: Backend, observed: ObservedFlags | None) -> tuple[str, ...]:
    """The differences in words, one for each flag. A flag that is not written, or left to the engine (`auto`), differs
    from nothing; the values of the backend's profiles are as good as those of its command."""
    launch = backend.launch
    if launch is None or observed is None:
        return ()
    profiles = (with_changes(launch.parsed, profile).flags for profile in backend.profiles.values())
    return tuple(_differences([launch.parsed.flags, *profiles], observed))


def _differences(declared: list[Mapping[str, Any]], observed: ObservedFlags) -> Iterator[str]:
    for flag, seen in observed.values.items():
        if flag in observed.settled or flag == DRAFTED:
            continue
        written = [flags.get(flag) for flags in declared]
        if not any(_agrees(flag, value, seen) for value in written):
            without = f"it runs with {_text(seen)}" if seen is not None else "it runs without"
            yield f"{flag}: {_listed(written)} is declared, {without}"
    seen = observed.values.get(DRAFTED)
    drafts = [_declared_drafts(flags) for flags in declared]
    if isinstance(seen, int) and not any(_drafts_agree(count, seen) for count in drafts):
        known = [count for count in drafts if count]
        what = f"{_listed(known)} tokens are declared" if known else "drafts are declared"
        yield f"speculative-config: {what}, it drafts {seen or 'none'}"


def _agrees(flag: str, written: Any, seen: FlagValue) -> bool:
    """Whether the written value may be what is seen; True also where the two cannot be compared."""
    if written is None or written == "auto":
        return True
    if isinstance(written, bool) or isinstance(seen, bool):
        return not (isinstance(written, bool) and isinstance(seen, bool)) or written is seen
    if isinstance(written, int | float):
        return isinstance(seen, str) or isclose(seen or 0.0, written, rel_tol=1e-6)
    if not isinstance(written, str) or not isinstance(seen, str) or "${" in written:
        return True
    return _dtype(written) == _dtype(seen) if flag.endswith("dtype") else written.lower() == seen.lower()


def _dtype(name: str) -> str:
    """Names of the same type of the KV cache become one; 16 bits are what `auto` mostly comes to."""
    name = name.lower().removesuffix("_ds_mla")
    return _SAME_DTYPE.get(name, name)


def _declared_drafts(flags: Mapping[str, Any]) -> int | None:
    """Tokens that a command line has drafted at a time: 0 = some, their number is left to the engine; None = no
    speculative decoding is declared."""
    config = flags.get("speculative-config")
    named = {str(key).replace("-", "_"): value for key, value in config.items()} if isinstance(config, dict) else {}
    count = named.get("num_speculative_tokens", flags.get(DRAFTED))
    if type(count) is int and count > 0:
        return min(count, POSITIONS_MOST)
    return 0 if config is not None or "spec-method" in flags or "spec-model" in flags else None


def _drafts_agree(declared: int | None, seen: int) -> bool:
    return declared is None or (seen > 0 if declared == 0 else seen == declared)


def _listed(values: list[Any]) -> str:
    return " or ".join(dict.fromkeys(_text(value) for value in values if value is not None))


def _text(value: object) -> str:
    """As it is written on a command line or in YAML."""
    return str(value).lower() if isinstance(value, bool) else str(value)[:100]
