"""A recipe of vLLM's own site (vllm-project/recipes): one model, its variants, its features, and what each hardware
needs. The flags come in the order in which the site joins them, for one DGX Spark or as many as the weights need."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import PurePath
from typing import Any

from gateway.apps.fleet.preflight.host import CONTAINER_HOME
from gateway.apps.importing.draft import Draft
from gateway.apps.importing.launches import Launches
from gateway.apps.importing.source import is_true, listed, mapping, note_unread, read_source, text_of
from gateway.config.problems import Path
from gateway.config.units import number_of
from gateway.launch.arguments import read_arguments
from gateway.launch.docker import DockerFlag, DockerRun
from gateway.launch.flags import vllm_flags

_EXACT, _GENERATION, _BRAND = "dgx_spark_gb10", "blackwell", "nvidia"
_MEMORY_GB = 128  # of a Spark, as the site counts
_CACHE = "~/.cache/huggingface"
_IMAGE = "vllm/vllm-openai"
_VARIABLE = re.compile(r"\$([A-Za-z_]\w*)", re.ASCII)
_FLAG_AND_VALUE = re.compile(r"--[\w.-]+ +[^ {\[]+", re.ASCII)  # written as one word
_SIZES = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "data-parallel-size-local")
_NODES_MOST = 16


def is_vllm_recipe(data: dict[str, Any]) -> bool:
    """Whether the keys are those of such a recipe."""
    return "variants" in data and "model_id" in mapping(data.get("model"))


def convert(text: str, file: str, address: str | None = None) -> Draft:
    """The draft of a recipe. Raises ConfigError for broken YAML."""
    source = read_source(text, file)
    launches = Launches(file, source.report.line, address)
    data, notes = source.data, launches.notes
    notes.check_size(text)
    note_unread(notes, (), data, "vllm-recipe", "top")
    if "omni" in data:
        notes.left_out(("omni",), "vLLM-Omni serves it: not read", "write a backend with engine: http and its url")
        return launches.finished()
    model, variants = mapping(data.get("model")), mapping(data.get("variants"))
    name, nodes = _variant(variants)
    variant = mapping(variants.get(name))
    exact = mapping(mapping(variant.get("hardware_overrides")).get(_EXACT))
    path: Path = ("variants", name) if variant else ("model",)
    if others := [str(one) for one in variants if one != name]:
        message = f"the variant '{name}' is taken; the recipe has {', '.join(others)}, too"
        notes.changed(("variants",), message, "for another one write its model and flags into launch")
    optional = [shown for one in listed(data.get("opt_in_features")) if (shown := text_of(one))]
    if optional:
        hint = "put its args behind launch.command if you want it"
        notes.changed(
            ("opt_in_features",), f"switched on by hand on the site, so left out: {', '.join(optional)}", hint
        )
    words = [word for part in _arguments(data, variant, exact, nodes, optional) for word in _texts(part)]
    env = {**mapping(model.get("base_env")), **mapping(variant.get("extra_env")), **mapping(exact.get("extra_env"))}
    for override in _of_hardware(mapping(data.get("hardware_overrides"))):
        env = {**mapping(override.get("extra_env")), **env}
    written = {key: _VARIABLE.sub(r"${\1}", text_of(value) or "") for key, value in env.items()}
    given = [DockerFlag("env", f"{key}={value}") for key, value in written.items()]
    given += [DockerFlag("network", "host"), DockerFlag("gpus", "all"), DockerFlag("ipc", "host")]
    given += [DockerFlag("volume", f"{_CACHE}:{CONTAINER_HOME}{_CACHE[1:]}")]
    image = _image(model, variant, exact)
    if image == f"{_IMAGE}:latest":
        least = text_of(variant.get("min_vllm_version")) or text_of(model.get("min_vllm_version"))
        notes.changed(("model",), f"the recipe names no image; it needs vLLM {least} or later: {image} is taken")
    served = text_of(variant.get("model_id")) or text_of(model.get("model_id")) or ""
    launches.container(DockerRun(image, tuple(given), (served, *_last_wins(words, nodes))), path, PurePath(file).stem)
    return launches.finished()


def _variant(variants: dict[str, Any]) -> tuple[str, int]:
    """(its name, the Sparks that it needs): the default where one Spark holds it or the recipe names the Spark, else
    the first for which that is so, else the default on as many as hold it."""
    sizes = {str(name): number_of(mapping(one).get("vram_minimum_gb")) or 0 for name, one in variants.items()}
    named = [name for name in sizes if _EXACT in mapping(mapping(variants[name]).get("hardware_overrides"))]
    order = sorted(sizes, key=lambda name: name != "default")
    fits = (name for name in order if name in named or sizes[name] <= _MEMORY_GB)
    chosen = next(fits, next(iter(order), "default"))
    return chosen, max(1, min(ceil(sizes.get(chosen, 0) / _MEMORY_GB), _NODES_MOST))


def _of_hardware(overrides: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What applies to a Spark, the exact hardware last."""
    generation = _GENERATION if _GENERATION in overrides else _BRAND
    yield from (mapping(overrides.get(key)) for key in (generation, _EXACT))


