"""Rules about speculative decoding: which method a model has, how many tokens, and what a draft needs around it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from gateway.apps.fleet.lint.catalog import DraftMethod
from gateway.apps.fleet.lint.rules_model import attention_of
from gateway.apps.fleet.lint.subject import Finding, Subject

MANY = 16  # sequences
_STOCK = ("vllm/vllm-openai:*", "nvcr.io/*")


def draft_method(one: Subject) -> Iterator[Finding]:
    """MTP is built into a checkpoint, or a draft of its own, or not there at all."""
    kind, config, method = one.facts.mtp, one.speculative, one.method
    if not config or kind is None:
        return
    source = one.facts.source_of("mtp")
    if kind == "paired" and (method == "draft_model" or (method is None and config.get("model"))):
        message = f'draft_model runs the draft of {one.named} as a whole model: "method": "mtp" was 40 % faster'
        yield Finding("warning", message, _fix({**config, "method": "mtp"}), source)
    elif _is_mtp(method) and kind == "paired" and not config.get("model"):
        message = f"{one.named} has no MTP heads of its own: its draft is a second checkpoint"
        yield Finding("warning", message, _fix({**config, "model": "DRAFT"}), source)
    elif _is_mtp(method) and kind == "none":
        own = one.facts.drafts_by
        message = f"no draft and no MTP heads are published for {one.named}"
        fix = _fix({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 5})
        if own is not None:
            message, fix = f"{one.named} has no MTP heads: its drafts are {own}", _fix({**config, "method": own})
        yield Finding("warning", message, fix, source)


def draft_tokens(one: Subject) -> Iterator[Finding]:
    """How many tokens a draft proposes."""
    count, row = one.speculative.get("num_speculative_tokens"), _row(one)
    if row is None or isinstance(count, bool) or not isinstance(count, int):
        return
    own = _is_mtp(one.method) and bool(one.facts.draft_counts)
    least, most = (one.facts.draft_counts if own else row.counts) or (1, count)
    best = one.facts.draft_count if own else None
    source = one.facts.source_of("draft_counts") if own else row.source
    subject = f"{one.method} of {one.named}" if own else f"{one.method}"
    if not least <= count <= most:
        message = f"{count} speculative tokens: {subject} is best with {best or f'{least} to {most}'}"
        better = best or (most if count > most else least)
        yield Finding("warning", message, _fix({**one.speculative, "num_speculative_tokens": better}), source)
    elif best is not None and count > best:
        message = f"{count} speculative tokens: faster for short answers, slower than {best} for long ones"
        yield Finding("note", message, _fix({**one.speculative, "num_speculative_tokens": best}), source)


def draft_version(one: Subject) -> Iterator[Finding]:
    """A method that this vLLM does not have."""
    row = _row(one)
    if row is None or row.vllm is None or not one.older_than(row.vllm):
        return
    have = ".".join(map(str, one.version or ()))
    message = f"{one.method} needs vLLM {row.vllm}, and {one.image} has {have}: it does not start"
    yield Finding("error", message, "image: vllm/vllm-openai:cu130-nightly", row.source, ("launch", "image"))


def draft_settings(one: Subject) -> Iterator[Finding]:
    """The settings of the engine that a method of drafting needs around it."""
    row = _row(one)
    if row is None or not one.whole or (len(row.versions) > 1 and one.at_least(row.versions[1])):
        return
    for name, value in row.variables.items():
        if one.env.get(name) != value:
            message = f"{one.method} needs {name}={value}: otherwise it fails without a word"
            yield Finding("warning", message, f'env: {{{name}: "{value}"}}', row.source)
    attention = attention_of(one)
    if row.attention is not None and attention in row.crashing_attention:
        message = f"{attention} under {one.method} crashes on this chip (sm_121)"
        severity = one.claim(row.versions)
        yield Finding(severity, message, f"--attention-backend {row.attention}", row.source)
    elif row.attention is not None and attention != row.attention:
        message = f"{one.method} runs on this chip with {row.attention}, and vLLM may choose another one"
        yield Finding("warning", message, f"--attention-backend {row.attention}", row.source)
    if row.attention is not None and one.speculative.get("attention_backend"):
        kept = {key: value for key, value in one.speculative.items() if key != "attention_backend"}
        message = "the drafter's attention backend is to stay at its default"
        yield Finding("warning", message, _fix(kept), row.source)
    if row.kv_cache == "not fp8" and (one.text("kv-cache-dtype") or "").lower().startswith("fp8"):
        message = f"{one.method} needs a BF16 KV cache, never fp8"
        yield Finding("warning", message, "take out --kv-cache-dtype", row.source)


def draft_kv(one: Subject) -> Iterator[Finding]:
    """A paired draft that needs a certain KV cache."""
    needed, given = one.facts.draft_kv, one.text("kv-cache-dtype") or "auto"
    if needed is None or not _is_mtp(one.method) or given.startswith(needed):
        return
    message = f"MTP of {one.named} needs a KV cache in {needed}: another one breaks the draft"
    yield Finding("warning", message, f"--kv-cache-dtype {needed}", one.facts.source_of("draft_kv"))


def drafter(one: Subject) -> Iterator[Finding]:
    """A drafter is trained for one model, and for builds and weights that it works with."""
    row, model = _row(one), one.speculative.get("model")
    if row is None or not row.drafters:
        return
    target = one.catalog.drafter_target(model) if isinstance(model, str) else None
    if target is not None and not any(re.search(target, name.lower()) for name in one.names):
        message = f"{model} was trained for another model than {one.model}: nothing it proposes is accepted"
        fits = [name for name, fit in row.drafters.items() if re.search(fit, one.says)]
        fix = _fix({**one.speculative, "model": fits[0]}) if fits else "take out --speculative-config"
        yield Finding("warning", message, fix, row.source)
    images = one.facts.draft_images
    if images and one.image and not any(fnmatchcase(one.image, image) for image in images):
        message = f"{one.method} with {one.named} needs a build made for it"
        fix = "image: ghcr.io/z-lab/vllm-openai:gemma4-dflash-cu130"
        yield Finding("warning", message, fix, one.facts.source_of("draft_images"), ("launch", "image"))
    stock = one.image is not None and any(fnmatchcase(one.image, image) for image in _STOCK)
    if row.quantized and stock and re.search(r"fp4|fp8|int4|awq|gptq", one.says):
        fix = "compare with the built-in MTP, or take a DFlash build for this chip"
        yield Finding("note", row.quantized, fix, row.source)


def draft_load(one: Subject) -> Iterator[Finding]:
    """A draft costs throughput when many sequences run."""
    row, sequences = _row(one), one.number("max-num-seqs")
    if row is None or one.method in ("ngram", "suffix") or sequences is None or sequences < MANY:
        return
    message = f"{one.method} with {sequences} sequences: a draft makes one stream faster, and all together slower"
    yield Finding("note", message, "compare without --speculative-config under load", row.source)


def _is_mtp(method: str | None) -> bool:
    return method is not None and (method == "mtp" or method.endswith("_mtp"))


def _row(one: Subject) -> DraftMethod | None:
    return one.catalog.draft(one.method) if one.method is not None else None


def _fix(config: Mapping[str, Any]) -> str:
    return f"--speculative-config '{json.dumps(dict(config), separators=(',', ':'))}'"
