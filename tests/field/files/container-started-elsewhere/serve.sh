#!/bin/bash
docker exec -d vllm_node bash -c "vllm serve Qwen/Qwen3.6-35B-A3B-FP8 --served-model-name qwen --port 8010"
