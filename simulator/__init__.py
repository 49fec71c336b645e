"""Simulated vLLM, llama-server and Ollama servers, with faults: for `gateway demo`, the tests and the load tests."""

from simulator.llamacpp import SimLlama
from simulator.ollama import SimOllama
from simulator.vllm import SimVllm

__all__ = ["SimLlama", "SimOllama", "SimVllm"]
