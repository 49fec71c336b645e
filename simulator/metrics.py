"""vLLM's `/metrics` as Prometheus text: names, labels and order of 0.32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simulator.counters import Histogram
from simulator.engine import Engine

_CACHE: Mapping[str, object] = {  # vLLM's configuration of its KV cache where no flag says otherwise
    "_block_size_resolved": True, "block_size": 128, "cache_dtype": "auto", "cache_hit_alignment_tokens": None,
    "enable_mamba_shared_prefix_checkpoint": False, "engine": 0, "gpu_memory_utilization": 0.92,
    "hash_block_size": None, "is_attention_free": False, "kv_cache_dtype_skip_layers": [], "kv_cache_layout": None,
    "kv_cache_memory_bytes": None, "kv_offloading_backend": "native", "kv_offloading_size": None,
    "kv_sharing_fast_prefill": False, "mamba_block_size": None, "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none", "mamba_page_size_padded": None, "mamba_ssm_cache_dtype": "float32",
    "num_cpu_blocks": None, "num_gpu_blocks_override": None, "prefix_cache_retention_interval": 0,
    "prefix_caching_hash_algo": "sha256", "prefix_match_unit": None, "replayssm_buffer_len": 16,
    "skip_page_size_padded": None, "sliding_window": None, "swa_bounded_replay": True, "use_kda_recoverssm": False,
    "use_replayssm": False, "user_specified_block_size": False,
}  # fmt: skip


def render(engine: Engine, model: str, process_start: float, flags: Mapping[str, Any] | None = None) -> bytes:
    """The page as Prometheus text, version 1.0.0 (counters with `_total` and `_created`). `flags`: those of the command
    line, without dashes; of the KV cache's they are shown."""
    return ("\n".join(_lines(engine, model, process_start, flags or {})) + "\n").encode()


def _cache_config(engine: Engine, flags: Mapping[str, Any]) -> str:
    """The labels of `vllm:cache_config_info`."""
    given = {"cache_dtype" if flag == "kv-cache-dtype" else flag.replace("-", "_"): flags[flag] for flag in flags}
    config = {**_CACHE, **{label: value for label, value in given.items() if label in _CACHE}}
    asked, tokens = config["block_size"], engine.cache_tokens
    block = asked if isinstance(asked, int) and asked > 0 else 128
    config |= {
        "block_size": block,
        "effective_attention_block_size": block,
        "enable_prefix_caching": engine.prefix_cache,
        "kv_cache_max_concurrency": float(engine.slots),
        "kv_cache_size_tokens": tokens,
        "num_gpu_blocks": -(-tokens // block),
        "user_specified_block_size": "block_size" in given,
    }
    return ",".join(f'{label}="{_escaped(str(value))}"' for label, value in sorted(config.items()))


def _escaped(text: str) -> str:
    """As the value of a label."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _lines(engine: Engine, model: str, process_start: float, flags: Mapping[str, Any]) -> Iterator[str]:
    c = engine.counters
    label = f'engine="0",model_name="{model}"'

    def gauge(name: str, text: str, value: float) -> Iterator[str]:
        yield from (f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name}{{{label}}} {float(value)}")

    def counter(name: str, text: str, values: dict[str, float]) -> Iterator[str]:
        """`values`: full label set -> value."""
        yield from (f"# HELP {name}_total {text}", f"# TYPE {name}_total counter")
        yield from (f"{name}_total{{{labels}}} {float(value)}" for labels, value in values.items())
        yield from (f"# HELP {name}_created {text}", f"# TYPE {name}_created gauge")
        yield from (f"{name}_created{{{labels}}} {c.created!r}" for labels in values)

    def histogram(name: str, text: str, h: Histogram) -> Iterator[str]:
        yield from (f"# HELP {name} {text}", f"# TYPE {name} histogram")
        running = 0
        for bound, count in zip([*h.bounds, "+Inf"], h.counts, strict=True):
            running += count
            yield f'{name}_bucket{{engine="0",le="{bound}",model_name="{model}"}} {float(running)}'
        yield f"{name}_count{{{label}}} {float(running)}"
        yield f"{name}_sum{{{label}}} {float(h.total)}"
        yield from (f"# HELP {name}_created {text}", f"# TYPE {name}_created gauge")
        yield f"{name}_created{{{label}}} {c.created!r}"

    def only(value: float) -> dict[str, float]:
        return {label: value}

    yield "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds."
    yield "# TYPE process_start_time_seconds gauge"
    yield f"process_start_time_seconds {process_start!r}"
    if engine.spec_tokens:
        drafted = c.drafts * engine.spec_tokens
        yield from counter("vllm:spec_decode_num_drafts", "Number of spec decoding drafts.", only(c.drafts))
        yield from counter("vllm:spec_decode_num_draft_tokens", "Number of draft tokens.", only(drafted))
        yield from counter("vllm:spec_decode_num_accepted_tokens", "Number of accepted tokens.", only(sum(c.accepted)))
        yield from counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Accepted tokens per draft position.",
            {f'{label},position="{i}"': float(n) for i, n in enumerate(c.accepted)},
        )
    running, waiting = len(engine.running), len(engine.waiting)
    yield from gauge("vllm:num_requests_running", "Number of requests in model execution batches.", running)
    yield from gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", waiting)
    asleep = "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
    asleep += "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2."
    yield from (f"# HELP vllm:engine_sleep_state {asleep}", "# TYPE vllm:engine_sleep_state gauge")
    now = {None: "awake", 0: "awake", 1: "weights_offloaded", 2: "discard_all"}[engine.sleep_level]
    for state in ("awake", "weights_offloaded", "discard_all"):
        yield f'vllm:engine_sleep_state{{{label},sleep_state="{state}"}} {float(state == now)}'
    yield from gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", engine.kv_usage)
    queries = "Prefix cache queries, in terms of number of queried tokens."
    yield from counter("vllm:prefix_cache_queries", queries, only(c.prefix_queries))
    yield from counter(
        "vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", only(c.prefix_hits)
    )
    yield from counter("vllm:num_preemptions", "Cumulative number of preemption from the engine.", only(0))
    yield from counter("vllm:prompt_tokens", "Number of prefill tokens processed.", only(c.prompt_tokens))
    yield from counter("vllm:generation_tokens", "Number of generation tokens processed.", only(c.generation_tokens))
    yield from counter(
        "vllm:request_success",
        "Count of successfully processed requests.",
        {f'engine="0",finished_reason="{r}",model_name="{model}"': float(n) for r, n in c.finished.items()},
    )
    yield from counter(
        "vllm:admission_rejections",
        "Number of admission attempts rejected by a queue limit, by reason.",
        {f'model_name="{model}",reason="max_num_queued_reqs"': float(c.rejected)},
    )
    for name, text, h in (
        ("request_prompt_tokens", "Number of prefill tokens processed.", c.request_prompt),
        ("request_generation_tokens", "Number of generation tokens processed.", c.request_generation),
        ("iteration_tokens_total", "Histogram of number of tokens per engine_step.", c.iteration),
        ("request_params_max_tokens", "Histogram of the max_tokens request parameter.", c.params_max_tokens),
        ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", c.first),
        ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", c.inter_token),
        ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", c.e2e),
        ("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", c.queue),
        ("request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", c.inference),
        ("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", c.prefill),
        ("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", c.decode),
    ):
        yield from histogram(f"vllm:{name}", text, h)
    yield "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig"
    yield "# TYPE vllm:cache_config_info gauge"
    yield f"vllm:cache_config_info{{{_cache_config(engine, flags)}}} 1.0"
