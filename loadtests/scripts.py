"""The k6 scripts, and the variables that `make loadtest` sets for each with the simulated fleet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SPARE = "spare"  # the backend that only `beside` asks


@dataclass(frozen=True)
class Script:
    """`first_token_ms`: the limit of the 95th percentile on the simulated fleet, some ten times what an idle machine
    with two cores shows. `lasts`: multiples of the run's duration."""

    name: str
    title: str
    first_token_ms: int
    environ: Mapping[str, str] = field(default_factory=dict)
    beside: bool = False
    lasts: float = 1.0


SCRIPTS = (
    Script("chat", "chat, two of three with a stream", 500, {"MODEL": "spark-qwen36"}, beside=True),
    Script("agents", "agents: calls, results, answers; 17 tools", 2000, {"MODELS": "reviewer"}, beside=True),
    Script("long", "prompts of 100 to 400 KB, and too long ones", 30000, {"MODEL": "spark-qwen36"}),
    Script(
        "mixed",
        "several models, thinking, JSON, embeddings",
        1000,
        {
            "MODELS": "spark-qwen36,spark-gemma4,spark8b,reviewer",
            "THINKING_MODEL": "spark-qwen36",
            "EMBEDDING_MODEL": "spark8b",
        },
    ),
    Script(
        "failover",
        "backends killed and brought back",
        10000,
        {"MODELS": "spark-qwen36,spark-gemma4,reviewer"},
        lasts=2.0,
    ),
    Script("soak", "a steady mix, with clients that leave", 1000, {"MODELS": "spark-qwen36,spark-gemma4,reviewer"}),
)
BY_NAME = {script.name: script for script in SCRIPTS}
