"""Rules about the model's weights, kernels and layers: what this chip, this checkpoint and this family need."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.apps.fleet.lint.subject import Finding, Severity, Subject
from gateway.launch.arguments import dashed, read_arguments
from gateway.launch.flags import OPPOSITES_FROM, FlagTable, vllm_flags

GUIDE = "guide to vLLM on a Spark"
DEFAULT_BATCHED_TOKENS = 2048  # of vLLM on this chip, without --max-num-batched-tokens
MAMBA_BLOCK = 2128  # tokens, as far as it was seen
MAMBA_BLOCK_UNTIL = "0.32"  # which does not compare it with a batch any more
MANY_SEQUENCES = 16  # more than anybody runs on a Spark


def quantization(one: Subject) -> Iterator[Finding]:
    """--quantization by publisher: a checkpoint says how it is quantized, and the flag must not contradict it."""
    row = one.catalog.publisher(one.names[0]) if one.names else None
    if row is None or not one.launched:
        return
    given, needed = one.text("quantization"), row.quantization
    if given in row.fails_with:
        message = f"the checkpoint is {_kind(needed)}: with --quantization {given} vLLM does not start"
        fix = "take out --quantization" if needed == "none" else f"--quantization {needed}"
        yield Finding(one.claim(row.versions), message, fix, row.source)
    elif given is None and needed != "none" and one.whole and not one.facts.quantization_free:
        if row.found_from is not None and not one.older_than(row.found_from):
            return
        message = f"a {_kind(needed)} checkpoint without --quantization {needed}: weights may be read wrongly"
        yield Finding("warning", message, f"--quantization {needed}", row.source)
    elif given is not None and needed == "none":
        message = f"--quantization {given} is not needed: vLLM finds it in the checkpoint"
        yield Finding("note", message, "take out --quantization", row.source)


def _kind(quantization: str) -> str:
    return "compressed-tensors" if quantization == "none" else f"{quantization}"


def moe_backend(one: Subject) -> Iterator[Finding]:
    """FP4 experts need Marlin kernels: this chip has no native FP4."""
    if not one.whole or not one.is_moe:
        return
    given, fix = (one.text("moe-backend") or "").lower(), "--moe-backend marlin"
    source = f"{GUIDE}, 6"
    if one.is_nvfp4 and not given:
        steered = any("MOE" in name or "NVFP4" in name for name in one.env) and not one.at_least("0.23")
        message = "NVFP4 experts without --moe-backend marlin: where another kernel is taken, the answer is '!!!!!'"
        yield Finding("note" if steered else "warning", message, fix, source)
    elif one.is_nvfp4 and given == "flashinfer_cutlass":
        message = (
            "flashinfer_cutlass was faster than marlin for one model, and is garbage for others: compare the answers"
        )
        yield Finding("note", message, fix, f"{GUIDE}, 7.1.4")
    elif one.is_nvfp4 and given not in ("", "marlin", "auto"):
        message = f"--moe-backend {given} has no FP4 kernels for this chip (sm_121): garbage, or no start"
        yield Finding("warning", message, fix, source)
    elif not given and ("mxfp4" in one.says or "gpt-oss" in one.says):
        message = "MXFP4 experts: '!!!!!' or an empty answer means that they need Marlin kernels"
        yield Finding("note", message, fix, source)


def attention_backend(one: Subject) -> Iterator[Finding]:
    """One attention backend for all layers, where the layers differ."""
    given = attention_of(one)
    if given is None or one.method == "dflash":
        return
    facts = one.facts
    if given in facts.crashing_attention:
        message = f"{given} for every layer of {one.named} ended at init_device for some, because its layers differ"
        source = facts.source_of("crashing_attention")
        yield Finding("warning", message, "if it does, take out --attention-backend", source)
    elif given in facts.unsupported_attention:
        message = f"{given} does not support the heads of {one.named}, which are of two sizes"
        fix = "--attention-backend triton_attn"
        yield Finding("warning", message, fix, facts.source_of("unsupported_attention"))
    elif given == "flash_attn":
        message = "flash_attn was seen to crash on this chip (sm_121), and to leave room for fewer tokens"
        yield Finding("warning", message, "take out --attention-backend", f"{GUIDE}, 7.1.1 and 7.1.3")


def attention_of(one: Subject) -> str | None:
    """The attention backend that is asked for, in small letters."""
    config = one.flags.get("attention-config")
    inner = config.get("backend") if isinstance(config, Mapping) else None
    given = one.text("attention-backend") or inner or one.env.get("VLLM_ATTENTION_BACKEND")
    return str(given).lower() if given else None


def mamba_block(one: Subject) -> Iterator[Finding]:
    """Prefix caching of a hybrid needs a whole Mamba block in one batch."""
    facts = one.facts
    if not one.whole or not facts.hybrid or one.flags.get("enable-prefix-caching") is not True:
        return
    if one.at_least(facts.mamba_block_until or MAMBA_BLOCK_UNTIL):
        return
    given = one.number("max-num-batched-tokens")
    aligned = one.text("mamba-cache-mode") in (None, "align")
    if not aligned or (given is None and one.flags.get("enable-chunked-prefill") is False):
        return
    block, tokens = facts.mamba_block or MAMBA_BLOCK, given or DEFAULT_BATCHED_TOKENS
    if tokens < block:
        default = "" if given else " (vLLM's default)"
        message = (
            f"prefix caching needs --max-num-batched-tokens of at least {block}, and it is {tokens}{default}: "
            f"block_size ({block}) must be <= max_num_batched_tokens ({tokens})"
        )
        severity: Severity = one.claim(()) if facts.mamba_block and not one.is_moving else "warning"
        source = "two Sparks, stability first"
        yield Finding(severity, message, "--max-num-batched-tokens 8192", source)


def kv_cache_dtype(one: Subject) -> Iterator[Finding]:
    """Families whose output is scrambled by an FP8 KV cache."""
    facts, given = one.facts, (one.text("kv-cache-dtype") or "").lower()
    if given.startswith("fp8") and "fp8" in facts.scrambled_kv:
        message = f"{one.named} does not bear an FP8 KV cache: repetitions and scrambled text"
        yield Finding("warning", message, "take out --kv-cache-dtype", facts.source_of("scrambled_kv"))
    if facts.scrambled_checkpoints and re.search(facts.scrambled_checkpoints, one.says):
        message = "this checkpoint brings an FP8 KV cache, which scrambles its output on this chip"
        source = facts.source_of("scrambled_checkpoints")
        yield Finding("warning", message, "serve the BF16 checkpoint, or --kv-cache-dtype auto", source)


def chunked_prefill(one: Subject) -> Iterator[Finding]:
    """Chunked prefill on Mamba layers with experts."""
    if one.flags.get("enable-chunked-prefill") is True and one.facts.mamba and one.is_moe:
        message = "chunked prefill made a model of Mamba layers and experts 9 times slower: compare without it"
        yield Finding("note", message, "take out --enable-chunked-prefill", f"{GUIDE}, 12")


def enforce_eager(one: Subject) -> Iterator[Finding]:
    """Without CUDA graphs."""
    if one.flags.get("enforce-eager") is True:
        message = "without CUDA graphs decoding falls from 44 to 25 tok/s (DeepSeek V4 Flash)"
        source = "DeepSeek V4 Flash on two Sparks, failure 3"
        yield Finding("warning", message, "take out --enforce-eager", source)


def parallel_size(one: Subject) -> Iterator[Finding]:
    """A Spark has one GPU, so the sizes multiply to the number of machines."""
    if not one.whole:
        return
    sizes = one.sizes
    tensor, most = sizes["tensor-parallel-size"], one.facts.tensor_parallel
    total = one.ranks
    if most is not None and tensor > most:
        message = f"{one.named} runs with --tensor-parallel-size {most} only; experts can be spread, tensors cannot"
        severity, source = one.claim(one.facts.versions_of("tensor_parallel")), one.facts.source_of("tensor_parallel")
        yield Finding(severity, message, f"--tensor-parallel-size {most}", source)
    elif total > 1 and one.nodes == 1 and one.text("distributed-executor-backend") == "ray":
        message = f"{total} GPUs on Ray, and `node` names one machine: {total} nodes are needed, a Spark has one GPU"
        yield Finding("error", message, f"node: [{', '.join(one.backend.nodes)}, WORKER]", f"{GUIDE}, 13")
    elif total != one.nodes and not any(isinstance(one.flags.get(name), str) for name in sizes):
        written = " x ".join(f"--{name} {size}" for name, size in sizes.items() if size > 1) or "one GPU"
        machines = "one machine" if one.nodes == 1 else f"{one.nodes} machines"
        message = f"{written} on {machines}: a Spark has one GPU, so vLLM does not start"
        yield Finding("error", message, f"--tensor-parallel-size {one.nodes}", f"{GUIDE}, 7.2.1 and 13")


def expert_parallel(one: Subject) -> Iterator[Finding]:
    """Experts spread over two machines."""
    if one.whole and one.nodes > 1 and one.is_moe and one.flags.get("enable-expert-parallel") is not True:
        message = "without --enable-expert-parallel every machine holds all experts; with it, many sequences run faster"
        source = "DeepSeek V4 Flash on two Sparks, throughput profile"
        yield Finding("note", message, "--enable-expert-parallel", source)


def long_window(one: Subject) -> Iterator[Finding]:
    """A window longer than the model was trained for."""
    window, known = one.number("max-model-len"), one.catalog.memory.own_window(one.names)
    allowed = one.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0") not in ("0", "false", "")
    stretched = "rope" in json.dumps(one.flags.get("hf-overrides") or "", default=str)
    if not one.whole or window is None or known is None or window <= known[0] or allowed or stretched:
        return
    native, source = known
    message = f"--max-model-len {window} is beyond the model's own {native}: vLLM does not start"
    fix = f"--max-model-len {native}, or VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 and YaRN in --hf-overrides"
    yield Finding("error", message, fix, source)


def media(one: Subject) -> Iterator[Finding]:
    """Images, videos and audio for a model that takes none."""
    known = one.facts.media
    if known is None:
        return
    takes = f"{one.named} takes {', '.join(known) or 'text only'}"
    source = one.facts.source_of("media")
    written = one.flags.get("limit-mm-per-prompt")
    limits: Mapping[str, Any] = written if isinstance(written, Mapping) else {}
    extra = [kind for kind in limits if kind not in known and _allows(limits[kind])]
    if extra:
        kept = {kind: limits[kind] for kind in limits if kind not in extra}
        fix = f"--limit-mm-per-prompt '{json.dumps(kept)}'" if kept else "take out --limit-mm-per-prompt"
        yield Finding("warning", f"{takes}: {', '.join(extra)} parts would be refused", fix, source)
    if one.backend.vision and not one.launched and "image" not in known:
        yield Finding("warning", f"{takes}: a request with an image fails there", "vision: false", source, ("vision",))


def _allows(limit: Any) -> bool:
    count = limit.get("count", 1) if isinstance(limit, Mapping) else limit
    return bool(count)


def family_settings(one: Subject) -> Iterator[Finding]:
    """Further flags and variables that a family needs."""
    facts = one.facts
    if not one.whole:
        return
    for flag, value in facts.flags.items():
        if str(one.flags.get(flag)) != value:
            message = f"{one.named} needs --{flag} {value}"
            yield Finding("warning", message, f"--{flag} {value}", facts.source_of("flags"))
    for flag, value in facts.helpful_flags.items():
        if flag not in one.flags:
            written = f"--{flag}" if value == "true" else f"--{flag} {value}"
            message = f"{one.named} does better with {written}"
            yield Finding("note", message, written, facts.source_of("helpful_flags"))
    missing = {name: value for name, value in facts.variables.items() if name not in one.env}
    if missing:
        message = f"{one.named} is faster with {', '.join(f'{n}={v}' for n, v in missing.items())}"
        fix = "env: {" + ", ".join(f'{name}: "{value}"' for name, value in missing.items()) + "}"
        yield Finding("note", message, fix, facts.source_of("variables"))
    least, tokens = facts.least_batched_tokens, one.number("max-num-batched-tokens")
    if least is not None and tokens is not None and tokens < least:
        message = f"prefill of {one.named} depends on --max-num-batched-tokens most: below {least} it is slow"
        fix = f"--max-num-batched-tokens {2 * least}"
        yield Finding("note", message, fix, facts.source_of("least_batched_tokens"))


def many_sequences(one: Subject) -> Iterator[Finding]:
    """A Spark serves few sequences well."""
    given = one.number("max-num-seqs")
    if one.launched and given is not None and given > MANY_SEQUENCES:
        message = f"{given} sequences share one memory bus: nobody reports more than {MANY_SEQUENCES} as useful"
        yield Finding("note", message, f"--max-num-seqs {MANY_SEQUENCES}", f"{GUIDE}, 8")


def flag_opposite(one: Subject) -> Iterator[Finding]:
    """--disable-x for --enable-x, and the other way round, which older vLLM does not know."""
    if not one.older_than(OPPOSITES_FROM):
        return
    for written, switch in _opposites(one.command.parts.arguments, vllm_flags()):
        message = f"{written} is a flag from vLLM {OPPOSITES_FROM} on, and the image has an older one"
        yield Finding("warning", message, f"--no-{switch}", f"vLLM {OPPOSITES_FROM}'s own parser")


def _opposites(words: tuple[str, ...], table: FlagTable) -> list[tuple[str, str]]:
    """The flags that are switched off by the name of their opposite: (as written, the flag's full name)."""
    named = {f"--{flag.opposite}": name for name, flag in table.flags.items() if flag.opposite}
    found = (dashed(words[start]).partition("=")[0] for _, start, _ in read_arguments(words, table).spans)
    return [(word, named[word]) for word in found if word in named]
