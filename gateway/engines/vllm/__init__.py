"""What vLLM has beside OpenAI's API: `/tokenize`, and its page of counters. Its requests and its list of models go
through gateway/engines/openai."""
