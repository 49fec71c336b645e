"""Rules about the container around the engine: its image, entrypoint, ports, mounts and shared memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

from gateway.apps.fleet.lint.subject import Finding, Severity, Subject
from gateway.apps.fleet.preflight.host import CONTAINER_HOME
from gateway.config.problems import Path
from gateway.launch.docker import bound_to, published_ports

GUIDE = "guide to vLLM on a Spark"
IMAGE: Path = ("launch", "image")
DOCKER: Path = ("launch", "docker")
VOLUMES: Path = ("launch", "volumes")
_VOLUME_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
DOCKER_RUN = "docker run --help"
IMAGES_UNTIL = "0.21"  # from then on the released images have what the first builds for this chip had
LOOPBACK = ("localhost", "::1")
_VOLUMES = f"{GUIDE}, 4"
_TWICE = "DeepSeek V4 Flash on two Sparks, failure 6"
_SHELLS = ("sh", "bash", "dash")
_PROGRAMS = ("vllm", "python", "python3")


def is_loopback(host: str | None) -> bool:
    return host is not None and (host.strip("[]") in LOOPBACK or host.startswith("127."))


def image_entrypoint(one: Subject) -> Iterator[Finding]:
    """Some images run `vllm serve` by themselves, others run the words they are given. A rendered file starts all the
    same, so this is no error."""
    facts, words = one.image_facts, one.command.words
    if one.profile is not None or not words:
        return
    if words[:4] == ("vllm", "serve", "vllm", "serve"):
        message = "`vllm serve` twice: vllm: error: unrecognized arguments: serve"
        yield Finding("error", message, "write it once", f"{GUIDE}, 6")
        return
    shell, run = (word.rsplit("/", 1)[-1] for word in (words[0], words[1] if len(words) > 1 else ""))
    if shell in _SHELLS and run in _PROGRAMS:
        where = f"the entrypoint {words[0]} is put before `{run}`" if one.docker.entrypoint else f"`{shell} {run}`"
        message = f"{where}: {shell} reads the program as a script of its own and ends with a syntax error"
        yield Finding("error", message, f"leave {words[0]} out, or write {words[0]} -c '{run} ...'", "bash(1)")
        return
    if facts is None or one.docker.has("entrypoint"):
        return
    source, program = facts.source_of("entrypoint"), one.command.program
    if facts.entrypoint == "vllm serve" and words[0].rsplit("/", 1)[-1] in _SHELLS:
        message = f"{one.image} runs `vllm serve`: by hand it takes the shell for a model"
        yield Finding("warning", message, f"docker: --entrypoint {words[0]}", source, DOCKER)
    elif facts.entrypoint == "vllm serve" and program:
        message = (
            f"{one.image} runs `vllm serve` by itself. By hand this line ends with: vllm: error: unrecognized "
            "arguments: serve"
        )
        yield Finding("warning", message, f"leave out `{' '.join(program)}`", source)
    elif facts.entrypoint == "none" and not program:
        message = f"{one.image} runs what it is given: by hand a model is no program"
        yield Finding("warning", message, "vllm serve MODEL ...", source)


def image_tag(one: Subject) -> Iterator[Finding]:
    """Images that do not run on this chip, and tags that point elsewhere tomorrow."""
    facts = one.image_facts
    if facts is None or one.profile is not None:
        return
    better = f"image: {facts.instead}" if facts.instead else ""
    if facts.broken:
        yield Finding("error", f"{one.image}: {facts.broken}", better, facts.source_of("broken"), IMAGE)
    elif facts.doubtful:
        yield Finding("warning", f"{one.image}: {facts.doubtful}", better, facts.source_of("doubtful"), IMAGE)
    if facts.moving and one.image and "@" not in one.image:
        message = f"{one.image} is another image some day, with other flags and kernels"
        yield Finding("warning", message, f"image: {one.image}@sha256:DIGEST", facts.source_of("moving"), IMAGE)


def image_family(one: Subject) -> Iterator[Finding]:
    """Families and checkpoints that need a certain image."""
    facts, image = one.facts, one.image
    if image is None or "$" in image or one.profile is not None or not one.whole:
        return
    if facts.images and not any(fnmatchcase(image, pattern) for pattern in facts.images):
        message = f"{one.named} was first seen to run on a Spark in {', '.join(facts.images)}"
        severity: Severity = "warning" if one.is_stock and not one.at_least(IMAGES_UNTIL) else "note"
        yield Finding(severity, message, f"image: {facts.images[0]}", facts.source_of("images"), IMAGE)
    publisher = one.catalog.publisher(one.names[0]) if one.names else None
    mixed = publisher is not None and publisher.quantization == "modelopt" and one.is_moe
    if mixed and one.image_facts is not None and one.image_facts.rejects_mixed_precision:
        message = f"{image} rejects MIXED_PRECISION checkpoints (experts in FP8 and NVFP4)"
        source = one.image_facts.source_of("rejects_mixed_precision")
        yield Finding("warning", message, f"image: {one.image_facts.instead}", source, IMAGE)
    file = facts.patched_file
    if file and one.is_nvfp4 and one.older_than("0.20") and not any(file in volume for volume in one.launch.mounts):
        message = (
            f"this vLLM cannot map the experts' scales of {one.named}: KeyError '...experts.0.down_proj.input_scale'"
        )
        inside = f"/usr/local/lib/python3.12/dist-packages/vllm/model_executor/models/{file}"
        fix = f"volumes: [FOLDER/{PurePosixPath(file).stem}_patched.py:{inside}]"
        yield Finding("error", message, fix, facts.source_of("patched_file"), VOLUMES)


def image_audio(one: Subject) -> Iterator[Finding]:
    """Audio needs packages that the images do not have."""
    limits = one.flags.get("limit-mm-per-prompt")
    wants = isinstance(limits, Mapping) and bool(limits.get("audio"))
    if (
        not wants
        or one.image_facts is None
        or "audio" not in one.image_facts.lacks
        or "vllm[audio]" in one.command.text
    ):
        return
    message = f"{one.image} has no audio packages: every request with audio fails"
    fix = "docker: --entrypoint /bin/bash, and command: -c \"pip install 'vllm[audio]' && vllm serve ...\""
    yield Finding("warning", message, fix, f"{GUIDE}, 7.3.2")


def shared_memory(one: Subject) -> Iterator[Finding]:
    """vLLM's processes talk through /dev/shm, of which a container has 64 MB."""
    if one.image is None or one.profile is not None or one.docker.has("ipc", "shm-size") or one.docker.problem:
        return
    message = (
        "a container has 64 MB of shared memory, through which vLLM's processes talk (`fleet render` adds the flag)"
    )
    yield Finding("note", message, "docker: --ipc=host", f"{GUIDE}, 6", DOCKER if one.launch.docker else IMAGE)


