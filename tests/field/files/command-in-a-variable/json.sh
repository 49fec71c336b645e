#!/bin/bash
SPEC='{"method":"mtp","num_speculative_tokens":2}'
CMD="vllm serve nvidia/Qwen3.6-35B-A3B-NVFP4"
CMD="$CMD --port 8000 --max-num-seqs 8"
CMD+=" --speculative-config '$SPEC'"
docker run -d --name q --network host --gpus all -e VLLM_USE_V1=1 ghcr.io/me/vllm-node:1 bash -lc "$CMD"
