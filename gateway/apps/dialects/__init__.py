"""The APIs of clients that are not OpenAI's, translated at the edge."""
