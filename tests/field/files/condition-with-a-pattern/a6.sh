name=$(hostname)
if [[ $name =~ ^(a|b).*$ ]]; then
  docker run -d --network host vllm/vllm-openai:v0.23.0 --model M
fi
