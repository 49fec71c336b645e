docker run -d --network host -e DEFAULT_THINKING_TOKEN_BUDGET=32768 -e TIKTOKEN_ENCODINGS_BASE=/etc/encodings vllm/vllm-openai:v0.23.0 --model M
