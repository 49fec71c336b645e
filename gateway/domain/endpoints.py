"""The inference endpoints, and what is read of their bodies and answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One inference path. `prompt` and `limits` name the body's fields that hold the prompt and cap the answer.
    `becomes`: its requests are translated into those of another endpoint, and the answers back (dialects/);
    `completes`: into that one, where the translated body has a `prompt`. `pools`: the field of the answer that lists
    one result for each input (vectors, scores); empty = it generates text. `also`: further whole paths."""

    name: str
    path: str  # below the API path
    prompt: tuple[str, ...]
    limits: tuple[str, ...] = ()
    chunk_object: str = ""  # of a stream's events; empty = cannot stream
    id_prefix: str = ""
    becomes: Endpoint | None = None
    completes: Endpoint | None = None
    pools: str = ""
    also: tuple[str, ...] = ()


CHAT = Endpoint(
    "chat",
    "/chat/completions",
    ("messages", "tools"),
    ("max_completion_tokens", "max_tokens"),
    "chat.completion.chunk",
    "chatcmpl-",
)
COMPLETIONS = Endpoint("completions", "/completions", ("prompt",), ("max_tokens",), "text_completion", "cmpl-")
EMBEDDINGS = Endpoint("embeddings", "/embeddings", ("input",), pools="data")
RERANK = Endpoint("rerank", "/rerank", ("query", "documents"), pools="results", also=("/v2/rerank",))
SCORE = Endpoint(
    "score", "/score", ("text_1", "text_2", "queries", "documents", "items", "data_1", "data_2"), pools="data"
)
MESSAGES = Endpoint("messages", "/messages", CHAT.prompt, CHAT.limits, becomes=CHAT)  # Anthropic's
RESPONSES = Endpoint("responses", "/responses", CHAT.prompt, CHAT.limits, becomes=CHAT)  # OpenAI's newer one
COMPACT = Endpoint("compact", "/responses/compact", CHAT.prompt, CHAT.limits, becomes=CHAT)
OLLAMA_CHAT = Endpoint("ollama_chat", "/api/chat", CHAT.prompt, CHAT.limits, becomes=CHAT)
OLLAMA_GENERATE = Endpoint(
    "ollama_generate", "/api/generate", CHAT.prompt, CHAT.limits, becomes=CHAT, completes=COMPLETIONS
)
OLLAMA_EMBED = Endpoint("ollama_embed", "/api/embed", EMBEDDINGS.prompt, becomes=EMBEDDINGS)
OLLAMA_EMBEDDINGS = Endpoint("ollama_embeddings", "/api/embeddings", EMBEDDINGS.prompt, becomes=EMBEDDINGS)
OLLAMA = (OLLAMA_CHAT, OLLAMA_GENERATE, OLLAMA_EMBED, OLLAMA_EMBEDDINGS)
IMAGES = Endpoint("images", "/images/generations", ("prompt",))
IMAGE_EDITS = Endpoint("image_edits", "/images/edits", ("prompt",))
IMAGE_VARIATIONS = Endpoint("image_variations", "/images/variations", ("prompt",))
SPEECH = Endpoint("speech", "/audio/speech", ("input",))
TRANSCRIPTIONS = Endpoint("transcriptions", "/audio/transcriptions", ("file", "prompt"))
TRANSLATIONS = Endpoint("translations", "/audio/translations", ("file", "prompt"))
ENDPOINTS = (CHAT, COMPLETIONS, EMBEDDINGS, RERANK, SCORE, MESSAGES, RESPONSES, COMPACT, *OLLAMA, SPEECH, IMAGES)
PASSED_ON = (SPEECH, IMAGES)  # the answers are passed on without being looked into
PICTURES = (IMAGES, IMAGE_EDITS, IMAGE_VARIATIONS)
UPLOADS = (TRANSCRIPTIONS, TRANSLATIONS, IMAGE_EDITS, IMAGE_VARIATIONS)  # their bodies are forms with a file, not JSON