def _arguments(
    data: dict[str, Any], variant: dict[str, Any], exact: dict[str, Any], nodes: int, optional: Sequence[str]
) -> Iterator[Any]:
    yield mapping(data.get("model")).get("base_args")
    yield variant.get("extra_args")
    yield exact.get("extra_args")
    if nodes > 1:
        yield ["--tensor-parallel-size", nodes, "--nnodes", nodes]
    layout = mapping(mapping(data.get("strategy_overrides")).get("multi_node_tp" if nodes > 1 else "single_node_tp"))
    yield layout.get("vllm_args")
    yield layout.get("extra_args")
    own = mapping(layout.get("hardware_overrides"))
    replaced = {_GENERATION, _BRAND} & own.keys()  # those of the layout stand for those of the recipe
    for key, override in zip(("", _EXACT), _of_hardware(mapping(data.get("hardware_overrides"))), strict=True):
        yield None if replaced and not key else override.get("extra_args")
    yield from (override.get("extra_args") for override in _of_hardware(own))
    for name, value in mapping(data.get("features")).items():
        if name not in optional:
            feature = mapping(value)
            chosen = mapping(variant.get("default_modes")).get(name, feature.get("default_mode"))
            mode = mapping(mapping(feature.get("modes")).get(chosen)) if chosen is not None else feature
            overrides = list(_of_hardware(mapping(mode.get("hardware_overrides"))))
            yield next((one["args"] for one in reversed(overrides) if "args" in one), mode.get("args"))


def _texts(value: Any) -> Iterator[str]:
    for one in listed(value):
        text = str(one).lower() if isinstance(one, bool) else str(one)
        yield from text.split(" ", 1) if _FLAG_AND_VALUE.fullmatch(text) else [text] if one is not None else []


def _last_wins(words: Sequence[str], nodes: int) -> list[str]:
    """The arguments without those that a later one of the same name replaces, and on one Spark without its GPUs."""
    found = read_arguments(tuple(words), vllm_flags()).spans
    spans = [span for span in found if "." not in words[span[1]].partition("=")[0]]  # members of a flag are added
    last = {name: start for name, start, _ in spans if nodes > 1 or name not in _SIZES}
    dropped = {at for name, start, end in spans if last.get(name) != start for at in range(start, end)}
    return [word for at, word in enumerate(words) if at not in dropped]


def _image(model: dict[str, Any], variant: dict[str, Any], exact: dict[str, Any]) -> str:
    for stated in (exact.get("docker_image"), variant.get("docker_image"), model.get("docker_image")):
        text = text_of(stated) or text_of(mapping(stated).get(_BRAND))
        if text is not None:
            return text
    return f"{_IMAGE}:nightly" if is_true(model.get("nightly_required")) else f"{_IMAGE}:latest"
