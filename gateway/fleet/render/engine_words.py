"""The words that start an engine, with regard to what its image starts by itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.fleet.render.docker_flags import DockerFlag, values
from gateway.launch.command import ServeCommand, is_serving_image

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)


@dataclass(frozen=True)
class EngineWords:
    """`arguments`: what follows the image, or on the host the program and its arguments. `entrypoint`: what replaces
    the image's own; None = it stays. `env`: the assignments in front of the program."""

    arguments: tuple[str, ...]
    entrypoint: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    def all(self) -> tuple[str, ...]:
        return self.arguments if self.entrypoint is None else (self.entrypoint, *self.arguments)


def engine_words(command: ServeCommand, image: str | None, flags: tuple[DockerFlag, ...]) -> EngineWords:
    """The command for its image. `flags` are those of `docker run`.

    An image whose entrypoint is `vllm serve` gets the arguments alone; another program there replaces the entrypoint.
    Other images run the words as they are; vLLM's (nvcr.io/nvidia/vllm) get a `vllm serve` in front of bare arguments.
    """
    env, words = _without_assignments(command.words)
    entrypoint = next(iter(values(flags, "entrypoint")), None)
    if image is None or entrypoint is not None or not words:
        return EngineWords(words, entrypoint, env)
    bare = not command.program
    if not is_serving_image(image):
        return EngineWords(("vllm", "serve", *words) if bare and _has_vllm(image) else words, None, env)
    if bare:
        return EngineWords(words, None, env)
    if words[:2] == ("vllm", "serve"):
        return EngineWords(words[2:], None, env)
    return EngineWords(words[1:], words[0], env)


def _without_assignments(words: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """(assignments, the words behind them) of `NAME=value ... program argument ...`."""
    env = {}
    start = 1 if words[:1] == ("env",) else 0
    while start < len(words) and (match := _ASSIGNMENT.fullmatch(words[start])):
        env[match[1]] = match[2]
        start += 1
    return env, words[start:]


def _has_vllm(image: str) -> bool:
    """Whether the image is one of vLLM, by its name without tag and digest."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0].startswith("vllm")
