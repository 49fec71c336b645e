"""Simulated vLLM, llama-server, Ollama, mlx_lm.server and transformers serve, with faults: for `gateway demo`, tests
and load tests."""

from simulator.llamacpp import SimLlama
from simulator.ollama import SimOllama
from simulator.other import SimOther
from simulator.rust_front_end import SimRustFrontEnd
from simulator.vllm import SimVllm

__all__ = ["SimLlama", "SimOllama", "SimOther", "SimRustFrontEnd", "SimVllm"]
