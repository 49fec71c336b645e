"""vLLM's endpoints beyond OpenAI's API: `/tokenize` and `/metrics`. Inference requests and the list of models go
through gateway/engines/openai."""
