docker run -d --name v5 --gpus all $EXTRA_DOCKER_ARGS -p 8000:8000 vllm/vllm-openai:v0.23.0 --model M
