"""Simulated vLLM and Ollama servers, with faults: for `gateway demo`, the tests and the load tests."""

from gateway.sim.ollama import SimOllama
from gateway.sim.vllm import SimVllm

__all__ = ["SimOllama", "SimVllm"]
