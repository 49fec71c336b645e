"""Simulated vLLM, Ollama, mlx_lm.server and transformers serve, with faults: for `gateway demo`, the tests and the load
tests."""

from simulator.ollama import SimOllama
from simulator.other import SimOther
from simulator.vllm import SimVllm

__all__ = ["SimOllama", "SimOther", "SimVllm"]
