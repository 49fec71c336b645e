#!/bin/bash
SPARK=ops@192.168.1.21
IMAGE=vllm/vllm-openai:v0.26.0
ssh $SPARK 'docker rm -f brain 2>/dev/null; true'
ssh -o ConnectTimeout=5 $SPARK "docker run -d \
  --name brain --gpus all --network host \
  -v \$HOME/.cache/huggingface:/hf/.cache/huggingface \
  $IMAGE --model Qwen/Qwen3.5-122B-A10B-FP8 --port 8000 \
  --speculative-config '{\"method\":\"mtp\",\"num_speculative_tokens\":2}'"
