"""The words that start an engine, with regard to what its image starts by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.launch.command import ServeCommand, is_serving_image
from gateway.launch.words import assignments


@dataclass(frozen=True)
class EngineWords:
    """`arguments`: what follows the image, or on the host the program and its arguments. `entrypoint`: what replaces
    the image's own; None = it stays. `env`: the assignments in front of the program."""

    arguments: tuple[str, ...]
    entrypoint: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    def all(self) -> tuple[str, ...]:
        return self.arguments if self.entrypoint is None else (self.entrypoint, *self.arguments)


def engine_words(command: ServeCommand) -> EngineWords:
    """The command for its image.

    An image whose entrypoint is `vllm serve` gets the arguments alone; another program there replaces the entrypoint.
    Other images run the words as they are; vLLM's (nvcr.io/nvidia/vllm) get a `vllm serve` in front of bare arguments.
    """
    env, start = assignments(command.words)
    words, image = command.words[start:], command.image
    if command.entrypoint is not None:
        return EngineWords(words[1:] if command.entrypoint else words, command.entrypoint, env)
    if image is None or not words:
        return EngineWords(words, None, env)
    bare = not command.program
    if not is_serving_image(image):
        return EngineWords(("vllm", "serve", *words) if bare and _has_vllm(image) else words, None, env)
    if bare:
        return EngineWords(words, None, env)
    if words[:2] == ("vllm", "serve"):
        return EngineWords(words[2:], None, env)
    return EngineWords(words[1:], words[0], env)


def _has_vllm(image: str) -> bool:
    """Whether the image is one of vLLM, by its name without tag and digest."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0].startswith("vllm")
