"""What is known of servers and models without asking them."""

from __future__ import annotations

from collections import defaultdict

# By server: how many sequences it runs at once.
ASSUMED_SLOTS = defaultdict(lambda: 8, ollama=1, llamacpp=4, transformers=1)


def names_cloud_model(model: str | None) -> bool:
    """Does Ollama pass requests for a model of this name on to ollama.com? It decides by the tag alone: `cloud`, or
    one that ends in `-cloud`."""
    _, found, tag = (model or "").rpartition(":")
    tag = tag.strip().lower()
    return bool(found) and (tag == "cloud" or (tag.endswith("-cloud") and "/" not in tag))
