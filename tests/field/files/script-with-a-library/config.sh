IMAGE=vllm/vllm-openai:v0.26.0
MODEL="${MODEL:-nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4}"
HEAD=10.0.0.1
