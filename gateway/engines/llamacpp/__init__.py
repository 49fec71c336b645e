"""llama-server's endpoints beyond OpenAI's API: its slots (`/slots`) and its counters (`/metrics`)."""
