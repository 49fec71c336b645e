"""llama-server, mlx_lm.server and transformers serve as processes of the tests, started by serve.sh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.real_process import RealProcess

HERE = Path(__file__).parent
HF_NAME = "mlx-community/Qwen3-0.6B-4bit"  # what install.sh calls the taught model in the cache of Hugging Face
TAUGHT = "qwen3-taught"


@dataclass
class RealServer(RealProcess):
    """One server of `kind` (llama, mlx, transformers) with `flags`; `env` is added to its environment."""

    kind: str
    engines: Path
    flags: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)

    def command(self) -> Sequence[str | Path]:
        return [HERE / "serve.sh", self.kind, str(self.port), *self.flags]

    def environ(self) -> Mapping[str, str]:
        return {"ENGINES": str(self.engines), **self.env}