def docker_flags(one: Subject) -> Iterator[Finding]:
    """Flags that docker does not take: then the launch is not understood here, and nothing is rendered."""
    if one.profile is not None:
        return
    problem = one.docker.problem
    if problem is not None:
        yield Finding("error", problem, "docker: the flags of `docker run` alone, as for a shell", DOCKER_RUN, DOCKER)
    for option in one.docker.unknown if problem is None else ():
        meant = one.docker.meant_by(option)
        if meant is not None:
            message = f"`docker run` has no flag {option}; did you mean {meant}?"
            yield Finding("error", message, meant, DOCKER_RUN, DOCKER)
        else:
            message = f"`docker run` of Docker 28 has no flag {option}, and flags of other versions are not known here"
            yield Finding("warning", message, f"leave out {option}, if docker refuses it", DOCKER_RUN, DOCKER)


def docker_memory(one: Subject) -> Iterator[Finding]:
    """A limit of the container's memory counts the GPU's, too."""
    if one.profile is None and (limit := one.docker.values("memory")):
        message = f"--memory {limit[-1]}: the GPU's memory counts too, so the container may be killed while it loads"
        fix = "take out --memory; --gpu-memory-utilization bounds it"
        yield Finding("warning", message, fix, f"{GUIDE}, 7.3.1", DOCKER)


