"""Fleets on Sparks of 119.67 GiB, built without a file: backends by the flags of their command."""

from __future__ import annotations

from typing import Any

from gateway.apps.control.memory.arithmetic import GIB, Demand
from gateway.apps.control.memory.model_catalog import ModelCatalog, shipped_models
from gateway.apps.control.memory.plan import FleetPlan, NodePlan, plan
from gateway.config.snapshot import Backend, Launch, Mode, Node, Snapshot
from gateway.launch.command import ServeCommand

SPARK = 119.67
QWEN80B = "Qwen/Qwen3-Next-80B-A3B-Instruct-FP8"
QWEN4B = "Qwen/Qwen3-4B-Instruct-2507"
QWEN36 = "nvidia/Qwen3.6-35B-A3B-NVFP4"
DS4 = "/models/DeepSeek-V4-Flash"
CATALOG = shipped_models()
ESTIMATE_ONLY = ModelCatalog(CATALOG.models)
"""The catalogue without the reports from the field."""


def vllm(
    name: str,
    model: str,
    utilization: float,
    *,
    nodes: tuple[str, ...] = ("spark1",),
    resident: float = 0,
    **flags: Any,
) -> Backend:
    """A backend with a launch block; `flags` with underscores, `resident` in GiB."""
    written = {"gpu-memory-utilization": utilization} | {key.replace("_", "-"): value for key, value in flags.items()}
    held = round(resident * GIB) or None
    words = ("vllm", "serve", model)
    command = ServeCommand(" ".join(words), words, program=words[:2], model=model, flags=written)
    return Backend(name, nodes=nodes, launch=Launch(resident=held, parsed=command))


def qwen80b(utilization: float, window: int, sequences: int, **more: Any) -> Backend:
    return vllm("qwen80b", QWEN80B, utilization, max_model_len=window, max_num_seqs=sequences, **more)


def qwen4b(utilization: float, window: int, sequences: int = 8, **more: Any) -> Backend:
    return vllm("qwen4b", QWEN4B, utilization, max_model_len=window, max_num_seqs=sequences, **more)


def qwen36(utilization: float, window: int = 65536, drafts: int = 3, **more: Any) -> Backend:
    """As the guide launches it: 8,192 batched tokens, FP8 cache, prefix caching, drafts of the model's own head."""
    flags: dict[str, Any] = {"max_model_len": window, "max_num_seqs": 4, "max_num_batched_tokens": 8192}
    flags |= {"kv_cache_dtype": "fp8", "enable_prefix_caching": True}
    flags["speculative_config"] = {"method": "mtp", "num_speculative_tokens": drafts}
    return vllm("qwen36", QWEN36, utilization, **(flags | more))


def ds4(utilization: float, window: int = 200_000) -> Backend:
    flags: dict[str, Any] = {"tensor_parallel_size": 2, "kv_cache_dtype": "fp8", "block_size": 256}
    flags |= {"max_model_len": window, "max_num_seqs": 4, "max_num_batched_tokens": 16384}
    return vllm("ds4", DS4, utilization, nodes=("spark1", "spark2"), **flags)


def ollama(name: str, model: str, context: int | None = 32768, slots: int | None = 1) -> Backend:
    return Backend(name, engine="ollama", nodes=("spark1",), model=model, context=context, slots=slots)


def fleet(*backends: Backend, memory: float | None = SPARK, modes: tuple[Mode, ...] = ()) -> Snapshot:
    size = None if memory is None else round(memory * GIB)
    names = dict.fromkeys(["spark1", *(node for backend in backends for node in backend.nodes)])
    nodes = {name: Node(name, memory=size) for name in names}
    by_name = {backend.name: backend for backend in backends}
    return Snapshot(by_name, {}, nodes=nodes, modes={mode.name: mode for mode in modes})


def planned(*backends: Backend, catalog: ModelCatalog = CATALOG, **more: Any) -> FleetPlan:
    return plan(fleet(*backends), None, catalog, **more)


def spark1(*backends: Backend, catalog: ModelCatalog = CATALOG, **more: Any) -> NodePlan:
    return planned(*backends, catalog=catalog, **more).nodes["spark1"]


def demand(backend: Backend, catalog: ModelCatalog = CATALOG) -> Demand:
    return spark1(backend, catalog=catalog).demands[backend.name]
