"""OpenAI's files and batches, served by the gateway itself: many requests in one file, run on its own backends."""
