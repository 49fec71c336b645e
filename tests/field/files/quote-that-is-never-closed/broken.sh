#!/bin/bash
docker run -d --name x --network host vllm/vllm-openai:v0.23.0 --model "org/m
echo done
