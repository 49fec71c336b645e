"""Simulated vLLM and Ollama servers, with faults: for `gateway demo`, the tests and the load tests."""

from simulator.ollama import SimOllama
from simulator.vllm import SimVllm

__all__ = ["SimOllama", "SimVllm"]
