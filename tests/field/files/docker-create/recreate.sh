#!/bin/bash
docker rm -f small 2>/dev/null
docker create --name small --gpus all -p 8002:8000 vllm/vllm-openai:v0.26.0 --model Qwen/Qwen3-4B
docker start small
