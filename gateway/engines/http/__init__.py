"""Speech servers: OpenAI's audio paths, and servers with paths and fields of their own."""
