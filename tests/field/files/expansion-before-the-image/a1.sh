#!/bin/bash
docker run -d --name vllm-brain --gpus all ${HF_TOKEN:+-e "HF_TOKEN=$HF_TOKEN"} -e X=1 vllm/vllm-openai:v0.23.0 --model Qwen/Qwen3.6-35B-A3B-FP8
