"""vLLM and every other server that speaks OpenAI's API."""
