docker run -d --gpus all --network host vllm/vllm-openai:v0.23.0 --model M ${API_KEY:+--api-key "$API_KEY"} ${EXTRA:-}