def docker_gpus(one: Subject) -> Iterator[Finding]:
    """A container that asks for a part of the GPUs, or for none."""
    given = one.docker.values("gpus")
    if one.profile is None and given and given[-1] in ("0", "none"):
        yield Finding("error", "a container without a GPU", "docker: --gpus all", f"{GUIDE}, 6", DOCKER)


def listen_host(one: Subject) -> Iterator[Finding]:
    """An engine that listens where the gateway cannot reach it."""
    host = one.text("host")
    if not one.launched or not is_loopback(host):
        return
    if one.image is not None and not one.on_host_network:
        message = f"--host {host} inside a container: nobody outside the container reaches it"
    elif not is_loopback(one.backend.origin[1]):
        message = f"--host {host}: only its own machine reaches it, and the gateway asks {one.backend.origin[1]}"
    else:
        return
    yield Finding("error", message, "--host 0.0.0.0", f"{GUIDE}, 11")


def port_mapping(one: Subject) -> Iterator[Finding]:
    """The published port leads to the port where the engine listens, and is the one that is asked."""
    port = one.command.port
    if (unreached := _unreached(one)) is not None:
        yield unreached
        return
    pairs = [(outer, inner) for outer, inner in map(published_ports, one.docker.ports) if outer and inner]
    if not pairs or port is None or one.on_host_network:
        return
    inside = [outer for outer, inner in pairs if inner == port]
    if not inside:
        outer = pairs[0][0]
        message = f"-p {outer}:{pairs[0][1]}, but the engine listens on {port}: every connection is refused"
        yield Finding("error", message, f"docker: -p {outer}:{port}", f"{GUIDE}, 6", DOCKER)
    elif one.backend.url is not None and one.backend.origin[2] not in inside:
        message = f"the engine is reached at port {inside[0]}, and the gateway asks {one.backend.origin[2]}"
        yield Finding("warning", message, f"docker: -p {one.backend.origin[2]}:{port}", "", DOCKER)


def _unreached(one: Subject) -> Finding | None:
    """A container that no other machine reaches, or none at all; None if one is, as far as is known here."""
    if one.image is None or one.profile is not None or one.on_host_network:
        return None
    port, ports = one.command.port, one.docker.ports
    asked = one.backend.origin[2] if one.backend.url is not None else port
    fix = f"docker: -p {asked}:{port}" if port is not None else "docker: -p PORT:PORT"
    if one.docker.network == "none":
        return Finding("error", "--network none: nobody reaches the engine", "take out --network", GUIDE, DOCKER)
    of_tcp = [value for value in ports if value.rpartition("/")[2] not in ("udp", "sctp")]
    if ports and not of_tcp:
        message = f"-p {ports[0]} publishes no port of TCP, and the engine is asked over TCP"
        return Finding("error", message, fix, GUIDE, DOCKER)
    host = one.backend.origin[1]
    if of_tcp and host and not is_loopback(host) and all(is_loopback(bound_to(value)) for value in of_tcp):
        message = f"-p {of_tcp[0]}: only its own machine reaches it, and the gateway asks {host}"
        return Finding("error", message, fix, GUIDE, DOCKER)
    return None


