"""Kubernetes manifests: a container of a Deployment, StatefulSet or Pod that runs a vLLM becomes a backend."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

from gateway.apps.importing.draft import Draft
from gateway.apps.importing.launches import Launches
from gateway.apps.importing.source import (
    SourceFile,
    count_of,
    is_true,
    listed,
    mapping,
    note_unread,
    read_source,
    text_of,
)
from gateway.config.problems import Path
from gateway.launch.docker import DockerFlag, DockerRun

KINDS = ("Pod", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "LeaderWorkerSet", "InferenceService")
_DOCUMENT = re.compile(r"(?m)^---[ \t]*(?:#.*)?$")
_MOST_DOCUMENTS = 100
_REFERENCE = re.compile(r"\$\((\w+)\)", re.ASCII)
_SHELL_REFERENCE = re.compile(r"\$\{(\w+)\}|\$([A-Za-z_]\w*)", re.ASCII)
_PLAIN = re.compile(r"[\w./:@%+=,-]+", re.ASCII)


def documents(text: str, file: str, *, last_counts: bool = False) -> Iterator[SourceFile]:
    """The documents of a file, each with the lines that it has there. `last_counts`: of a key that stands there twice.
    Raises ConfigError for broken YAML."""
    at = 0
    for number, part in enumerate(_DOCUMENT.split(text)):
        if part.strip() and number < _MOST_DOCUMENTS:
            source = read_source(part, file, last_counts=last_counts)
            source.report.lines = {path: line + at for path, line in source.report.lines.items()}
            if source.data:  # nothing but comments is no document
                yield source
        at += part.count("\n")


def convert(text: str, file: str, address: str | None = None) -> Draft:
    """The draft of a manifest. Raises ConfigError for broken YAML."""
    lines: dict[Path, int] = {}
    launches = Launches(file, lines.get, address)
    launches.notes.check_size(text)
    for number, source in enumerate(documents(text, file)):
        kind = text_of(source.data.get("kind")) or "?"
        name = text_of(mapping(source.data.get("metadata")).get("name")) or kind
        path: Path = (kind, number) if number else (kind,)
        lines[path] = source.report.line(("kind",)) or 1
        if kind not in KINDS:
            launches.notes.left_out(path, f"{name}: only workloads with containers are read")
            continue
        _workload(source, name, path, lines, launches)
    return launches.finished()


def _workload(source: SourceFile, name: str, path: Path, lines: dict[Path, int], launches: Launches) -> None:
    here: Path = ("spec",)
    spec = mapping(source.data.get("spec"))
    for key in ("predictor", "leaderWorkerTemplate", "leaderTemplate", "workerTemplate", "template", "spec"):
        if isinstance(spec.get(key), dict):
            spec, here = spec[key], (*here, key)
    if (replicas := count_of(mapping(source.data.get("spec")).get("replicas"))) is not None and replicas > 1:
        launches.notes.to_do(path, f"{replicas} replicas: one backend stands for them", "write one for each machine")
    if listed(spec.get("initContainers")):
        launches.notes.to_do(path, "initContainers are not read", "do what they do before the first start")
    if not listed(spec.get("containers")):
        hint = "import what it runs: kubectl get pod POD -o yaml"
        launches.notes.left_out(path, f"{name}: what its containers are is not in the file", hint)
    volumes = {text_of(mapping(one).get("name")): mapping(one) for one in listed(spec.get("volumes"))}
    for index, value in enumerate(listed(spec.get("containers"))):
        at: Path = (*path, "containers", index)
        lines[at] = source.report.line((*here, "containers", index)) or lines[path]
        _container(mapping(value), name, is_true(spec.get("hostNetwork")), volumes, at, launches)


def _container(
    value: dict[str, Any],
    name: str,
    host: bool,
    volumes: dict[str | None, dict[str, Any]],
    path: Path,
    launches: Launches,
) -> None:
    notes = launches.notes
    image = text_of(value.get("image"))
    if image is None or "{{" in image:
        notes.left_out(path, "a container without an image")
        return
    env = dict(_environment(value, path, launches))
    command = [_expanded(text, env) for one in listed(value.get("command")) if (text := text_of(one)) is not None]
    arguments = [_expanded(text, env) for one in listed(value.get("args")) if (text := text_of(one)) is not None]
    if "vllm" not in " ".join((image, *command, *arguments)).lower():
        notes.left_out(path, f"{launches.secrets.mask(image)} is no vLLM")
        return
    given = [DockerFlag("env", f"{key}={text}") for key, text in env.items()]
    given += [DockerFlag("gpus", "all"), DockerFlag("ipc", "host"), DockerFlag("name", name)]
    ports = [mapping(one) for one in listed(value.get("ports"))]
    published = [count_of(one.get("hostPort")) for one in ports], [count_of(one.get("containerPort")) for one in ports]
    if host or not any(published[1]):
        given += [DockerFlag("network", "host")]
    else:
        pairs = zip(*published, strict=True)
        given += [DockerFlag("publish", f"{outer or inner}:{inner}") for outer, inner in pairs if inner is not None]
        notes.changed(path, "its ports are published on the machine; a Service or an Ingress is not read")
    given += [DockerFlag("volume", one) for one in _mounts(value, volumes, path, launches)]
    given += [DockerFlag("entrypoint", word) for word in command[:1]]
    note_unread(notes, path, value, "kubernetes", "container")
    launches.container(DockerRun(image, tuple(given), (*command[1:], *arguments)), path, name)


def _environment(value: dict[str, Any], path: Path, launches: Launches) -> Iterator[tuple[str, str]]:
    for one in map(mapping, listed(value.get("env"))):
        name, text = text_of(one.get("name")), one.get("value")
        if name is None:
            continue
        yield name, f"${{{name}}}" if text is None else str(text).lower() if isinstance(text, bool) else str(text)
        if text is None and one.get("valueFrom") is not None:
            launches.notes.to_do(
                path, f"{name} comes from a Secret or a ConfigMap", f"set {name} where the engine is started"
            )
    if value.get("envFrom") is not None:
        launches.notes.to_do(path, "the variables of envFrom are not read", "write them under launch.env")


def _expanded(text: str, env: dict[str, str]) -> str:
    """`$(NAME)` as Kubernetes puts it in, and in a script the variables whose value needs no quotes."""
    text = _REFERENCE.sub(lambda match: env.get(match[1], match[0]), text)

    def known(match: re.Match[str]) -> str:
        value = env.get(match[1] or match[2], "")
        return value if _PLAIN.fullmatch(value) else match[0]

    return _SHELL_REFERENCE.sub(known, text)


def _mounts(
    value: dict[str, Any], volumes: dict[str | None, dict[str, Any]], path: Path, launches: Launches
) -> Iterator[str]:
    for one in map(mapping, listed(value.get("volumeMounts"))):
        name, target = text_of(one.get("name")), text_of(one.get("mountPath"))
        volume = volumes.get(name, {})
        host = text_of(mapping(volume.get("hostPath")).get("path"))
        if target is None or target == "/dev/shm":  # --ipc=host
            continue
        if host is None:
            kind = next((key for key in volume if key != "name"), "volume")
            launches.notes.to_do(
                path, f"{shlex.quote(target)} is a {kind}", "write the machine's folder under launch.volumes"
            )
            continue
        yield f"{host}:{target}" + (":ro" if is_true(one.get("readOnly")) else "")