def volumes(one: Subject) -> Iterator[Finding]:
    """Weights and compiled kernels outlive a container only in a mounted folder."""
    if one.image is None or one.profile is not None:
        return
    odd = [remark for volume in one.launch.mounts if (remark := _odd_volume(volume, one)) is not None]
    yield from odd
    if odd or not (one.whole or one.env.get("MODEL_PATH")):
        return
    parts = (next((part for part in volume.split(":")[1:] if part.startswith("/")), "") for volume in one.launch.mounts)
    inside = list(filter(None, parts))
    if len(inside) < len(one.launch.mounts) or one.docker.has("mount"):
        return  # mounts that are not read here
    path = one.command.model or one.env.get("MODEL_PATH") or ""
    home = one.env.get("HF_HOME", f"{CONTAINER_HOME}/.cache/huggingface")
    compiled = one.env.get("VLLM_CACHE_ROOT", f"{CONTAINER_HOME}/.cache/vllm")
    wanted = path if path.startswith("/") else home
    where = VOLUMES if one.launch.volumes else IMAGE
    if "$" in wanted + compiled:
        return
    if not any(PurePosixPath(wanted).is_relative_to(folder) for folder in inside):
        again = "the weights are downloaded again with every new container"
        what = "vLLM takes it for a name to download" if path.startswith("/") else again
        yield Finding(
            "warning", f"{wanted} is not mounted: {what}", f"volumes: [FOLDER:{wanted}]", f"{GUIDE}, 4", where
        )
    elif "VLLM_DISABLE_COMPILE_CACHE" not in one.env and not any(
        PurePosixPath(compiled).is_relative_to(folder) for folder in inside
    ):
        message = f"{compiled} is not mounted: a new container compiles again, and starts slower"
        fix = f"volumes: [..., ~/.cache/vllm:{compiled}]"
        yield Finding("note", message, fix, _VOLUMES, where)


def _odd_volume(volume: str, one: Subject) -> Finding | None:
    """A mount that docker refuses, or that holds nothing from outside; None if neither, or a variable decides."""
    where = VOLUMES if volume in one.launch.volumes else DOCKER
    parts = volume.split(":")
    source, target = parts[0], parts[1] if len(parts) > 1 else ""
    if "$" in volume:
        return None
    if len(parts) == 1 and source.startswith("/"):
        message = f"'{volume}' has no folder of the host: it is empty in every new container"
        return Finding("warning", message, f"volumes: [FOLDER:{source}]", "docker run --help", where)
    if not source or not target.startswith("/") or len(parts) > 3:
        message = f"'{volume}' is not HOST:CONTAINER with a whole path in the container: docker refuses it"
        return Finding("error", message, "volumes: [/FOLDER:/FOLDER/IN/THE/CONTAINER]", "docker run --help", where)
    if not source.startswith(("/", "~", ".")) and not _VOLUME_NAME.fullmatch(source):
        message = f"'{source}' is neither a whole path nor the name of a volume: docker refuses it"
        return Finding("error", message, f"volumes: [/{source}:{':'.join(parts[1:])}]", "docker run --help", where)
    return None


def shell_quotes(one: Subject) -> Iterator[Finding]:
    """JSON that lost its quotes on the way through a shell, or will lose them."""
    if one.profile is not None or not one.launched:
        return
    stated = {mistake.flag for mistake in one.command.mistakes}
    for flag, value in one.flags.items():
        bare = isinstance(value, str) and re.match(r"\s*\{\s*[A-Za-z_]", value) and '"' not in value and ":" in value
        if flag not in stated and bare:
            message = (
                f"--{flag} without quotes: the shell eats those inside, and vLLM falls back to its default or does"
            )
            yield Finding("error", f"{message} not start", f"--{flag} '{_quoted(value)}'", _TWICE)
    program = one.command.words[0].rsplit("/", 1)[-1] if one.command.words else ""
    if program in ("ssh", "docker") and "{" in one.command.text:
        message = f"JSON through {program} and a second shell: each shell takes one layer of quotes"
        yield Finding("warning", message, "write the line as the engine's own, `vllm serve ...`", _TWICE)


def _quoted(value: str) -> str:
    """`{method:mtp,n:2}` -> `{"method":"mtp","n":2}`."""
    words: Any = re.sub(r"[A-Za-z_][\w./-]*", lambda found: f'"{found[0]}"', value)
    return re.sub(r'"(true|false|null)"', r"\1", str(words))
